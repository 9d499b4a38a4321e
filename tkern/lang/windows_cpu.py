"""The words of :mod:`tkern.lang.windows` on a CPU: a program is a task, its one lane works on 16 windows side by side.

16 neighbouring windows are 16 neighbours in the arrays of windows, and at one place in each of them stand cells that
are ``stride`` apart. So the cells of a row are taken by their place r in their block of ``stride`` cells: those of 16
blocks lie under 16 neighbouring windows, shifted by a number that depends on r and the place in the window alone. Where
the geometry is compiled in, a group is 16 blocks whole, ``stride`` vectors, which are interleaved and written as one.

A window that is shifted past the end of its row is, in memory, one of another row. Where windows reach as far as the
image (``whole``: windows·stride ≥ size, on both axes) such a one needs no mask: its largest cell is real in its own
image, so it stands at least a row's length away from the cell in question. Then a block's rows are taken together, every
place of the window is written out, and each window is read once for all cells of its block; and where windows are one
cell apart and as many as cells, an image is one long row. Else what lies past a row's end is masked, and the rows of
windows over a row of cells are walked.

Rows where a vector could reach past the ends of an array are not for these words (see ``plan_cells``).
"""

import taichi as ti
from taichi.lang import impl

from tkern.lang.macros import builder, handle, macro, value, variable
from tkern.lang.rows_cpu import WIDTH, Vector, load, load_scalar, store, store_scalar
from tkern.lang.window_numbers import LEAST, OFFSETS, Axis, Numbers, order_of, row_index

Ints = ti.types.vector(WIDTH, ti.i32)


@macro
def _lanes(f):
    """Return a vector of ``f(k)``."""
    return variable(ti.Vector([f(k) for k in range(WIDTH)]))


@macro
def _lane(v, k):
    return impl.subscript(builder(), v, k)


@macro
def _load_ints(a, at):
    return _lanes(lambda k: ti.cast(_element(a, at, k), ti.i32))


@macro
def _element(a, at, k):
    return _lane(impl.subscript(builder(), a, at >> 4), (at & (WIDTH - 1)) + k)


@macro
def _bits(v):
    return _lanes(lambda k: ti.bit_cast(_lane(v, k), ti.i32))


@macro
def _lane_numbers():
    return variable(Ints(list(range(WIDTH))))


@ti.func
def _spread(a: ti.template(), at, stride: ti.template()):
    """Return 16 floats from ``at`` on, ``stride`` apart."""
    v = Vector(0.0)
    if ti.static(isinstance(stride, int) and stride == 1):
        v = load(a, at)
    elif ti.static(isinstance(stride, int) and stride == 2):
        # Two loads that reach no further than the last float.
        low, high = load(a, at), load(a, at + (WIDTH - 1))
        v = _even(low, high)
    else:
        for k in ti.static(range(WIDTH)):
            v[k] = load_scalar(a, at + k * stride)
    return v


@ti.func
def _taken(v, k):
    """Return lane ``k`` of a vector, known only when the kernel runs."""
    return ti.select(_lane_numbers() == k, v, 0).sum()


@ti.func
def store_first(a: ti.template(), at, count, v):
    """Write the first ``count`` floats of ``v``, none where ``count`` is not above 0."""
    for k in range(ti.min(count, WIDTH)):
        store_scalar(a, at + k, _taken(v, k))


@macro
def _even(low, high):
    return _lanes(lambda k: _lane(low, 2 * k) if k < WIDTH // 2 else _lane(high, 2 * k - (WIDTH - 1)))


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

    def __init__(self, fixed, whole, long, dtype):
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
        row = _BlockRow if self.words.whole else _CellRow
        return row(self, value(row_index(self.n, self.first() + step)))

    @macro
    def window_row(self, step):
        return _WindowRow(self, value(row_index(self.n, self.first() + step)))


@handle
class _CellRow:
    def __init__(self, program, index):
        h, w = program.h, program.w
        self.program = program
        self.plane = value(ti.raw_div(index, h.size))
        self.start = value(index * w.size)
        place, window, count = h.covering(index - self.plane * h.size, 0)
        self.place, self.window, self.windows = value(place), value(window), value(count)
        self.blocks = value((w.size + (w.stride - 1)) // w.stride)
        self.across = value((self.blocks + (WIDTH - 1)) >> 4)
        # Where the geometry is not compiled in, a group has one place r in 16 blocks.
        self.steps = self.across if program.words.fixed is not None else value(self.across * ti.min(w.stride, w.size))

    @macro
    def cells(self, b):
        return _FixedCells(self, b) if self.program.words.fixed is not None else _Cells(self, b)

    @macro
    def window_row(self, a):
        """Return (start, offset) of the a-th row of windows: its start in arrays, the offset of its first column."""
        h, w = self.program.h, self.program.w
        window = value(self.window - a * h.back)
        start = value((self.plane * h.windows + window) * w.windows)
        return start, value((self.place + a * h.step) * w.kernel)


@handle
class _Total:
    def __init__(self, count):
        self.parts = [variable(Vector(0.0)) for _ in range(count)]


@macro
def _add(total, part, v):
    total.parts[part]._assign(total.parts[part] + v)


@handle
class _BlockRow:
    """A row of blocks: ``stride`` rows of cells."""

    windows = 1

    def __init__(self, program, index):
        h, w = program.h, program.w
        self.program = program
        self.index = index
        if program.words.long:
            self.length = value(h.size * w.size)
            self.start = self.begin = value(index * self.length)
            self.rows = 1
        else:
            blocks = value(ti.raw_div(h.size + (h.stride - 1), h.stride))
            plane = value(ti.raw_div(index, blocks))
            block = value(index - plane * blocks)
            self.length = w.size
            self.rows = value(ti.min(h.stride, h.size - block * h.stride))
            self.start = value((plane * h.size + block * h.stride) * w.size)
            self.begin = value((plane * h.windows + block) * w.windows)
        self.blocks = value(ti.raw_div(self.length + (w.stride - 1), w.stride))
        self.steps = value((self.blocks + (WIDTH - 1)) >> 4)

    @macro
    def cells(self, b):
        return _BlockCells(self, b)


@macro
def _places(fixed):
    """Return, for each place in the window, where it is in the block and by how many windows that is shifted."""
    kernel, stride, pad, dilation = fixed
    return [((i * dilation - pad) % stride, (i * dilation - pad) // stride) for i in range(kernel)]


@handle
class _BlockCells:
    """16 blocks whole, the last of a row beginning 16 blocks before its end."""

    windows = 1

    def __init__(self, row, b):
        self.row = row
        self.block = value(ti.max(ti.min(b * WIDTH, row.blocks - WIDTH), 0))
        self.strides = [axis[1] for axis in row.program.words.fixed]

    @macro
    def zero(self):
        return _Total(self.strides[0] * self.strides[1])

    @macro
    def sum(self, total, a, c, f, given):
        places_h, places_w = (_places(axis) for axis in self.row.program.words.fixed)
        first = value(self.row.begin + self.block)
        rows = {shift: value(first - shift * self.row.program.w.windows) for _, shift in places_h}
        for i, (r_h, shift_h) in enumerate(places_h):
            for j, (r_w, shift_w) in enumerate(places_w):
                over = _Block(value(rows[shift_h] - shift_w), i * len(places_w) + j)
                _add(total, r_h * self.strides[1] + r_w, f(over, given))

    @ti.func
    def put(self, dx: ti.template(), total: ti.template()):
        cell = self.block * self.strides[1]
        left = self.row.length - cell
        for r in ti.static(range(self.strides[0])):
            if r < self.row.rows:
                to = self.row.start + r * self.row.length + cell
                if left >= self.strides[1] * WIDTH:
                    for q in ti.static(range(self.strides[1])):
                        store(dx, to + q * WIDTH, self.interleaved(total, r, q))
                else:
                    for q in ti.static(range(self.strides[1])):
                        store_first(dx, to + q * WIDTH, left - q * WIDTH, self.interleaved(total, r, q))

    @macro
    def interleaved(self, total, r, q):
        s = self.strides[1]
        return _interleaved(total.parts[r * s : r * s + s], q)


@macro
def _interleaved(parts, q):
    """Return the q-th 16 of: the first lane of each part, the second of each, and so on."""
    s = len(parts)
    if s == 1:
        return parts[0]
    return _lanes(lambda k: _lane(parts[(q * WIDTH + k) % s], (q * WIDTH + k) // s))


@handle
class _Block:
    """16 windows from ``at`` on, over cells that are at place ``offset`` of them."""

    def __init__(self, at, offset):
        self.at = at
        self.offset = offset

    @macro
    def index(self, a):
        return _load_ints(a, self.at)

    @macro
    def value(self, a):
        return load(a, self.at)

    @macro
    def where(self, condition, v):
        return ti.select(condition, v, variable(Vector(0.0)))


@handle
class _FixedCells:
    """16 blocks of ``stride`` cells, the last of a row beginning 16 blocks before its end."""

    windows = 1

    def __init__(self, row, b):
        self.stride = row.program.words.fixed[1][1]
        self.row = row
        self.block = value(ti.max(ti.min(b * WIDTH, row.blocks - WIDTH), 0))
        self.places = _places(row.program.words.fixed[1])

    @macro
    def zero(self):
        return _Total(self.stride)

    @macro
    def sum(self, total, a, c, f, given):
        start, offset = self.row.window_row(a)
        for j, (r, shift) in enumerate(self.places):
            over = _Over(self.row, start, value(self.block - shift), value(offset + j))
            _add(total, r, f(over, given))

    @ti.func
    def put(self, dx: ti.template(), total: ti.template()):
        cell = self.block * self.stride
        left = self.row.program.w.size - cell
        to = self.row.start + cell
        if left >= self.stride * WIDTH:
            for q in ti.static(range(self.stride)):
                store(dx, to + q * WIDTH, self.interleaved(total, q))
        else:
            for q in ti.static(range(self.stride)):
                store_first(dx, to + q * WIDTH, left - q * WIDTH, self.interleaved(total, q))

    @macro
    def interleaved(self, total, q):
        return _interleaved(total.parts, q)


@handle
class _Cells:
    """The cells at place r of 16 blocks."""

    def __init__(self, row, b):
        w = row.program.w
        r = value(b // row.across)
        self.row = row
        self.cell = value((b - r * row.across) * WIDTH * w.stride + r)
        self.place, self.window, self.windows = (value(n) for n in w.covering(self.cell, WIDTH - 1))

    @macro
    def zero(self):
        return _Total(1)

    @macro
    def sum(self, total, a, c, f, given):
        w = self.row.program.w
        start, offset = self.row.window_row(a)
        over = _Over(self.row, start, value(self.window - c * w.back), value(offset + self.place + c * w.step))
        _add(total, 0, f(over, given))

    @ti.func
    def put(self, dx: ti.template(), total: ti.template()):
        w = self.row.program.w
        for k in range(ti.min(WIDTH, ti.raw_div(w.size - self.cell + (w.stride - 1), w.stride))):
            store_scalar(dx, self.row.start + self.cell + k * w.stride, _taken(total.parts[0], k))


@handle
class _Over:
    """16 windows over 16 cells: those from ``first`` on of the row at ``start``; one past its ends has offset −1."""

    def __init__(self, row, start, first, offset):
        self.row = row
        self.first = first
        self.at = value(start + first)
        self.offset = offset

    @macro
    def index(self, a):
        index = _load_ints(a, self.at)
        lanes = _lane_numbers()
        there = (lanes >= -self.first) & (lanes < self.row.program.w.windows - self.first)
        return variable(ti.select(there, index, variable(Ints(-1))))

    @macro
    def value(self, a):
        return load(a, self.at)

    @macro
    def where(self, condition, v):
        return ti.select(condition, v, variable(Vector(0.0)))


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
                _element(a, self.at, k)._assign(ti.cast(v[k], self.row.program.words.dtype))
        else:
            for k in range(self.count):
                store_scalar(a, self.at + k, ti.cast(_taken(v, k), self.row.program.words.dtype))


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
        return _spread(x, value(self.line + self.col), self.w.stride)

    @ti.func
    def order(self, v):
        lanes = _lane_numbers()
        return ti.select((lanes >= self.first) & (lanes < self.last), order_of(_bits(v)), LEAST)
