"""The tiles of convolutions on each kind of GPU: the one table of them, and which of them a convolution takes."""

from __future__ import annotations

from tkern import runtime
from tkern.lang.convs import ConvTile

__all__ = ["IMAGE", "WEIGHT", "tile_for"]

Table = dict[str, tuple[ConvTile, ...]]

# Tiles of an image, channels × cells.
IMAGE: Table = {
    "software": (
        ConvTile(
            16,
            16,
            16,
            4,
            8,
            least=5,
            wanted=4,
            launched=(),
            reason="a device in software: few kernels, for it compiles slowly, and little work for a partial tile",
        ),
        ConvTile(4, 128, 32, 32, 4, least=2, wanted=4, launched=(), reason="as above"),
    ),
    "vulkan": (
        ConvTile(64, 64, 256, 16, 16, chain=8, unrolled=8, least=16, wanted=528, reason="PENDING"),
        ConvTile(4, 256, 64, 64, 8, chain=8, least=2, wanted=528, reason="PENDING"),
    ),
    "metal": (
        ConvTile(
            64,
            64,
            256,
            16,
            16,
            chain=8,
            unrolled=8,
            least=16,
            wanted=128,
            reason="not measured: cuda's, which takes 21 of the 32 KiB of memory that Metal allows",
        ),
        ConvTile(4, 256, 64, 64, 8, chain=8, least=2, wanted=128, reason="not measured: cuda's, 19 KiB"),
    ),
    "cuda": (
        ConvTile(64, 64, 256, 16, 16, chain=8, unrolled=8, least=16, wanted=528, reason="PENDING"),
        ConvTile(4, 256, 64, 64, 8, chain=8, least=2, wanted=528, reason="PENDING"),
    ),
}
# Tiles of gradients of weights, taps × channels of dy.
WEIGHT: Table = {
    "software": (
        ConvTile(16, 16, 16, 4, 8, least=5, wanted=4, launched=(), reason="as for images"),
    ),
    "vulkan": (ConvTile(64, 64, 256, 16, 16, chain=8, unrolled=8, least=16, wanted=528, reason="PENDING"),),
    "metal": (ConvTile(64, 64, 256, 16, 16, chain=8, unrolled=8, least=16, wanted=128, reason="as for images"),),
    "cuda": (ConvTile(64, 64, 256, 16, 16, chain=8, unrolled=16, least=16, wanted=528, reason="PENDING"),),
}  # fmt: skip


def tile_for(table: Table, backend: str, channels: int) -> ConvTile | None:
    """Return the tile for so many ``channels`` on ``backend``: channels that are made, or taps if those are fewer.

    None where there are too few for tiles, and on a CPU: then a program makes single sums, or has tiles of its own.
    """
    if backend == "cpu":
        return None
    tiles = table["software" if runtime.backend(backend).in_software else backend]
    return next((tile for tile in tiles if tile.least <= channels), None)
