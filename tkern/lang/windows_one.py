"""The words of :mod:`tkern.lang.windows` for one cell, or one window, at a time.

On a GPU a program is a workgroup, and ``per_row`` neighbouring lanes share a row, so that they read and write
neighbours. On a CPU a program is a task that takes one cell after another: for sums that its vectors have no words for.
"""

import taichi as ti

from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.rows_cpu import Vector, load_scalar, store_scalar
from tkern.lang.rows_gpu import element, put
from tkern.lang.window_numbers import LEAST, OFFSETS, Axis, Numbers, order_of, row_index


@macro
def _order_at(program, x, at):
    return value(order_of(ti.bit_cast(program.words.element(x, at), ti.i32)))


@ti.func
def _order_of_move(program: ti.template(), x: ti.template(), begin, index, moves: ti.template()):
    # A caller's offset may name no cell at all; nothing beyond the arrays is read then.
    h, w = program.h, program.w
    move = program.words.element(moves, ti.max(0, ti.min(index, h.kernel * w.kernel - 1)))
    return _order_at(program, x, ti.max(0, ti.min(begin + move, program.n.planes * h.size * w.size - 1)))


@handle
class GpuWindows:
    """Words for workgroups of ``lanes`` threads, ``per_row`` to a row, ``launched`` of them.

    ``fixed`` is (kernel, stride, pad, dilation) of both axes where they are compiled in.
    """

    Array = ti.types.ndarray(dtype=ti.f32)
    Moves = ti.types.ndarray(dtype=ti.i32)
    Numbers = Numbers

    def __init__(self, lanes: int, per_row: int, launched, fixed, dtype: str):
        self.Offsets = ti.types.ndarray(dtype=OFFSETS[dtype])
        self.dtype = OFFSETS[dtype]
        self.lanes = lanes
        self.per_row = per_row
        self.launched = launched
        self.fixed = fixed
        self.groups = lanes // per_row
        self.lane_bits = lanes.bit_length() - 1
        self.row_bits = per_row.bit_length() - 1
        self.key = ("gpu windows", lanes, per_row, launched, fixed, dtype)

    @macro
    def threads(self, programs):
        return self.launched * self.lanes

    @macro
    def program(self, i, programs, n):
        return _Program(self, i, programs, n)

    @macro
    def element(self, a, at):
        return element(a, at)

    @macro
    def put(self, a, at, v):
        put(a, at, v)


@handle
class CpuCells(GpuWindows):
    """Words for tasks: one lane, one row at a time, arrays as :mod:`tkern.lang.rows_cpu` has them."""

    Array = ti.types.ndarray(dtype=Vector, ndim=1)
    Moves = ti.types.ndarray(dtype=ti.types.vector(16, ti.i32), ndim=1)

    def __init__(self, fixed, dtype: str):
        super().__init__(1, 1, None, fixed, dtype)
        self.Offsets = ti.types.ndarray(dtype=ti.types.vector(16, OFFSETS[dtype]), ndim=1)
        self.key = ("cpu cells", fixed, dtype)

    @macro
    def threads(self, programs):
        return programs

    @macro
    def element(self, a, at):
        return load_scalar(a, at)

    @macro
    def put(self, a, at, v):
        store_scalar(a, at, v)


@handle
class _Program:
    def __init__(self, words, i, programs, n):
        self.words = words
        self.programs = programs
        self.n = n
        self.h = Axis(n, "h", words.fixed and words.fixed[0])
        self.w = Axis(n, "w", words.fixed and words.fixed[1])
        lane = value(i & (words.lanes - 1))
        self.id = value(i >> words.lane_bits)
        self.group = value(lane >> words.row_bits)
        self.place = value(lane & (words.per_row - 1))

    @ti.func
    def steps(self, rows):
        at_once = self.programs * self.words.groups
        return ti.select(self.id < self.programs, (rows + (at_once - 1)) // at_once, 0)

    @ti.func
    def index(self, step):
        return (step * self.programs + self.id) * self.words.groups + self.group

    @macro
    def cell_row(self, step):
        at = value(self.index(step))
        return _CellRow(self, value(row_index(self.n, at)), value(at < self.n.rows))

    @macro
    def window_row(self, step):
        at = value(self.index(step))
        return _WindowRow(self, value(row_index(self.n, at)), value(at < self.n.rows))


@macro
def _steps(program, inside, cols):
    """How many groups of a row there are: none in a row past the end."""
    per_row = program.words.per_row
    return value(ti.select(inside, (cols + (per_row - 1)) // per_row, 0))


@handle
class _CellRow:
    def __init__(self, program, index, inside):
        self.program = program
        self.plane = value(ti.raw_div(index, program.h.size))
        self.start = value(index * program.w.size)
        self.steps = _steps(program, inside, program.w.size)
        place, window, count = program.h.covering(index - self.plane * program.h.size, 0)
        self.place, self.window, self.windows = value(place), value(window), value(count)

    @macro
    def cells(self, b):
        return _Cell(self, value(b * self.program.words.per_row + self.program.place))


@handle
class _Cell:
    def __init__(self, row, col):
        w = row.program.w
        self.row = row
        self.inside = value(col < w.size)
        self.at = value(row.start + ti.min(col, w.size - 1))
        place, window, count = w.covering(col, 0)
        self.place, self.window = value(place), value(window)
        self.windows = value(ti.select(self.inside, count, 0))

    @macro
    def zero(self):
        return _Total()

    @macro
    def sum(self, total, a, c, f, given):
        total.add(f(_Over(self, a, c), given))

    @ti.func
    def put(self, dx: ti.template(), total):
        if self.inside:
            self.row.program.words.put(dx, self.at, total.value)


@handle
class _Total:
    def __init__(self):
        self.value = variable(ti.cast(0.0, ti.f32))

    @ti.func
    def add(self, v):
        self.value += v


@handle
class _Over:
    """The window in row ``a`` and column ``c`` of those over a cell."""

    def __init__(self, cell, a, c):
        row, h, w = cell.row, cell.row.program.h, cell.row.program.w
        self.cell = cell
        self.words = row.program.words
        self.offset = value((row.place + a * h.step) * w.kernel + cell.place + c * w.step)
        self.window_h = value(row.window - a * h.back)
        self.window_w = value(cell.window - c * w.back)
        self.at = value((row.plane * h.windows + self.window_h) * w.windows + self.window_w)

    @macro
    def index(self, a):
        return value(ti.cast(self.words.element(a, self.at), ti.i32))

    @macro
    def value(self, a):
        return value(self.words.element(a, self.at))

    @macro
    def number(self, a):
        return value(ti.cast(self.words.element(a, self.at), ti.f32))

    @macro
    def where(self, condition, v):
        return value(ti.select(condition, v, 0.0))

    @macro
    def mine(self, x):
        return _order_at(self.cell.row.program, x, self.cell.at)

    @macro
    def its(self, x, a, moves):
        program = self.cell.row.program
        begin = _begin(program, self.cell.row.plane, self.window_h, self.window_w)
        return value(_order_of_move(program, x, begin, self.index(a), moves))


@macro
def _begin(program, plane, window_h, window_w):
    """Where the first cell of a window would be, were it real."""
    h, w = program.h, program.w
    return value((plane * h.size + window_h * h.stride - h.pad) * w.size + window_w * w.stride - w.pad)


@handle
class _WindowRow:
    def __init__(self, program, index, inside):
        h, w = program.h, program.w
        self.program = program
        self.plane = value(ti.raw_div(index, h.windows))
        self.window = value(index - self.plane * h.windows)
        self.start = value(index * w.windows)
        self.steps = _steps(program, inside, w.windows)
        first, last = h.real(self.window)
        self.first, self.last = value(first), value(last)

    @macro
    def windows(self, b):
        return _Window(self, value(b * self.program.words.per_row + self.program.place))


@handle
class _Window:
    def __init__(self, row, col):
        w = row.program.w
        self.row = row
        self.inside = value(col < w.windows)
        self.window = value(ti.min(col, w.windows - 1))
        self.at = value(row.start + self.window)
        self.begin = _begin(row.program, row.plane, row.window, self.window)
        first, last = w.real(self.window)
        self.first, self.last = value(first), value(ti.select(self.inside, last, 0))

    @macro
    def least(self):
        return variable(ti.cast(LEAST, ti.i32))

    @macro
    def nothing(self):
        return variable(ti.cast(0.0, ti.f32))

    @macro
    def nowhere(self):
        return variable(ti.cast(0, ti.i32))

    @macro
    def cell(self, i, j):
        return _At(self, i, j)

    @macro
    def order_at(self, x, a, moves):
        index = ti.cast(self.row.program.words.element(a, self.at), ti.i32)
        return value(_order_of_move(self.row.program, x, self.begin, index, moves))

    @macro
    def value(self, a):
        return value(self.row.program.words.element(a, self.at))

    @ti.func
    def hand_out(self, dx: ti.template(), f: ti.template(), given: ti.template()):
        h, w = self.row.program.h, self.row.program.w
        # The last window's block reaches to the border.
        top, left = self.row.window * h.stride, self.window * w.stride
        rows = ti.select(self.row.window == h.windows - 1, h.size - top, h.stride)
        cols = ti.select(self.window == w.windows - 1, w.size - left, w.stride)
        for i in range(ti.select(self.inside, rows, 0)):
            for j in range(cols):
                v = ti.cast(0.0, ti.f32)
                if i < h.kernel and j < w.kernel:
                    v = f(self.cell(i, j), given)
                self.row.program.words.put(dx, self.begin + i * w.size + j, v)

    @ti.func
    def put(self, y: ti.template(), v):
        if self.inside:
            self.row.program.words.put(y, self.at, v)

    @ti.func
    def put_offsets(self, a: ti.template(), v):
        if self.inside:
            self.row.program.words.put(a, self.at, ti.cast(v, self.row.program.words.dtype))


@handle
class _At:
    def __init__(self, window, i, j):
        h, w = window.row.program.h, window.row.program.w
        self.words = window.row.program.words
        self.offset = value(i * w.kernel + j)
        self.at = value(window.begin + i * h.dilation * w.size + j * w.dilation)

    @macro
    def value(self, x):
        return value(self.words.element(x, self.at))

    @macro
    def order(self, v):
        return value(order_of(ti.bit_cast(v, ti.i32)))

    @macro
    def where(self, condition, v):
        return value(ti.select(condition, v, 0.0))
