"""The tiles of convolutions on each kind of GPU: the one table of them, and which of them a convolution takes."""

from __future__ import annotations

from tkern import runtime
from tkern.lang.convs import ConvTile

__all__ = ["IMAGE", "WEIGHT", "tile_for"]

Table = dict[str, tuple[ConvTile, ...]]

# Tiles of an image, channels × cells, those for many channels first.
IMAGE: Table = {
    "software": (
        ConvTile(
            16, 16, 16, 4, 8, least=5, wanted=4, launched=(),
            reason="a device in software: few kernels, for it compiles slowly, and little work for a partial tile",
        ),
        ConvTile(4, 128, 32, 32, 4, least=2, wanted=4, launched=(), reason="as above"),
    ),
    "vulkan": (
        ConvTile(
            64, 64, 256, 16, 16, chain=8, unrolled=8, least=16, wanted=528,
            reason="H200, dx of 56²×64: 0.33 ms; with 4 unrolled 0.36, 64 × 128 0.40, 8 × 8 sums a lane 0.42",
        ),
        ConvTile(
            4, 512, 128, 128, 4, chain=8, least=2, wanted=528,
            reason="H200, dx of 224²×3: 1.7 ms; 4 × 256 with 64 lanes 2.6, a lane for four channels 2.0",
        ),
    ),
    "metal": (
        ConvTile(
            64, 64, 256, 16, 16, chain=8, unrolled=8, least=16, wanted=128,
            reason="not measured: cuda's, which takes 20 of the 32 KiB of memory that Metal allows",
        ),
        ConvTile(4, 256, 64, 64, 8, chain=8, least=2, wanted=128, reason="not measured: cuda's, 18 KiB"),
    ),
    "cuda": (
        ConvTile(
            64, 64, 256, 16, 16, chain=8, unrolled=8, least=16, wanted=528,
            reason="H200, dx of 56²×64: 0.21 ms; 4 unrolled 0.25, with 128 lanes 0.22, 64 × 128 0.27, 128 × 128 0.39",
        ),
        ConvTile(
            4, 256, 64, 64, 8, chain=8, least=2, wanted=528,
            reason="H200, dx of 224²×3: 0.87 ms; 4 × 512 with 128 lanes 1.00, a lane for four channels of a cell 1.68",
        ),
    ),
}  # fmt: skip
# Tiles of gradients of weights, taps × channels of dy.
WEIGHT: Table = {
    "software": (ConvTile(16, 16, 16, 4, 8, least=5, wanted=4, launched=(), reason="as for images"),),
    "vulkan": (
        ConvTile(
            64, 64, 256, 16, 16, chain=8, unrolled=8, least=16, wanted=528,
            reason="H200, dw of 56²×64: 0.34 ms; 4 unrolled 0.42, with 128 lanes 0.44, 128 × 64 0.43",
        ),
    ),
    "metal": (
        ConvTile(64, 64, 256, 16, 16, chain=8, unrolled=8, least=16, wanted=128, reason="not measured: as for images"),
    ),
    "cuda": (
        ConvTile(
            64, 64, 256, 16, 16, chain=8, unrolled=16, least=16, wanted=528,
            reason="H200, dw of 7²×512: 0.22 ms; 8 unrolled 0.27, with 128 lanes 0.28, 64 × 128 0.32, 128 × 64 0.39",
        ),
    ),
}  # fmt: skip


def tile_for(table: Table, backend: str, channels: int) -> ConvTile | None:
    """Return the tile for so many ``channels`` on ``backend``: channels that are made, or taps if those are fewer.

    None where there are too few for tiles, and on a CPU: then a program makes single sums, or has tiles of its own.
    """
    if backend == "cpu":
        return None
    tiles = table["software" if runtime.backend(backend).in_software else backend]
    return next((tile for tile in tiles if tile.least <= channels), None)
