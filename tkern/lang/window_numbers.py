"""The numbers of windows over images in a kernel: one argument, its two axes, and the order of floats."""

import math

import taichi as ti

from tkern.lang.macros import handle, macro
from tkern.lang.windows import NAMES

Numbers = ti.types.struct(
    rows=ti.i32,
    skip_at=ti.i32,
    skip=ti.i32,
    planes=ti.i32,
    **{f"{name}_{axis}": ti.i32 for axis in "hw" for name in NAMES},
)
# Those of them that a kernel needs whose geometry is compiled in: fewer take less time to hand over.
FewNumbers = ti.types.struct(rows=ti.i32, size_h=ti.i32, windows_h=ti.i32, size_w=ti.i32, windows_w=ti.i32)
OFFSETS = {"uint8": ti.u8, "int32": ti.i32}

# Below the order of every float.
LEAST = -(2**31)
_NAN = 0x7F800001


@ti.func
def order_of(bits):
    """Return the order of floats by their ``bits`` (i32, one or a vector): −0 is 0, NaN above infinity."""
    size = bits & 0x7FFFFFFF
    order = ti.select(bits < 0, -size, size)
    return ti.select(size > 0x7F800000, _NAN, order)


@ti.func
def is_nan_order(order):
    """Return whether an order is that of NaN."""
    return order == _NAN


@handle
class Axis:
    """One axis of the geometry, its numbers run-time values, or Python's where they are compiled in."""

    def __init__(self, n, axis, fixed):
        for name in NAMES if fixed is None else ("size", "windows"):
            setattr(self, name, getattr(n, f"{name}_{axis}"))
        if fixed is not None:
            self.kernel, self.stride, self.pad, self.dilation = fixed
            self.common = math.gcd(self.stride, self.dilation)
            self.step, self.back = self.stride // self.common, self.dilation // self.common
            self.inverse = pow(self.back, -1, self.step)

    @ti.func
    def covering(self, cell, more):
        """Return (place, window, count): the cell is ``place`` + a·step of window ``window`` − a·back, a < count.

        All of them are real: place + a·step < kernel, 0 ≤ window − a·back < windows. For ``more`` further cells, a
        stride apart, each window is one further; left out is then what is real for none of them.
        """
        # Divisions of numbers that are not negative, or exact: those of C, which take half the time of Python's.
        at = cell + self.pad
        within = ti.raw_div(at, self.common)
        place = ti.raw_mod(ti.raw_mod(within, self.step) * self.inverse, self.step)
        window = 0
        count = 0
        if within * self.common == at and place < self.kernel:
            window = ti.raw_div(at - place * self.dilation, self.stride)
            # Windows past the last one are left out.
            skip = ti.raw_div(ti.max(0, window - self.windows + self.back), self.back)
            place += skip * self.step
            window -= skip * self.back
            if window + more >= 0 and place < self.kernel:
                least = ti.raw_div(self.kernel - 1 - place, self.step)
                count = ti.min(least, ti.raw_div(window + more, self.back)) + 1
        return place, window, count

    @ti.func
    def real(self, window):
        """Return (first, last): places ``first`` up to ``last`` − 1 of a window are cells of the image."""
        begin = window * self.stride - self.pad
        first = ti.raw_div(ti.max(0, -begin) + (self.dilation - 1), self.dilation)
        last = ti.min(self.kernel, ti.raw_div(self.size - begin + (self.dilation - 1), self.dilation))
        return first, last


@ti.func
def row_index(n: ti.template(), step):
    """Return the index of a launch's row: ``skip`` rows are left out from ``skip_at`` on."""
    return step + ti.select(step >= n.skip_at, n.skip, 0)


@handle
class Given:
    """Arguments of a kernel under their names, as one object."""

    def __init__(self, **arguments):
        for name, value in arguments.items():
            setattr(self, name, value)


@macro
def given(**arguments):
    """Return arguments of a kernel under their names, as one object."""
    return Given(**arguments)
