"""Whether a convolution has so few channels that taps are read where they are (:mod:`tkern.lang.thin_cpu`), and how."""

from __future__ import annotations

from tkern.ops.conv2d.geometry import Geometry

__all__ = ["FEW", "image_size", "weight_size"]

# Channels that are made, at most: more, and a gathered patch serves enough sums.
FEW = 4


def image_size(n: dict[str, int], most: int) -> int:
    """Return the vectors of a workspace for what makes an image, by the numbers of its launch.

    0 where it is not for few channels, or needs more than ``most``.
    """
    if n["made"] > FEW or n["stride_h"] != 1 or n["stride_w"] != 1:
        return 0
    height, width = -(-n["made_height"] // n["up_h"]), -(-n["made_width"] // n["up_w"])
    taps = [-(-n["kernel_" + axis] // n["every_" + axis]) for axis in "hw"]
    steps = [abs(n["dilation_" + axis]) * n["every_" + axis] // n["up_" + axis] for axis in "hw"]
    # Where phases begin differs by less than a cell.
    pads = [abs(n["pad_" + axis]) + 1 for axis in "hw"]
    weights = FEW * n["channels"] * taps[0] * taps[1] // 16 + 1
    reach = [(count - 1) * step for count, step in zip(taps, steps, strict=True)]
    return _size(weights, n["channels"], n["made"], (height, width), n["width"], reach, pads[1], most)


def weight_size(g: Geometry, most: int) -> int:
    """Return the vectors of a workspace for what makes dweight, likewise."""
    if g.outs > FEW or g.channels > FEW or g.stride != (1, 1):
        return 0
    reach = [(count - 1) * step for count, step in zip(g.kernel, g.dilation, strict=True)]
    return _size(g.taps * g.outs, g.channels, g.outs, g.out, g.size[1], reach, g.before[1], most)


def _size(
    fixed: int, channels: int, made: int, grid: tuple[int, int], width: int, reach: list[int], pad: int, most: int
) -> int:
    """Return the vectors for as many rows of the grid as there are, or as ``most`` vectors have room for."""
    from tkern.lang.planes_cpu import BEHIND

    lead = reach[1] + pad
    pitch = max(grid[1], width + lead, grid[1] + lead)

    def floats(rows: int) -> int:
        plane = lead + (rows + reach[0] + 1) * pitch + BEHIND + 32
        return channels * plane + made * (rows * pitch + 128)

    least, whole = (fixed + 4 + -(-floats(rows) // 16) for rows in (1, grid[0]))
    return 0 if least > most else min(whole, most)
