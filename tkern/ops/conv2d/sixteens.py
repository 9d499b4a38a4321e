"""Whether dx is made with 16 images as the lanes of vectors (:mod:`tkern.lang.convs_images_cpu`), and how."""

from __future__ import annotations

import math

from tkern.ops.conv2d.geometry import Geometry

__all__ = ["is_by_images", "numbers_by_images"]

# Channels that a program makes, and cells that it reads (256 KiB): with its sums most of a second cache.
_ROWS = 64
_MOST_READ = 256
# Taps: with fewer, what is gathered serves as it is; with more, sums of 16 channels become long.
_LEAST_TAPS, _MOST_TAPS = 4, 9


def is_by_images(g: Geometry, backend: str, most: int) -> bool:
    """Return whether a geometry is one for it, and a thread's workspace of ``most`` vectors is enough."""
    taps = math.prod(g.kernel)
    if backend != "cpu" or g.stride != (1, 1) or g.outs % 16 or not _LEAST_TAPS <= taps <= _MOST_TAPS:
        return False
    if g.channels % _block():
        return False
    # Lanes without an image work for nothing.
    if -g.batch % 16 > g.batch // 8:
        return False
    lines = _lines(g)
    return lines > 0 and _size(g, lines, _ROWS) <= most


def numbers_by_images(g: Geometry, n: dict[str, int]) -> dict[str, int]:
    """Return the numbers of a launch that makes dx so."""
    groups, lines = -(-g.batch // 16), _lines(g)
    parts = -(-n["made"] // _ROWS)
    row_step = -(-n["made"] // (parts * _block())) * _block()
    taps = math.prod(g.kernel)
    return {
        **n, "batch": groups, "row_parts": -(-n["made"] // row_step), "row_step": row_step,
        "cell_parts": groups * g.size[0] // lines, "cell_step": lines * g.size[1],
        "size": _size(g, lines, row_step), "depth": 16 * taps, "term_step": g.outs * taps,
    }  # fmt: skip


def _block() -> int:
    from tkern.lang.convs_images_cpu import CpuImageConvs

    return CpuImageConvs.block


def _lines(g: Geometry) -> int:
    """Return how many lines of dx a program makes: as many as there is room for, and divide its height; 0 if none."""
    from tkern.lang.convs_images_cpu import CELLS

    height, width = g.size
    for lines in range(min(height, CELLS // width), 0, -1):
        if height % lines == 0 and _cells(g, lines) <= _MOST_READ:
            return lines
    return 0


def _cells(g: Geometry, lines: int) -> int:
    """Return how many cells of dy ``lines`` of dx are made from, at most."""
    return min(lines + g.dilation[0] * (g.kernel[0] - 1), g.out[0]) * g.out[1]


def _size(g: Geometry, lines: int, rows: int) -> int:
    """Return the vectors of a workspace: a block to turn, what is read (a block more, for its end), and sums."""
    from tkern.lang.convs_images_cpu import CpuImageConvs

    return 16 + 16 * (_cells(g, lines) + 16) + rows * CpuImageConvs.row_vectors
