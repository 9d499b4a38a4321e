"""The words of :mod:`tkern.lang.windows` for cells on a GPU whose geometry is compiled in: a band of rows a lane.

A lane takes the cells of one column in ``blocks`` blocks of ``stride`` rows, neighbouring lanes neighbouring columns,
so that each load and each store of a workgroup is of neighbours. Which windows lie over its column is found once; over
its rows it is known before the kernel runs. A window is read once for all cells of a lane, and, since nothing is
written before the sums are whole, all reads of a lane are on their way at once.
"""

import taichi as ti

from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.rows_gpu import element, put
from tkern.lang.safe import both
from tkern.lang.window_numbers import OFFSETS, Axis, FewNumbers

# As the column of a place in a window: no offset is equal to it, whatever the row.
_NOWHERE = -(2**20)


@handle
class GpuBands:
    """Words for ``launched`` workgroups of ``lanes`` threads.

    ``fixed`` is (kernel, stride, pad, dilation) of both axes, ``blocks`` how many blocks of rows a lane takes.
    """

    Array = ti.types.ndarray(dtype=ti.f32)
    Numbers = FewNumbers

    def __init__(self, lanes: int, launched: int, blocks: int, fixed, dtype: str):
        self.Offsets = ti.types.ndarray(dtype=OFFSETS[dtype])
        self.lanes = lanes
        self.launched = launched
        self.blocks = blocks
        self.fixed = fixed
        self.key = ("gpu bands", lanes, launched, blocks, fixed, dtype)

    @macro
    def threads(self, programs):
        return self.launched * self.lanes

    @macro
    def program(self, i, programs, n):
        return _Program(self, i, n)


@handle
class _Program:
    def __init__(self, words, i, n):
        self.words = words
        self.at = i
        self.at_once = words.launched * words.lanes
        self.h = Axis(n, "h", words.fixed[0])
        self.w = Axis(n, "w", words.fixed[1])

    # How many cells are at the top of bands may be as much as an index reaches, so nothing is added to it.
    @ti.func
    def steps(self, bands):
        left = bands * self.w.size - self.at
        return ti.select(left > 0, ti.raw_div(left - 1, self.at_once) + 1, 0)

    @macro
    def cell_row(self, step):
        return _Band(self, value(self.at + step * self.at_once))


@handle
class _Band:
    """A band of rows in one column, and the rows of windows over it."""

    steps = 1
    windows = 1

    def __init__(self, program, index):
        h, w = program.h, program.w
        rows = program.words.blocks * h.stride
        self.program = program
        band = value(ti.raw_div(index, w.size))
        self.col = value(index - band * w.size)
        bands = value(ti.raw_div(h.size + (rows - 1), rows))
        self.plane = value(ti.raw_div(band, bands))
        self.block = value((band - self.plane * bands) * program.words.blocks)
        self.row = value(self.block * h.stride)

    @macro
    def cells(self, b):
        return _Cells(self)


@handle
class _Cells:
    windows = 1

    def __init__(self, band):
        h, w = band.program.h, band.program.w
        self.band = band
        self.rows = band.program.words.blocks * h.stride
        place, window, count = w.covering(band.col, 0)
        # The windows over the column, from the last to the first, and its place in them.
        self.over = []
        for c in range(-(-w.kernel // w.step)):
            column = value(ti.select(c < count, window - c * w.back, 0))
            self.over.append((column, value(ti.select(c < count, place + c * w.step, _NOWHERE))))
        self.lines = {}
        self.read = {}

    @macro
    def zero(self):
        return _Totals(self.rows)

    @macro
    def sum(self, total, a, c, f, given):
        h = self.band.program.h
        for block in range(self.band.program.words.blocks):
            for i in range(h.kernel):
                begin = i * h.dilation - h.pad
                row = block * h.stride + begin % h.stride
                for column, place in self.over:
                    window = _Over(
                        self, block - begin // h.stride, column, value(i * self.band.program.w.kernel + place)
                    )
                    total.parts[row]._assign(total.parts[row] + f(window, given))

    @macro
    def line(self, ahead):
        """Return (start, real): where the row of windows ``ahead`` of the first block's begins, and if there is one."""
        if ahead not in self.lines:
            h, w = self.band.program.h, self.band.program.w
            row = value(self.band.block + ahead)
            start = value((self.band.plane * h.windows + ti.max(0, ti.min(row, h.windows - 1))) * w.windows)
            self.lines[ahead] = start, value(both(row >= 0, row < h.windows))
        return self.lines[ahead]

    @ti.func
    def put(self, dx: ti.template(), total: ti.template()):
        h, w = self.band.program.h, self.band.program.w
        at = (self.band.plane * h.size + self.band.row) * w.size + self.band.col
        for k in ti.static(range(self.rows)):
            if self.band.row + k < h.size:
                put(dx, at + k * w.size, total.parts[k])


@handle
class _Totals:
    def __init__(self, count):
        self.parts = [variable(ti.cast(0.0, ti.f32)) for _ in range(count)]


@handle
class _Over:
    """The window in ``column`` of a row of windows; what was read of it once is known to all cells of the lane."""

    def __init__(self, cells, ahead, column, offset):
        self.cells = cells
        self.ahead = ahead
        self.column = column
        self.offset = offset

    @macro
    def index(self, a):
        start, real = self.cells.line(self.ahead)
        return self.once("index", lambda: ti.select(real, ti.cast(element(a, start + self.column), ti.i32), -1))

    @macro
    def value(self, a):
        start, _ = self.cells.line(self.ahead)
        return self.once("value", lambda: element(a, start + self.column))

    @macro
    def once(self, what, make):
        key = (what, self.ahead, id(self.column))
        if key not in self.cells.read:
            self.cells.read[key] = value(make())
        return self.cells.read[key]

    @macro
    def where(self, condition, v):
        return value(ti.select(condition, v, 0.0))
