"""How a convolution is laid over launches: which kernel, over how many programs, with what memory.

The choice between kernels is made here, in :func:`simplified` and the functions that add launches, and nowhere else:

- A 1 × 1 kernel with stride 1 and no padding is a plain product: its images are taken as one long row each, so that
  what is gathered is copied from end to end.
- Images and kernels one column wide are turned on their side: their rows are then what lies side by side in memory.
- On a CPU, dx of 3 × 3 kernels and the like, with stride 1, a multiple of 16 outputs and of 16 images: images are the
  lanes of vectors, so nothing is gathered (:mod:`tkern.lang.convs_images_cpu`).
- On a CPU, where at most 4 channels are made (depthwise kernels, dx of a first layer) from images read cell by cell:
  planes with the zeros around them, taps read where they are (:mod:`tkern.ops.conv2d.thin`).
- Everything else gathers patches tile by tile into the workspace of a thread, few channels or many: a tile's taps are
  numbered over channels and kernel alike, so 3 channels of 7 × 7 fill it as well as 16 of 3 × 3.
- On a GPU a workgroup makes a tile of sums wherever there are channels for one (:mod:`tkern.ops.conv2d.sizes`), and a
  long sum is divided where there are too few tiles; a single channel, as of depthwise kernels, is made by lanes that
  make one sum after the other.

No launch takes more than 64 MiB beside its inputs and outputs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tkern import arrays, runtime
from tkern.launch import Group, Launch
from tkern.loops import refuse_long_loops
from tkern.ops.conv2d.geometry import Geometry
from tkern.ops.conv2d.sixteens import is_by_images, numbers_by_images
from tkern.ops.conv2d.sizes import IMAGE, WEIGHT, tile_for
from tkern.ops.conv2d.thin import image_size, weight_size
from tkern.processor import cores

__all__ = ["add_im2col", "add_image", "add_input", "add_weight", "simplified"]

# Vectors of all threads' workspaces together, 40 MiB.
_MOST_SPACE = 40 * 2**20 // 64
# Channels that a program makes at most. More make less of gathering: a patch is used for all of them; but their sums
# must stay in the second cache, with the patches (120 KiB).
_MOST_ROWS = 128
# With so few, or fewer, gathering is most of the work: then so many taps at a time, which fit the first cache.
_FEW_ROWS = 16
_SHORT = 32
# Vectors of a workspace for few channels at most, half of a second cache.
_MOST_THIN = 2**13
# Likewise for the gradient of weights: channels of dy, and vectors of sums.
_MOST_COLS = 256
_MOST_SUMS = 6912
# Programs for each thread that a sum over cells is divided for; with more, private sums take a sixth of the time.
_PROGRAMS = 4
_GPU_PROGRAMS = 2**16
# Lanes that keep a GPU busy, and cells that a lane makes at most, one after the other, if there are more.
_GPU_LANES = 2**18
_LANE_CELLS = 4
# Programs that make an image, about, if there is enough to do for so many.
_IMAGE_PROGRAMS = 256
# Floats of private sums (16 MiB).
_MOST_PARTIAL = 2**22
# Channels of x whose weights a program arranges: more, and memory is walked in longer pieces.
_ARRANGED = 8
# Floats of weights that are arranged at a time (16 MiB).
_MOST_WEIGHTS = 2**22
# Numbers of launches, 256 bytes each on a GPU.
_MOST_KEPT = 256
_kept: dict[tuple[int, ...], Any] = {}


def simplified(g: Geometry) -> Geometry:
    """Return the same convolution with images as wide as can be."""
    if g.size[1] == g.kernel[1] == g.out[1] == 1 and g.before[1] == 0:
        g = replace(
            g, size=g.size[::-1], kernel=g.kernel[::-1], stride=g.stride[::-1], before=g.before[::-1],
            dilation=g.dilation[::-1], out=g.out[::-1],
        )  # fmt: skip
    if g.kernel == (1, 1) and g.stride == (1, 1) and g.size == g.out and g.before == (0, 0):
        area = math.prod(g.size)
        g = replace(g, size=(1, area), out=(1, area))
    return g


def add_image(launch: Launch, g: Geometry, x: Any, weight: Any, bias: Any, y: Any, backend: str) -> None:
    """Add what makes y of x."""
    given = arrays.zeros(1, backend) if bias is None else bias
    numbers = {
        **_numbers(g), "channels": g.channels, "made": g.outs, "all_made": g.outs,
        "height": g.size[0], "width": g.size[1], "made_height": g.out[0], "made_width": g.out[1],
        "stride_h": g.stride[0], "stride_w": g.stride[1], "pad_h": -g.before[0], "pad_w": -g.before[1],
        "dilation_h": -g.dilation[0], "dilation_w": -g.dilation[1],
        "total": math.prod(g.x_shape), "other_total": math.prod(g.weight_shape), "bias_step": int(bias is not None),
    }  # fmt: skip
    _add_convolve(launch, numbers, x, weight, given, y, backend)


def add_input(launch: Launch, g: Geometry, dy: Any, weight: Any, dx: Any, backend: str) -> None:
    """Add what makes dx of dy, a convolution of dy for each phase; many channels are made part by part."""
    from tkern.lang import compiled
    from tkern.lang.convs import conv_words, image_words
    from tkern.ops.conv2d import kernel

    up, dilation = g.stride, g.dilation
    every = tuple(s // math.gcd(s, d) for s, d in zip(up, dilation, strict=True))
    row = g.outs * math.prod(g.kernel)
    groups = min(g.groups, max(1, _MOST_WEIGHTS // (row * g.channels)))
    rows = min(g.channels, max(1, _MOST_WEIGHTS // row)) if groups == 1 else g.channels
    by_images = is_by_images(g, backend, _MOST_SPACE // cores())
    words = image_words() if by_images else conv_words(backend)
    if by_images and rows < g.channels:
        rows = max(words.block, rows // words.block * words.block)
    # A single output of each group whose taps are all of one phase has its weights in order as they are.
    in_order = g.outs == 1 and every == (1, 1) and (groups, rows) == (g.groups, g.channels)
    arranged = weight if in_order else arrays.workspace(groups * rows * row, backend)
    nothing = arrays.zeros(1, backend)
    for done_groups in range(0, g.groups, groups):
        for done in range(0, g.channels, rows):
            here = min(groups, g.groups - done_groups)
            made = min(rows, g.channels - done)
            numbers = {
                **_numbers(g), "channels": g.outs, "made": made, "all_made": g.channels,
                "height": g.out[0], "width": g.out[1], "made_height": g.size[0], "made_width": g.size[1],
                "up_h": up[0], "up_w": up[1], "pad_h": g.before[0], "pad_w": g.before[1],
                "dilation_h": dilation[0], "dilation_w": dilation[1], "every_h": every[0], "every_w": every[1],
                "phases_h": min(up[0], g.size[0]), "phases_w": min(up[1], g.size[1]),
                "launch_groups": here, "done_groups": done_groups, "done_made": done, "col_step": g.outs,
                "total": math.prod(g.y_shape), "other_total": here * made * row,
            }  # fmt: skip
            part = _ARRANGED if backend == "cpu" else 1
            split = {**numbers, "row_step": part, "row_parts": -(-made // part)}
            if backend != "cpu":
                split.update(col_parts=g.outs, col_step=1)
            programs = here * split["row_parts"] * split["col_parts"]
            if not in_order:
                launch.add(compiled(kernel.arrange, words), weight, arranged, _given(split, backend), programs)
            if by_images:
                n = numbers_by_images(g, numbers)
                space, programs = _space(n["size"], backend), here * n["row_parts"] * n["cell_parts"]
                launch.add(
                    compiled(kernel.convolve, words), dy, arranged, nothing, dx, space, _given(n, backend), programs
                )
            else:
                _add_convolve(launch, numbers, dy, arranged, nothing, dx, backend)


def add_weight(launch: Launch, g: Geometry, x: Any, dy: Any, dweight: Any, backend: str) -> None:
    """Add what makes dweight: private sums for slices of the cells, then their sum; or at once, in one slice."""
    from tkern.lang import columns, compiled
    from tkern.lang.convs import conv_words, thin_words, weight_tile_words
    from tkern.ops.conv2d import kernel

    count = math.prod(g.weight_shape)
    tile = tile_for(WEIGHT, backend, min(g.taps, g.outs))
    thin = weight_size(g, _most_thin()) if backend == "cpu" else 0
    words: Any = thin_words() if thin else conv_words(backend)
    if thin:
        row_step, col_step, size, span = g.taps, g.outs, thin, g.out[1]
    elif tile is None:
        row_step, col_step, size = _weight_tile(g, words, backend)
        span = words.span
    else:
        row_step, col_step, size, span = tile.rows, tile.cols, 0, tile.slice
    parts = {
        "row_parts": -(-g.taps // row_step), "row_step": row_step,
        "col_parts": -(-g.outs // col_step), "col_step": col_step,
    }  # fmt: skip
    whole = g.groups * parts["row_parts"] * parts["col_parts"]
    spans = -(-g.cells // span)
    if tile is None:
        slices = -(-(_PROGRAMS * cores() if backend == "cpu" else _GPU_PROGRAMS) // whole)
    else:
        slices = min(-(-tile.wanted // whole), -(-g.cells // tile.shortest))
    slices = max(1, min(slices, spans, _MOST_PARTIAL // count))
    cell_step = -(-spans // slices) * span
    slices = -(-g.cells // cell_step)
    programs = whole * slices
    if tile is not None:
        words = weight_tile_words(tile, tile.launched_for(programs))
    steps = min(cell_step, g.cells) + 2 * -(-cell_step // span) + 4
    refuse_long_loops("x", backend, **_lane_steps(tile, programs, steps), instead="smaller parts")
    numbers = {
        **_window(g), "made": g.outs, "all_made": g.outs,
        "total": math.prod(g.x_shape), "other_total": math.prod(g.y_shape),
        **parts, "cell_step": cell_step, "size": size,
    }  # fmt: skip
    partial = dweight if slices == 1 else arrays.workspace(slices * count, backend)
    arguments = x, dy, partial, _space(size, backend), _given(numbers, backend), count, programs
    launch.add(compiled(kernel.backward_weight, words), *arguments)
    if slices > 1:
        launch.add(columns.sum_kernel(backend, count), partial, dweight, slices, count, count)


def add_im2col(launch: Launch, g: Geometry, x: Any, cols: Any, backend: str) -> None:
    """Add what makes the matrix of patches."""
    from tkern.lang import compiled
    from tkern.lang.convs import conv_words
    from tkern.ops.conv2d import kernel

    words = conv_words(backend)
    row_step = min(g.taps, words.depth if backend == "cpu" else 1)
    parts = -(-g.taps // row_step)
    numbers = {
        **_window(g), "made": 1, "all_made": 1, "total": math.prod(g.x_shape),
        "row_parts": parts, "row_step": row_step, "cell_step": words.cells,
    }  # fmt: skip
    size = 16 + words.patch_vectors if backend == "cpu" else 0
    numbers["size"] = size
    programs = parts * -(-g.cells // words.cells)
    refuse_long_loops("x", backend, threads=programs, steps=5, instead="smaller parts")
    launch.add(compiled(kernel.im2col, words), x, cols, _space(size, backend), _given(numbers, backend), programs)


def _add_convolve(
    launch: Launch, numbers: dict[str, int], a: Any, weight: Any, bias: Any, out: Any, backend: str
) -> None:
    from tkern.lang import columns, compiled
    from tkern.lang.convs import conv_words, image_tile_words, thin_words
    from tkern.ops.conv2d import kernel

    made, n = numbers["made"], numbers
    grid = -(-n["made_height"] // n["up_h"]) * -(-n["made_width"] // n["up_w"])
    cells = n["batch"] * grid
    others = n["phases_h"] * n["phases_w"] * n["launch_groups"]
    terms = n["channels"] * n["kernel_h"] * n["kernel_w"]
    tile = tile_for(IMAGE, backend, made)
    size, cell_step, term_parts, whole = 0, 1, 1, 0
    words: Any
    thin = image_size(n, _most_thin()) if backend == "cpu" else 0
    if thin:
        words, row_step, size = thin_words(), made, thin
        cell_step = -(-cells // max(1, min(_IMAGE_PROGRAMS // others, cells)))
        depth = words.depth
    elif backend == "cpu":
        words = conv_words(backend)
        most = max(
            words.block, min(_MOST_ROWS, (_MOST_SPACE // cores() - 16 - words.patch_vectors) // words.row_vectors)
        )
        row_step = _even(made, most, words.block)
        size = 16 + words.patch_vectors + row_step * words.row_vectors
        # Several tiles for a program where there are many, so that a program's beginning takes no time.
        cell_step = _even(cells, words.cells, 16)
        cell_step *= max(1, -(-cells // cell_step) * others * -(-made // row_step) // _IMAGE_PROGRAMS)
        depth = _SHORT if row_step <= _FEW_ROWS else words.depth
    elif tile is None:
        row_step, words = 1, conv_words(backend)
        # Several cells for a lane where there are many: where it reads takes as long to find out as a sum of few taps.
        cell_step = max(1, min(_LANE_CELLS, cells * others * made // _GPU_LANES))
        depth = words.depth
    else:
        row_step, cell_step, depth = tile.rows, tile.cols, tile.slice
        whole = n["batch"] * n["groups"] * n["all_made"] * n["made_height"] * n["made_width"]
        if not n["bias_step"] and n["launch_groups"] == n["groups"] and made == n["all_made"]:
            # Private images, from a part of each sum's terms, where there are too few tiles to keep the device busy.
            parts = tile.wanted // (others * tile.count(made, cells))
            longest = terms // (n["every_h"] * n["every_w"])
            term_parts = max(1, min(parts, longest // tile.shortest, _MOST_PARTIAL // whole))
    term_step = -(-terms // (term_parts * depth)) * depth
    n = {
        **n, "row_parts": -(-made // row_step), "row_step": row_step, "size": size,
        "cell_parts": -(-cells // cell_step), "cell_step": cell_step, "depth": depth,
        "term_parts": term_parts, "term_step": term_step if term_parts > 1 else max(1, terms),
    }  # fmt: skip
    if term_parts > 1:
        n["part_total"] = whole
    programs = others * n["row_parts"] * n["cell_parts"] * term_parts
    if tile is not None:
        words = image_tile_words(tile, tile.launched_for(programs))
    steps = n["channels"] * (1 + n["kernel_h"] * (1 + n["kernel_w"])) + 4
    if tile is None:
        steps *= cell_step
    refuse_long_loops("weight", backend, **_lane_steps(tile, programs, steps), instead="smaller parts")
    # Two workspaces of one size are the same memory, and the weights may be in one.
    size_of = term_parts * whole + int(tuple(weight.shape) == (term_parts * whole,))
    images = arrays.workspace(size_of, backend) if term_parts > 1 else out
    arguments = a, weight, bias, images, _space(size, backend), _given(n, backend), programs
    launch.add(compiled(kernel.convolve, words), *arguments)
    if term_parts > 1:
        launch.add(columns.sum_kernel(backend, whole), images, out, term_parts, whole, whole)


def _lane_steps(tile: Any, programs: int, steps: int) -> dict[str, int]:
    """Return the threads of a launch, and the steps of loops that each of them takes at most for a program."""
    if tile is None:
        return {"threads": programs, "steps": steps}
    slices = -(-steps // tile.slice) + 1
    return {"threads": programs * tile.lanes, "steps": slices * (1 + tile.slice // tile.unrolled) + 4}


def _most_thin() -> int:
    return min(_MOST_THIN, _MOST_SPACE // cores())


def _weight_tile(g: Geometry, words: Any, backend: str) -> tuple[int, int, int]:
    """Return the taps and channels of dy that a program sums at most, and the vectors of its workspace."""
    if backend != "cpu":
        return 1, 1, 0
    budget = _MOST_SPACE // cores() - 16 - words.patch_vectors
    col_step = _even(g.outs, _MOST_COLS if budget > 2 * _MOST_SUMS else 64, 16)
    turned = col_step // 16 * words.turned_vectors
    blocks = -(-g.taps // words.depth)
    most = max(1, min(_MOST_SUMS, budget - turned) // (words.depth * col_step // 16))
    row_step = min(-(-g.taps // words.block) * words.block, words.depth * -(-blocks // -(-blocks // most)))
    return row_step, col_step, 16 + words.patch_vectors + turned + row_step * col_step // 16


def _even(count: int, most: int, step: int) -> int:
    """Return how many of ``count`` each part gets, ``most`` at most, if parts are alike and multiples of ``step``."""
    parts = -(-count // most)
    return -(-count // (parts * step)) * step


def _numbers(g: Geometry) -> dict[str, int]:
    ones = ("one", "up_h", "up_w", "stride_h", "stride_w", "every_h", "every_w", "phases_h", "phases_w", "term_parts")
    parts = ("row_parts", "row_step", "cell_parts", "cell_step", "col_parts", "col_step")
    zeros = (
        "depth",
        "done_groups",
        "done_made",
        "total",
        "other_total",
        "size",
        "bias_step",
        "term_step",
        "part_total",
    )
    return {
        **dict.fromkeys(ones, 1), **dict.fromkeys(parts, 1), **dict.fromkeys(zeros, 0),
        "images": g.batch, "batch": g.batch, "groups": g.groups, "launch_groups": g.groups,
        "kernel_h": g.kernel[0], "kernel_w": g.kernel[1],
    }  # fmt: skip


def _window(g: Geometry) -> dict[str, int]:
    """Return the numbers of a launch that looks at x through the window, forward, at each cell of y."""
    return {
        **_numbers(g), "channels": g.channels,
        "height": g.size[0], "width": g.size[1], "made_height": g.out[0], "made_width": g.out[1],
        "stride_h": g.stride[0], "stride_w": g.stride[1], "pad_h": g.before[0], "pad_w": g.before[1],
        "dilation_h": g.dilation[0], "dilation_w": g.dilation[1],
    }  # fmt: skip


def _given(numbers: dict[str, int], backend: str) -> Any:
    """Return the numbers as a kernel of ``backend`` takes them; those of the last launches are kept."""
    from tkern.ops.conv2d.places import NAMES, Numbers

    values = tuple(numbers[name] for name in NAMES)
    key = (backend == "cpu", *values)
    kept = _kept.pop(key, None)
    if kept is None or runtime.is_ended(kept):
        kept = Group(Numbers, **numbers) if key[0] else arrays.constants(np.array(values, np.int32), backend)
    _kept[key] = kept
    while len(_kept) > _MOST_KEPT:
        del _kept[next(iter(_kept))]
    return kept


def _space(size: int, backend: str) -> Any:
    return arrays.workspace(16 * size * cores(), backend) if backend == "cpu" else arrays.zeros(1, backend)
