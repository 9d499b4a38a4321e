"""Rows of cells on a CPU, 16 windows side by side (see :mod:`tkern.lang.windows_cpu`).

A window that is shifted past the end of its row is, in memory, one of another row. Where windows reach as far as the
image (``whole``: windows·stride ≥ size, on both axes) such a one needs no mask: its largest cell is real in its own
image, so it stands at least a row's length away from the cell in question. Then a block's rows are taken together,
every place of the window is written out, and each window is read once for all cells of its block; and where windows
are one cell apart and as many as cells, an image is one long row. Else what lies past a row's end is masked, and the
rows of windows over a row of cells are walked.
"""

import taichi as ti

from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.rows_cpu import WIDTH, Vector, load, store, store_scalar
from tkern.lang.window_vectors import (
    Ints,
    interleaved,
    lane_numbers,
    load_ints,
    load_ints_on,
    load_on,
    store_first,
    taken,
)


@handle
class CellRow:
    """A row of cells, and the rows of windows over it."""

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
class BlockRow:
    """A row of blocks: ``stride`` rows of cells. For geometries that are ``whole``."""

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
        # A sum waits for the one before it: with one vector alone, every fourth row of the window has one of its own.
        self.chains = 4 if self.strides == [1, 1] else 1

    @macro
    def zero(self):
        return _Total(self.strides[0] * self.strides[1] * self.chains)

    @macro
    def sum(self, total, a, c, f, given):
        places_h, places_w = (_places(axis) for axis in self.row.program.words.fixed)
        w = self.row.program.w
        furthest = max(shift for _, shift in places_w)
        first = value(self.row.begin + self.block - furthest)
        # An address is a vector, once for each row of windows, and a number of places on from there. That number is
        # kept from the compiler (kernel_w is what it is compiled for): where it sees that loads overlap, it shuffles.
        rows = {}
        for shift in {shift for _, shift in places_h}:
            at = value(first - shift * w.windows)
            rows[shift] = value(at >> 4), value(at & (WIDTH - 1))
        on = {s: value(self.row.program.n.kernel_w - (w.kernel - furthest + s)) for _, s in places_w}
        mask = (1 << (WIDTH - 1 + furthest - min(on)).bit_length()) - 1
        for i, (r_h, shift_h) in enumerate(places_h):
            vector, within = rows[shift_h]
            for j, (r_w, shift_w) in enumerate(places_w):
                over = _Block(vector, value((within + on[shift_w]) & mask), i * w.kernel + j)
                _add(total, i % self.chains if self.chains > 1 else r_h * self.strides[1] + r_w, f(over, given))

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
        if self.chains > 1:
            a, b, c, d = total.parts
            return (a + b) + (c + d)
        return interleaved(total.parts[r * s : r * s + s], q)


@handle
class _Block:
    """16 windows from place ``first`` of a vector on, over cells that are at place ``offset`` of them."""

    def __init__(self, vector, first, offset):
        self.vector = vector
        self.first = first
        self.offset = offset

    @macro
    def index(self, a):
        return load_ints_on(a, self.vector, self.first)

    @macro
    def value(self, a):
        return load_on(a, self.vector, self.first)

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
        return interleaved(total.parts, q)


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
            store_scalar(dx, self.row.start + self.cell + k * w.stride, taken(total.parts[0], k))


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
        index = load_ints(a, self.at)
        lanes = lane_numbers()
        there = (lanes >= -self.first) & (lanes < self.row.program.w.windows - self.first)
        return variable(ti.select(there, index, variable(Ints(-1))))

    @macro
    def value(self, a):
        return load(a, self.at)

    @macro
    def where(self, condition, v):
        return ti.select(condition, v, variable(Vector(0.0)))
