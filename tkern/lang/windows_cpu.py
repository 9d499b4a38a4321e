"""The words of :mod:`tkern.lang.windows` on a CPU: a program is a task, its one lane works on 16 windows side by side.

16 neighbouring windows are 16 neighbours in the arrays of windows, and at one place in each of them stand cells that
are ``stride`` apart. So the cells of a row are taken by their place r in their block of ``stride`` cells: those of 16
blocks lie under 16 neighbouring windows, shifted by a number that depends on r and the place in the window alone. Where
the geometry is compiled in, a group is 16 blocks whole, ``stride`` vectors, which are interleaved and written as one.

Rows where a vector could reach past the ends of an array are not for these words (see ``plan_cells``).
"""

import taichi as ti

from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.rows_cpu import WIDTH, Vector, load, store, store_scalar
from tkern.lang.window_cells_cpu import BlockRow, CellRow
from tkern.lang.window_numbers import LEAST, OFFSETS, Axis, Numbers, order_of, row_index
from tkern.lang.window_vectors import (
    Ints,
    bits,
    element,
    interleaved,
    lane_numbers,
    spread,
    store_first,
    taken,
)


@handle
class CpuWindows:
    """Words for one task per program.

    ``fixed`` is (kernel, stride, pad, dilation) of both axes where they are compiled in; ``whole`` then says
    whether windows reach as far as the image, ``long`` whether an image is one long row.
    """

    Array = ti.types.ndarray(dtype=Vector, ndim=1)
    Moves = ti.types.ndarray(dtype=Ints, ndim=1)
    Numbers = Numbers
    lanes = 1

    def __init__(self, fixed, whole: bool, long: bool, dtype: str):
        self.Offsets = ti.types.ndarray(dtype=ti.types.vector(WIDTH, OFFSETS[dtype]), ndim=1)
        self.dtype = OFFSETS[dtype]
        self.fixed = fixed
        self.whole = whole
        self.long = long
        self.key = ("cpu windows", fixed, whole, long, dtype)

    @macro
    def threads(self, programs):
        return programs

    @macro
    def program(self, i, programs, n):
        return _Program(self, i, programs, n)


@handle
class _Program:
    def __init__(self, words, i, programs, n):
        self.words = words
        self.id = i
        self.programs = programs
        self.n = n
        self.h = Axis(n, "h", words.fixed and words.fixed[0])
        self.w = Axis(n, "w", words.fixed and words.fixed[1])

    # A program owns neighbouring rows, so that memory is walked in one direction. The first rows % programs programs
    # have one row more.
    @ti.func
    def first(self):
        rows = self.n.rows
        return self.id * (rows // self.programs) + ti.min(self.id, rows % self.programs)

    @ti.func
    def steps(self, rows):
        return rows // self.programs + ti.cast(self.id < rows % self.programs, ti.i32)

    @macro
    def cell_row(self, step):
        row = BlockRow if self.words.whole else CellRow
        return row(self, value(row_index(self.n, self.first() + step)))

    @macro
    def window_row(self, step):
        return _WindowRow(self, value(row_index(self.n, self.first() + step)))


@handle
class _WindowRow:
    def __init__(self, program, index):
        h, w = program.h, program.w
        self.program = program
        self.plane = value(ti.raw_div(index, h.windows))
        self.window = value(index - self.plane * h.windows)
        self.start = value(index * w.windows)
        self.steps = value((w.windows + (WIDTH - 1)) >> 4)
        first, last = h.real(self.window)
        self.first, self.last = value(first), value(last)

    @macro
    def windows(self, b):
        return _Windows(self, b)


@handle
class _Windows:
    """16 windows of a row, the last ones ending where it does; fewer where the row is shorter."""

    def __init__(self, row, b):
        h, w = row.program.h, row.program.w
        self.row = row
        self.window = value(ti.max(ti.min(b * WIDTH, w.windows - WIDTH), 0))
        self.count = value(ti.min(w.windows, WIDTH))
        self.at = value(row.start + self.window)
        self.line = value((row.plane * h.size + row.window * h.stride - h.pad) * w.size)
        self.col = value(self.window * w.stride - w.pad)
        self.first, self.last = 0, w.kernel

    @macro
    def least(self):
        return variable(Ints(LEAST))

    @macro
    def nothing(self):
        return variable(Vector(0.0))

    @macro
    def nowhere(self):
        return variable(Ints(0))

    @macro
    def cell(self, i, j):
        return _At(self, i, j)

    @macro
    def value(self, a):
        return load(a, self.at)

    @ti.func
    def hand_out(self, dx: ti.template(), f: ti.template(), given: ti.template()):
        h, w = self.row.program.h, self.row.program.w
        # The last window's block reaches to the border.
        rows = ti.select(self.row.window == h.windows - 1, h.size - self.row.window * h.stride, h.stride)
        for i in range(rows):
            to = self.line + i * w.size + self.col
            line = Line(w.stride)
            if i < h.kernel:
                self.hand_out_line(line, i, f, given)
            # In ceil mode the last window may reach past the border.
            cells = ti.min(self.count * w.stride, w.size - self.col)
            if cells == WIDTH * w.stride:
                for q in ti.static(range(w.stride)):
                    store(dx, to + q * WIDTH, interleaved(line.parts, q))
            else:
                for q in ti.static(range(w.stride)):
                    store_first(dx, to + q * WIDTH, cells - q * WIDTH, interleaved(line.parts, q))
            if self.window + self.count == w.windows:
                for k in range(w.windows * w.stride, w.size):
                    store_scalar(dx, self.line + i * w.size + k, 0.0)

    @macro
    def hand_out_line(self, line, i, f, given):
        for j in range(self.row.program.w.kernel):
            line.parts[j]._assign(f(self.cell(i, j), given))

    @ti.func
    def put(self, y: ti.template(), v):
        if self.count == WIDTH:
            store(y, self.at, v)
        else:
            store_first(y, self.at, self.count, v)

    @ti.func
    def put_offsets(self, a: ti.template(), v):
        if self.count == WIDTH:
            for k in ti.static(range(WIDTH)):
                element(a, self.at, k)._assign(ti.cast(v[k], self.row.program.words.dtype))
        else:
            for k in range(self.count):
                store_scalar(a, self.at + k, ti.cast(taken(v, k), self.row.program.words.dtype))


@handle
class _At:
    """The cells at place (i, j) of 16 windows; some may not be real: their order is ``LEAST``."""

    def __init__(self, windows, i, j):
        w, h = windows.row.program.w, windows.row.program.h
        self.w = w
        self.offset = value(i * w.kernel + j)
        self.line = value(windows.line + i * h.dilation * w.size)
        self.col = value(windows.col + j * w.dilation)
        # Lanes from ``first`` up to ``last`` have a real cell.
        self.first = value((ti.max(0, -self.col) + (w.stride - 1)) // w.stride)
        self.last = value(ti.min(WIDTH, (w.size - self.col + (w.stride - 1)) // w.stride))

    @macro
    def value(self, x):
        return spread(x, value(self.line + self.col), self.w.stride)

    @ti.func
    def order(self, v):
        lanes = lane_numbers()
        return ti.select((lanes >= self.first) & (lanes < self.last), order_of(bits(v)), LEAST)

    @macro
    def where(self, condition, v):
        return ti.select(condition, v, variable(Vector(0.0)))


@handle
class Line:
    """16 blocks of a row of cells: a vector for each place in the block, to begin with 0."""

    def __init__(self, stride):
        self.parts = [variable(Vector(0.0)) for _ in range(stride)]
