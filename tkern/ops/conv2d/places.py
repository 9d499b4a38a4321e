"""Which part of a convolution a program makes, and which taps reach it."""

import taichi as ti
from taichi.lang.any_array import AnyArray

from tkern.lang.macros import handle, macro, value
from tkern.lang.rows_gpu import element
from tkern.lang.taps import Axis, Images, Lattice

_INTEGERS = (
    # Sizes: images (``batch`` counts them as the words do, one by one or in sixteens), groups, channels read and made
    # for each group, the image read and the one made, the kernel.
    "images", "batch", "groups", "channels", "made", "all_made", "height", "width", "made_height", "made_width",
    "kernel_h", "kernel_w",
    # Source row of tap r at row h that is made: (h·stride + pad − r·dilation) / up, where that is whole.
    "up_h", "up_w", "stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w", "every_h", "every_w",
    # How the work is divided over programs, and what launches before have made: groups, or channels of the one group.
    "launch_groups", "done_groups", "done_made",
    "phases_h", "phases_w", "row_parts", "row_step", "cell_parts", "cell_step", "col_parts", "col_step",
    # Floats of the arrays that are read, and vectors of a thread's workspace.
    "total", "other_total", "size",
    # From one output's bias to the next, 0 without a bias; 1; the taps that are gathered at a time.
    "bias_step", "one", "depth",
    # Parts of the terms of a sum, the terms of each, and the floats from one's image to the next one's.
    "term_parts", "term_step", "part_total",
)  # fmt: skip
Numbers = ti.types.struct(**dict.fromkeys(_INTEGERS, ti.i32))
NAMES = tuple(_INTEGERS)


def numbers_for(t):
    """Return the type of a kernel's numbers: the structure, or what the words have instead."""
    return getattr(t, "Numbers", Numbers)


@handle
class _Loaded:
    """The numbers, each in a variable of its own; those that a kernel does not use, its compiler leaves out."""

    def __init__(self, array):
        for at, name in enumerate(NAMES):
            setattr(self, name, value(element(array, at)))


@macro
def given(numbers):
    """Return the numbers of a launch by name: its argument, or what the array holds that stands for it.

    A structure of so many members takes longer to hand over, 1.2 µs each, than most kernels run on a GPU.
    """
    return _Loaded(numbers) if isinstance(numbers, AnyArray) else numbers


@ti.func
def first_tap(phase, up, pad, dilation, every, kernel):
    """Return the first tap that reaches rows ``phase``, ``phase`` + up, …; ``kernel`` where none does.

    ``every`` is up over its common divisor with the dilation: the other taps that do are that far apart.
    """
    first = kernel
    for r in range(ti.min(every, kernel)):
        if first == kernel and (phase + pad - r * dilation) % up == 0:
            first = r
    return first


@ti.func
def before(first, every, kernel):
    """Return how many taps belong to phases whose first tap is before ``first``."""
    return first * (kernel // every) + ti.min(first, kernel % every)


@ti.func
def taps_from(first, every, kernel):
    """Return how many taps there are from ``first`` on, ``every`` apart."""
    return (kernel - first + every - 1) // every


@handle
class Part:
    """The part of an image-making program (:func:`tkern.ops.conv2d.kernel.convolve`): rows are channels that are made.

    ``rows`` of them from ``row`` on, at ``count`` cells from ``first`` on of one phase's grid, from ``terms`` taps
    each, whose weights begin at ``weight``; of those from ``first_term`` to ``last_term``, which are part ``part``.
    """

    def __init__(self, n, program):
        rest, cell_part = _split(program, n.cell_parts)
        rest, self.part = _split(rest, n.term_parts)
        rest, row_part = _split(rest, n.row_parts)
        rest, group = _split(rest, n.launch_groups)
        phase_h, phase_w = _split(rest, n.phases_w)
        self.row = value(row_part * n.row_step)
        self.rows = value(ti.min(n.row_step, n.made - self.row))
        # The phase's own grid.
        self.height = value((n.made_height - phase_h + n.up_h - 1) // n.up_h)
        self.width = value((n.made_width - phase_w + n.up_w - 1) // n.up_w)
        self.first = value(cell_part * n.cell_step)
        self.count = value(ti.min(n.cell_step, n.batch * self.height * self.width - self.first))
        r = value(first_tap(phase_h, n.up_h, n.pad_h, n.dilation_h, n.every_h, n.kernel_h))
        s = value(first_tap(phase_w, n.up_w, n.pad_w, n.dilation_w, n.every_w, n.kernel_w))
        taps_h = value(taps_from(r, n.every_h, n.kernel_h))
        taps_w = value(taps_from(s, n.every_w, n.kernel_w))
        self.vertical = Axis(
            n.height, taps_h, n.stride_h, value((phase_h + n.pad_h - r * n.dilation_h) // n.up_h),
            value(-(n.dilation_h * n.every_h) // n.up_h),
        )  # fmt: skip
        self.horizontal = Axis(
            n.width, taps_w, n.stride_w, value((phase_w + n.pad_w - s * n.dilation_w) // n.up_w),
            value(-(n.dilation_w * n.every_w) // n.up_w),
        )  # fmt: skip
        self.terms = value(n.channels * taps_h * taps_w)
        self.first_term = value(self.part * n.term_step)
        self.last_term = value(ti.min(self.first_term + n.term_step, self.terms))
        # Weights of a phase lie together.
        earlier = before(r, n.every_h, n.kernel_h) * n.kernel_w + taps_h * before(s, n.every_w, n.kernel_w)
        own = group * n.kernel_h * n.kernel_w + earlier
        self.weight = value(own * n.made * n.channels + self.row * self.terms)
        self.group = value(group + n.done_groups)
        self.lattice = Lattice(n.made_width, phase_h, n.up_h, phase_w, n.up_w)


@handle
class WeightPart:
    """The part of a program that sums weights' gradients: taps from ``row`` on, outputs from ``col``, a slice of cells.

    ``slice`` is its number, ``first`` and ``last`` are its cells.
    """

    def __init__(self, n, program):
        rest, row_part = _split(program, n.row_parts)
        rest, col_part = _split(rest, n.col_parts)
        self.slice, self.group = _split(rest, n.groups)
        self.row = value(row_part * n.row_step)
        self.rows = value(ti.min(n.row_step, n.channels * n.kernel_h * n.kernel_w - self.row))
        self.col = value(col_part * n.col_step)
        self.cols = value(ti.min(n.col_step, n.made - self.col))
        self.first = value(self.slice * n.cell_step)
        self.last = value(ti.min(self.first + n.cell_step, n.batch * n.made_height * n.made_width))
        self.vertical, self.horizontal = window(n)


@macro
def window(n):
    """Return the window of a convolution over the image that it reads."""
    return (
        Axis(n.height, n.kernel_h, n.stride_h, value(-n.pad_h), n.dilation_h),
        Axis(n.width, n.kernel_w, n.stride_w, value(-n.pad_w), n.dilation_w),
    )


@macro
def read_images(n, array, group):
    """Return the images that are read, from the first channel of ``group`` on."""
    area = value(n.height * n.width)
    return Images(
        array, value(group * n.channels * area), value(n.groups * n.channels * area), area, n.total, _one(n), n.images
    )


@macro
def made_images(n, array, group, row, total, skipped):
    """Return the images on the other side, from channel ``row`` of ``group`` on, ``skipped`` floats into the array."""
    area = value(n.made_height * n.made_width)
    first = value(group * n.all_made + n.done_made + row)
    own, image = value(skipped + first * area), value(n.groups * n.all_made * area)
    return Images(array, own, image, area, total, _one(n), n.images)


@macro
def _one(n):
    return value(ti.cast(n.one, ti.f32))


@macro
def _split(number, parts):
    """Return number // parts and what is left of it."""
    whole = value(number // parts)
    return whole, value(number - whole * parts)
