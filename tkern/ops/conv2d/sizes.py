"""The tiles of convolutions on each kind of GPU: the one table of them, and which of them a convolution takes."""

from __future__ import annotations

from tkern import runtime
from tkern.lang.convs import ConvTile

__all__ = ["IMAGE", "WEIGHT", "tile_for"]

# Tiles of an image, channels × cells, the largest first: the first is taken with which there are as many workgroups
# as wanted, else the last.
IMAGE: dict[str, tuple[ConvTile, ...]] = {
    "software": (
        ConvTile(16, 16, 16, 4, 8, least=5, wanted=4, reason="a device in software: few kernels, and little work"),
    ),
    "vulkan": (ConvTile(64, 128, 128, 16, 8, least=16, wanted=264, reason="not measured"),),
    "metal": (ConvTile(64, 64, 128, 16, 16, least=16, wanted=64, reason="not measured"),),
    "cuda": (ConvTile(64, 128, 128, 16, 8, least=16, wanted=264, reason="not measured"),),
}
# Tiles of gradients of weights, taps × channels of dy.
WEIGHT: dict[str, tuple[ConvTile, ...]] = {
    "software": (
        ConvTile(16, 16, 16, 4, 8, least=5, wanted=4, reason="a device in software: few kernels, and little work"),
    ),
    "vulkan": (ConvTile(64, 64, 128, 8, 16, least=16, wanted=1056, reason="not measured"),),
    "metal": (ConvTile(64, 64, 128, 8, 16, least=16, wanted=256, reason="not measured"),),
    "cuda": (ConvTile(64, 64, 128, 8, 16, least=16, wanted=1056, reason="not measured"),),
}


def tile_for(table: dict[str, tuple[ConvTile, ...]], backend: str, rows: int, cols: int, times: int) -> ConvTile | None:
    """Return the tile for ``times`` tables of rows × cols sums on ``backend``.

    None where there are too few channels for tiles, and on a CPU: then a program makes single sums, or has its own
    tiles.
    """
    if backend == "cpu":
        return None
    tiles = table["software" if runtime.backend(backend).in_software else backend]
    least = min(rows, cols) if table is WEIGHT else rows
    fitting = [tile for tile in tiles if tile.least <= least]
    enough = (tile for tile in fitting if times * tile.count(rows, cols) >= tile.wanted)
    return next(enough, fitting[-1] if fitting else None)
