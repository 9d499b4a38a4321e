"""The words of :mod:`tkern.lang.tiles` on a GPU: a lane is a program with tiles of one query and one key.

Operands are read where they are, through the caches, and a sum of many columns is kept in the memory it is made for;
a lane owns the rows it writes, so there are neither barriers nor atomics.
"""

import taichi as ti

from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.rows_gpu import element, put

# Steps of a loop written out. It lets loads overlap, and a device in software (Mesa's) ends a lane's loops, silently,
# after 65535 steps in all: see LOOP_LIMIT.
_UNROLLED = 8
LOOP_LIMIT = 65535


@handle
class GpuTiles:
    """Words for one lane per program."""

    Array = ti.types.ndarray(dtype=ti.f32)
    lanes = 64
    queries = 1
    keys = 1
    rows_each = 1
    one_pass = False
    packs = False
    key = ("gpu tiles",)

    @macro
    def threads(self, programs):
        return programs

    @macro
    def program(self, i, space, size):
        return _Program(i)

    @macro
    def scalar(self, a, at):
        return value(element(a, at))

    @macro
    def put_scalar(self, a, at, v):
        put(a, at, v)

    @macro
    def some(self, a, at, count):
        return value(element(a, at))

    @macro
    def exp(self, x):
        return ti.exp(x)

    @macro
    def all(self, x):
        return ti.cast(x, ti.f32)

    @ti.func
    def fill(self, a: ti.template(), start, count, number):
        for step in range((count + (_UNROLLED - 1)) // _UNROLLED):
            for u in ti.static(range(_UNROLLED)):
                c = step * _UNROLLED + u
                if c < count:
                    put(a, start + c, number)

    @ti.func
    def dot(self, a: ti.template(), a_at, b: ti.template(), b_at, count):
        return _dot(a, a_at, b, b_at, count)


@handle
class _Program:
    def __init__(self, i):
        self.id = i

    @macro
    def tile(self, rows, cols):
        return Tile()

    @macro
    def packed(self, rows, cols):
        """Return an operand where it is: nothing is packed here."""
        return Tile()

    @macro
    def packed_sums(self, rows, cols, out):
        return _Sums(out)

    @macro
    def right(self, operand, cols):
        return Tile()

    @macro
    def sums(self, rows, cols, out):
        return _Sums(out)

    @macro
    def folded(self, rows, cols):
        return Folded()

    @macro
    def running(self, rows):
        return _Running()


@handle
class Columns:
    """The one column of a score."""

    def __init__(self, first):
        self.first = first
        self.last = first
        self.each = first


@handle
class Tile:
    """A row of an array, or one number; 0 where it was hidden."""

    def __init__(self):
        self.start = variable(0)
        self.hidden = variable(0)
        self.number = variable(0.0)
        self.a = None
        self.source = None

    @macro
    def load(self, a, start, stride, skip, count, cols):
        self.a = a
        _begin_row(self, start, skip > 0, count < 1)

    @macro
    def hide(self, seen, start, count):
        self.hidden._assign(self.hidden | ti.cast(element(seen, start) == 0.0, ti.i32))

    @macro
    def turn(self, other):
        self.source = other

    @ti.func
    def along(self, a: ti.template(), b: ti.template(), depth, band: ti.template()):
        self.number = _dot_rows(a, b.source, depth)

    @ti.func
    def weigh(self, f: ti.template(), first_row, rows, first_column):
        row = f.row(first_row)
        self.number = f.weight(row, Columns(first_column), self.number)

    @ti.func
    def differentiate(self, grads: ti.template(), f: ti.template(), first_row, rows, first_column):
        row = f.row(first_row)
        columns = Columns(first_column)
        p, ds = f.weight_and_gradient(row, columns, self.number, grads.number)
        self.number = p
        grads.number = ds

    @ti.func
    def bias_gradients(self, scores: ti.template(), f: ti.template(), first_row, rows, first_column):
        row = f.row(first_row)
        self.number = f.bias_gradient(row, Columns(first_column), scores.number, self.number)


@handle
class Folded:
    """The sum of many scores."""

    def __init__(self):
        self.number = variable(0.0)

    @macro
    def begin(self):
        self.number._assign(0.0)

    @macro
    def fold(self, other, rows, columns):
        self.number._assign(self.number + other.number)

    @macro
    def write(self, a, start, stride, rows, cols):
        put(a, start, self.number)


@macro
def _begin_row(tile, start, before, past):
    tile.start._assign(start)
    tile.hidden._assign(ti.cast(before, ti.i32) | ti.cast(past, ti.i32))


@ti.func
def _dot_rows(a: ti.template(), b: ti.template(), depth):
    total = 0.0
    if a.hidden == 0 and b.hidden == 0:
        total = _dot(a.a, a.start, b.a, b.start, depth)
    return total


@ti.func
def _dot(a: ti.template(), a_at, b: ti.template(), b_at, count):
    total = 0.0
    for step in range((count + (_UNROLLED - 1)) // _UNROLLED):
        for u in ti.static(range(_UNROLLED)):
            c = ti.min(step * _UNROLLED + u, count - 1)
            product = element(a, a_at + c) * element(b, b_at + c)
            total += ti.select(step * _UNROLLED + u < count, product, 0.0)
    return total


@ti.func
def _add_multiple(a: ti.template(), a_at, number, b: ti.template(), b_at, count):
    """Add ``number`` times ``count`` floats of ``b`` to those of ``a``."""
    for step in range((count + (_UNROLLED - 1)) // _UNROLLED):
        for u in ti.static(range(_UNROLLED)):
            c = step * _UNROLLED + u
            if c < count:
                put(a, a_at + c, element(a, a_at + c) + number * element(b, b_at + c))


@handle
class _Sums:
    """A row of an output, which the lane owns."""

    def __init__(self, out):
        self.out = out

    @ti.func
    def clear(self, start, stride, count, cols):
        for step in range((cols + (_UNROLLED - 1)) // _UNROLLED):
            for u in ti.static(range(_UNROLLED)):
                c = step * _UNROLLED + u
                if c < cols:
                    put(self.out, start + c, 0.0)

    @ti.func
    def add_across(self, scores: ti.template(), b: ti.template(), start, stride, count, cols, band: ti.template()):
        # Not "!= 0", which is false of a NaN on every backend.
        if (scores.number == 0.0) == 0 and b.hidden == 0:
            _add_multiple(self.out, start, scores.number, b.a, b.start, cols)

    @ti.func
    def add_down(self, scores: ti.template(), b: ti.template(), start, stride, count, cols, band: ti.template()):
        # Not "!= 0", which is false of a NaN on every backend.
        if (scores.number == 0.0) == 0 and b.hidden == 0:
            _add_multiple(self.out, start, scores.number, b.a, b.start, cols)

    @macro
    def save(self, a, start, stride, count, cols):
        """Nothing is left to do: the sum was kept where it belongs."""


@handle
class _Running:
    def __init__(self):
        self.most = variable(0.0)
        self.sum = variable(0.0)

    @macro
    def begin(self, lowest):
        self.most._assign(lowest)
        self.sum._assign(0.0)

    @ti.func
    def follow(self, scores: ti.template(), f: ti.template(), first_row, rows, first_column):
        row = f.row(first_row)
        x = f.score(row, Columns(first_column), scores.number)
        more = ti.max(self.most, x)
        self.sum = self.sum * ti.exp(self.most - more) + f.counted(x, more)
        self.most = more

    @macro
    def total(self, r):
        return self.most, self.sum
