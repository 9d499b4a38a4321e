"""The words of :mod:`tkern.lang.rows` on a CPU: a program is a task, its one lane works on 16-wide vectors.

An array is handed over as one of 16-vectors, but only single floats of it are ever read and written: LLVM gathers
sixteen neighbours into one unaligned vector access, so a row may start at any float. (A load of a whole vector would
need a 64-byte boundary, and end the process off one.) The index of an element within its vector is formed as
``(at & 15) + k``, which cannot overflow and so is seen to be consecutive.
"""

import taichi as ti
from taichi.lang import impl

from tkern.lang.macros import builder, handle, macro, value, variable
from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.safe import LOWEST, vector_exp

_SHIFT = WIDTH.bit_length() - 1
Vector = ti.types.vector(WIDTH, ti.f32)


@macro
def _float(a, vector, k):
    return impl.subscript(builder(), impl.subscript(builder(), a, vector), k)


@macro
def load(a, at):
    """Return the 16 floats of ``a`` from float ``at`` on, which may be any."""
    vector, first = value(at >> _SHIFT), value(at & (WIDTH - 1))
    return variable(ti.Vector([_float(a, vector, first + k) for k in range(WIDTH)]))


@macro
def store(a, at, v):
    """Write 16 floats to ``a`` from float ``at`` on."""
    vector, first = value(at >> _SHIFT), value(at & (WIDTH - 1))
    for k in range(WIDTH):
        _float(a, vector, first + k)._assign(impl.subscript(builder(), v, k))


@macro
def load_scalar(a, at):
    """Return float ``at`` of ``a``."""
    return value(_float(a, at >> _SHIFT, at & (WIDTH - 1)))


@macro
def store_scalar(a, at, v):
    """Write float ``at`` of ``a``."""
    _float(a, at >> _SHIFT, at & (WIDTH - 1))._assign(v)


@ti.func
def load_some(a: ti.template(), at, count):
    """Return the first ``count`` ≥ 1 floats from ``at`` on, then zeros, reading no float past them."""
    v = Vector(0.0)
    for k in ti.static(range(WIDTH)):
        inside = ti.min(k, count - 1)
        v[k] = ti.select(k < count, load_scalar(a, at + inside), 0.0)
    return v


@ti.func
def store_some(a: ti.template(), at, count, v):
    """Write the first ``count`` floats of ``v``."""
    for k in ti.static(range(WIDTH)):
        if k < count:
            store_scalar(a, at + k, v[k])


@ti.func
def tree_sum(v):
    """Return the sum of 16 floats as a halving tree: lane k takes lane k + 8, then 4, 2, 1."""
    eight = ti.Vector([v[k] + v[k + 8] for k in range(8)])
    four = ti.Vector([eight[k] + eight[k + 4] for k in range(4)])
    return (four[0] + four[2]) + (four[1] + four[3])


@ti.func
def tree_max(v):
    """Return the largest of 16 floats that are no NaN."""
    most = v[0]
    for k in ti.static(range(1, WIDTH)):
        most = ti.select(v[k] > most, v[k], most)
    return most


@handle
class CpuRows:
    """Words for one task per program. ``exact``: every row is a whole number of vectors, so no load is masked."""

    Array = ti.types.ndarray(dtype=Vector, ndim=1)
    Integers = ti.types.ndarray(dtype=ti.types.vector(WIDTH, ti.i32), ndim=1)
    lanes = 1
    steps_unrolled = 1

    def __init__(self, exact: bool):
        self.exact = exact
        # Whole vectors, then the one that is not: a loop without a branch for all but the last.
        self.parts = 1 if exact else 2
        self.key = ("cpu", exact)

    @macro
    def threads(self, programs):
        return programs

    @macro
    def total(self):
        return _Total()

    @macro
    def largest(self):
        return _Largest()

    @macro
    def exp(self, x):
        return vector_exp(x, WIDTH)

    @macro
    def zero(self):
        return Vector(0.0)

    @macro
    def program(self, i, programs):
        return _Program(self, i, programs)


@handle
class _Program:
    def __init__(self, rows, i, programs):
        self.rows = rows
        self.id = i
        self.programs = programs
        self.sums = []

    # A program owns neighbouring rows, so that memory is walked in one direction. The first rows % programs programs
    # have one row more.
    @ti.func
    def first(self, rows):
        return self.id * (rows // self.programs) + ti.min(self.id, rows % self.programs)

    @ti.func
    def steps(self, rows):
        return rows // self.programs + ti.cast(self.id < rows % self.programs, ti.i32)

    @macro
    def row(self, step, rows, cols):
        for sums in self.sums:
            sums.set_aside(step, rows // self.programs)
        return _Row(self.rows, value(self.first(rows) + step), cols)

    @macro
    def shared_row(self, a, cols):
        return _Line(self.rows, a, 0, cols)

    @macro
    def column_sums(self, partial, cols):
        sums = _ColumnSums(partial, self.id, cols)
        sums.clear()
        self.sums.append(sums)
        return sums


# What is known of a column's 16 places when a kernel is compiled: all are in the row, not all are, or nothing.
_WHOLE, _NOT_WHOLE, _EITHER = 2, 1, 0


@handle
class _Column:
    def __init__(self, index, known):
        self.index = index
        self.known = known


@handle
class _Total:
    """A sum along a row, of 16 lanes. Every 64 vectors the sum so far is set aside, so that a row of 100000 elements
    is summed over chains of about 80, not 6250: the error of a sum grows with the length of its chain."""

    def __init__(self):
        self.early = variable(Vector(0.0))
        self.late = variable(Vector(0.0))

    @ti.func
    def add(self, column, v):
        self.late += v
        if column.index & (64 * WIDTH - 1) == 63 * WIDTH:
            self.early += self.late
            self.late = Vector(0.0)


@handle
class _Largest:
    """The largest so far, of 16 lanes; by comparison, which is one instruction where ``ti.max`` is three."""

    def __init__(self):
        self.value = variable(Vector(LOWEST))

    @ti.func
    def add(self, column, v):
        self.value = ti.select(v > self.value, v, self.value)


@handle
class _Row:
    def __init__(self, rows, index, cols):
        self.rows = rows
        self.index = index
        self.cols = cols
        self.start = value(index * cols)
        self.steps = value((cols + (WIDTH - 1)) >> _SHIFT)

    @macro
    def begin(self, part):
        return 0 if part == 0 else value(self.cols >> _SHIFT)

    @macro
    def end(self, part):
        return self.steps if part == self.rows.parts - 1 else value(self.cols >> _SHIFT)

    @macro
    def column(self, b, k, part=None):
        known = _EITHER if part is None else _WHOLE if part == 0 else _NOT_WHOLE
        return _Column(value(b * WIDTH), _WHOLE if self.rows.exact else known)

    @macro
    def read(self, a):
        return _Line(self.rows, a, self.start, self.cols)

    @macro
    def store(self, a, column, v):
        _Line(self.rows, a, self.start, self.cols).put(column, v)

    @ti.func
    def sum(self, total):
        return tree_sum(total.early + total.late)

    @ti.func
    def sum2(self, one, other):
        return self.sum(one), self.sum(other)

    @ti.func
    def max(self, largest):
        return tree_max(largest.value)

    @ti.func
    def only(self, column, v, otherwise):
        w = v
        if ti.static(column.known != _WHOLE):
            places = ti.Vector([column.index + k for k in range(WIDTH)])
            w = ti.select(places < self.cols, v, otherwise)
        return w

    @ti.func
    def add_at(self, a: ti.template(), index, v):
        store_scalar(a, self.start + index, load_scalar(a, self.start + index) + v)

    @ti.func
    def load_scalar(self, a: ti.template()):
        return load_scalar(a, self.index)

    @ti.func
    def store_scalar(self, a: ti.template(), v):
        store_scalar(a, self.index, v)


@handle
class _Line:
    """``cols`` floats of ``a`` from ``start`` on."""

    def __init__(self, rows, a, start, cols):
        self.rows = rows
        self.a = a
        self.start = start
        self.cols = cols

    @ti.func
    def at(self, column):
        v = Vector(0.0)
        if ti.static(column.known == _WHOLE):
            v = load(self.a, self.start + column.index)
        elif ti.static(column.known == _NOT_WHOLE):
            v = load_some(self.a, self.start + column.index, self.cols - column.index)
        else:
            if column.index + WIDTH <= self.cols:
                v = load(self.a, self.start + column.index)
            else:
                v = load_some(self.a, self.start + column.index, self.cols - column.index)
        return v

    @ti.func
    def put(self, column, v):
        if ti.static(column.known == _WHOLE):
            store(self.a, self.start + column.index, v)
        elif ti.static(column.known == _NOT_WHOLE):
            store_some(self.a, self.start + column.index, self.cols - column.index, v)
        else:
            if column.index + WIDTH <= self.cols:
                store(self.a, self.start + column.index, v)
            else:
                store_some(self.a, self.start + column.index, self.cols - column.index, v)


@handle
class _ColumnSums:
    """Two private rows of the program in ``partial``, padded to whole vectors.

    Sums are made in the second row and added to the first every 8 rows, or every 64 of many, for the reason
    that _Total gives: the chains are then about as long as the square root of the number of rows.
    """

    def __init__(self, partial, program, cols):
        self.partial = partial
        self.vectors = value((cols + (WIDTH - 1)) >> _SHIFT)
        self.early = value(2 * program * self.vectors * WIDTH)
        self.late = value(self.early + self.vectors * WIDTH)

    @ti.func
    def clear(self):
        for b in range(2 * self.vectors):
            store(self.partial, self.early + b * WIDTH, Vector(0.0))

    @ti.func
    def set_aside(self, step, rows):
        if step > 0 and step & ti.select(rows < 256, 7, 63) == 0:
            self.finish()

    @ti.func
    def add(self, column, v):
        at = self.late + column.index
        store(self.partial, at, load(self.partial, at) + v)

    @ti.func
    def finish(self):
        for b in range(self.vectors):
            early, late = self.early + b * WIDTH, self.late + b * WIDTH
            store(self.partial, early, load(self.partial, early) + load(self.partial, late))
            store(self.partial, late, Vector(0.0))
