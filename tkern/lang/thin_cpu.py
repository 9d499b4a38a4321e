"""The words of :mod:`tkern.lang.convs` on a CPU where few channels are made, from images read cell by cell (stride 1).

Gathering patches would cost more than their products: a patch serves few sums. So channels are copied once, with the
zeros around them, and taps are read where they are, shifted. A *plane* is a channel's rows in the thread's workspace,
``pitch`` floats apart: the zeros to the right of a row are those to the left of the next one. A grid's cells are
numbered with the same pitch, so that cell q reads float q + (a number of the tap), and a stretch of rows is one long
row of vectors. What is summed for the cells past a row's end is left out when the sums are written.

The words note what they are given; ``Sums.save`` and ``Totals.add`` do the work, as many rows at a time as fit into the
workspace.
"""

import taichi as ti

from tkern.lang.convs_cpu import CpuConvs
from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.planes_cpu import Planes, save_rows
from tkern.lang.products_cpu import INDICES, element_at, put_at, vector_at
from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.rows_cpu import Vector, load_scalar, store_scalar, tree_sum

# Rows of sums that are made at once, and vectors of each: as many as the registers hold, with what they are made of.
_BLOCKS = {1: 4, 2: 2, 3: 2, 4: 1}
ROWS = max(_BLOCKS)
# Vectors that a stretch of cells is rounded up to.
UNITS = max(_BLOCKS.values())
# Floats of planes that stay in the first cache while all rows of sums pass over them.
_NEAR = 4096
# Taps of a weight's gradient that are summed at once.
_TAPS = 5


@handle
class ThinConvs(CpuConvs):
    """Words for one task per program, which does all of its cells and taps in one step."""

    cells = 2**30
    span = 2**30
    depth = 2**30
    key = ("cpu thin convs",)

    @macro
    def program(self, i, space, size):
        return _Program(i, space, size)


@handle
class _Program:
    def __init__(self, i, space, size):
        self.id = i
        self.space = space
        self.base = value(ti.global_thread_idx() * size)
        self.size = size

    @macro
    def is_one_of(self, programs):
        return True

    @macro
    def patches(self):
        return _Patches()

    @macro
    def weights(self, rows):
        return _Weights()

    @macro
    def turned(self, cols):
        return _Turned()

    @macro
    def sums(self, rows):
        return _Sums(self)

    @macro
    def totals(self, rows, cols):
        return _Totals(self, rows, cols)


@handle
class _Patches:
    """The window that is looked through, and the images behind it."""

    @macro
    def gather(self, images, rows, columns, cells, first, count):
        self.images, self.rows, self.columns = images, rows, columns


@handle
class _Weights:
    def __init__(self):
        self.start = variable(0)

    @macro
    def load(self, a, start, term, stride, total, rows, count):
        self.array, self.stride = a, stride
        self.start._assign(start)

    @ti.func
    def pack(self, space: ti.template(), to, rows):
        """Write the weights of a tap side by side, those of 4 rows, and the taps one after another."""
        for m in range(rows):
            first = to + (m // ROWS) * ROWS * self.stride + m % ROWS
            for k in range(self.stride):
                store_scalar(space, first + k * ROWS, load_scalar(self.array, self.start + m * self.stride + k))


@handle
class _Turned:
    @macro
    def load(self, images, channels, cells):
        self.images, self.cells = images, cells


@handle
class _Sums:
    """Sums of ``rows`` at cells, made and written by ``save``."""

    def __init__(self, program):
        self.program = program

    @macro
    def begin(self, numbers, at, step, rows):
        self.numbers, self.first, self.step = numbers, at, step

    @macro
    def add(self, row, weights, patches, rows, cols, depth):
        self.weights, self.patches = weights, patches

    @ti.func
    def save(self, images: ti.template(), lattice: ti.template(), rows, cells: ti.template()):
        area = self.patches.rows.taps * self.patches.columns.taps
        channels = self.weights.stride // ti.max(area, 1)
        weights = self.program.base
        packed = (rows + (ROWS - 1)) // ROWS * ROWS * self.weights.stride
        self.weights.pack(self.program.space, weights * WIDTH, rows)
        first = weights + ((packed + (WIDTH - 1)) >> 4)
        planes = Planes(self.program.space, self.patches.rows, self.patches.columns, cells.width)
        left = (self.program.base + self.program.size - first) * WIDTH
        band = planes.band(left, channels, rows, cells.height)
        # Vectors of a row of sums.
        stride = planes.vectors(band)
        planes.at = (first + rows * stride) * WIDTH
        planes.step = planes.room(band)
        image, u, v = cells.place()
        done = 0
        while done < cells.count:
            here = ti.min(band, cells.height - u, (v + cells.count - done + cells.width - 1) // cells.width)
            for c in range(channels):
                planes.fill(c, self.patches.images, image, c, u, here)
            for m in range(rows):
                begin = load_scalar(self.numbers, self.first + m * self.step)
                for b in range(planes.vectors(here)):
                    put_at(self.program.space, first + m * stride + b, Vector(begin))
            near = ti.max(1, _NEAR // ((self.patches.rows.taps + 1) * planes.pitch))
            for part in range((channels + near - 1) // near):
                c = part * near
                count = ti.min(near, channels - c)
                for block in range((rows + (ROWS - 1)) // ROWS):
                    m = block * ROWS
                    to = first + m * stride
                    tap = weights * WIDTH + (m * self.weights.stride) + c * area * ROWS
                    for some in ti.static(range(1, ROWS + 1)):
                        if ti.min(ROWS, rows - m) == some:
                            _add_taps(planes, c, count, tap, to, stride, planes.vectors(here), some)
            for m in range(rows):
                save_rows(
                    self.program.space, (first + m * stride) * WIDTH, planes.pitch, images, lattice, image, m, u, here,
                    cells.width, v, cells.count - done,
                )  # fmt: skip
            done += here * cells.width - v
            v = 0
            u += here
            if u == cells.height:
                u = 0
                image += 1


@ti.func
def _add_taps(planes: ti.template(), first, channels, weights, to, stride, vectors, rows: ti.template()):
    """Add to ``rows`` of sums the products of all taps of ``channels`` planes with their weights."""
    units = ti.static(_BLOCKS[rows])
    taps = channels * planes.rows.taps * planes.columns.taps
    start = planes.tap(first, 0, 0)
    # What leads from the end of a row of taps to the next, and from the last row to the next plane.
    next_row = planes.rows.step * planes.pitch - planes.columns.taps * planes.columns.step
    next_plane = planes.step - planes.rows.taps * planes.rows.step * planes.pitch
    for b in range(vectors // units):
        sums = _begin(rows * units)
        at = start + b * (units * WIDTH)
        i, j = 0, 0
        for k in range(taps):
            _step(sums, planes.space, at, weights + k * ROWS, rows, units)
            # One loop without branches: one in another, with three steps each, would cost more than its steps.
            j += 1
            turn = ti.cast(j == planes.columns.taps, ti.i32)
            i += turn
            over = ti.cast(i == planes.rows.taps, ti.i32)
            at += planes.columns.step + turn * next_row + over * next_plane
            j *= 1 - turn
            i *= 1 - over
        _end(sums, planes.space, to + b * units, stride, rows, units)


@handle
class _Held:
    def __init__(self, count):
        self.parts = [variable(Vector(0.0)) for _ in range(count)]


@macro
def _begin(count):
    # From 0, not from what the sums hold: the error of a sum grows with the length of its chain.
    return _Held(count)


@macro
def _step(sums, space, at, tap, rows, units):
    read = _shifted(space, value((at >> 4) & INDICES), value(at & (WIDTH - 1)), units)
    vector, first = value((tap >> 4) & INDICES), value(tap & (WIDTH - ROWS))
    for m in range(rows):
        w = value(element_at(space, vector, first + m))
        for u in range(units):
            part = sums.parts[m * units + u]
            part._assign(part + read[u] * w)


@macro
def _shifted(space, vector, first, units):
    """Return ``units`` vectors, one after another, that begin at element ``first`` of ``vector``."""
    return [variable(ti.Vector([element_at(space, vector + u, first + k) for k in range(WIDTH)])) for u in range(units)]


@macro
def _end(sums, space, to, stride, rows, units):
    for m in range(rows):
        at = value((to + m * stride) & INDICES)
        for u in range(units):
            put_at(space, at + u, vector_at(space, at + u) + sums.parts[m * units + u])


@handle
class _Totals:
    """Sums of ``rows`` taps with ``cols`` channels over cells, a vector each, whose elements are added up at last."""

    def __init__(self, program, rows, cols):
        self.program = program
        self.rows = rows
        self.cols = cols

    @ti.func
    def clear(self, rows):
        for n in range(rows * self.cols):
            put_at(self.program.space, self.program.base + n, Vector(0.0))

    @ti.func
    def add(self, row, patches: ti.template(), turned: ti.template(), rows, cols, count):
        cells = turned.cells
        area = patches.rows.taps * patches.columns.taps
        channels = rows // area
        planes = Planes(self.program.space, patches.rows, patches.columns, cells.width)
        first = self.program.base + rows * cols
        left = (self.program.base + self.program.size - first) * WIDTH
        band = planes.band(left, channels, cols, cells.height)
        # The cells' own channels lie in planes of the same pitch, as long as their vectors.
        stride = planes.vectors(band)
        planes.at = (first + cols * stride) * WIDTH
        planes.step = planes.room(band)
        image, u, v = cells.place()
        done = 0
        while done < count:
            here = ti.min(band, cells.height - u, (v + count - done + cells.width - 1) // cells.width)
            for m in range(cols):
                planes.fill_cells((first + m * stride) * WIDTH, turned.images, image, m, u, here, v, count - done)
            for c in range(channels):
                planes.fill(c, patches.images, image, c, u, here)
            for m in range(cols):
                for c in range(channels):
                    to = self.program.base + m * rows + c * area
                    _add_cells(planes, c, first + m * stride, to, here, area)
            done += here * cells.width - v
            v = 0
            u += here
            if u == cells.height:
                u = 0
                image += 1

    @ti.func
    def save_turned(self, out: ti.template(), start, stride, rows, cols):
        """Write the sums, those of a channel side by side, channels ``stride`` floats apart."""
        for m in range(cols):
            for k in range(rows):
                v = variable(vector_at(self.program.space, self.program.base + m * rows + k))
                store_scalar(out, start + m * stride + k, tree_sum(v))


@ti.func
def _add_cells(planes: ti.template(), channel, cells, to, here, area):
    """Add to each of a plane's taps, a vector from ``to`` on, its products with ``cells`` of ``here`` rows."""
    for block in range((area + (_TAPS - 1)) // _TAPS):
        tap = block * _TAPS
        sums = _begin(_TAPS)
        _add_products(sums, planes, channel, tap, area, cells, planes.vectors(here))
        # A product of 0, past a row's end, with what is not finite is not 0.
        if (tree_sum(_all_of(sums)) * 0.0 == 0.0) == 0:
            for k in ti.static(range(_TAPS)):
                _put_careful(sums, k, planes, channel, ti.min(tap + k, area - 1), cells, here)
        for k in ti.static(range(_TAPS)):
            if tap + k < area:
                _put_sum(sums, k, planes.space, to + tap + k)


@macro
def _add_products(sums, planes, channel, tap, area, cells, vectors):
    starts = [planes.numbered(channel, value(ti.min(tap + k, area - 1))) for k in range(_TAPS)]
    firsts = [value(at & (WIDTH - 1)) for at in starts]
    _sweep(sums, planes.space, _Many([value(at >> 4) for at in starts]), _Many(firsts), cells, vectors)


@handle
class _Many:
    def __init__(self, values):
        self.values = values


@ti.func
def _sweep(sums: ti.template(), space: ti.template(), starts: ti.template(), firsts: ti.template(), cells, vectors):
    for b in range(vectors // UNITS):
        _sweep_units(sums, space, starts, firsts, cells, b * UNITS)


@macro
def _sweep_units(sums, space, starts, firsts, cells, at):
    own = value((cells + at) & INDICES)
    places = [value((start + at) & INDICES) for start in starts.values]
    for u in range(UNITS):
        v = variable(vector_at(space, own + u))
        for k in range(_TAPS):
            (x,) = _shifted(space, places[k] + u, firsts.values[k], 1)
            sums.parts[k]._assign(sums.parts[k] + v * x)


@macro
def _all_of(sums):
    total = sums.parts[0]
    for part in sums.parts[1:]:
        total = total + part
    return variable(total)


@macro
def _put_sum(sums, k, space, to):
    put_at(space, to, vector_at(space, to) + sums.parts[k])


@macro
def _put_careful(sums, k, planes, channel, tap, cells, here):
    v = variable(Vector(0.0))
    v._assign(_alone(_careful(planes, value(planes.numbered(channel, tap)), cells, here)))
    sums.parts[k]._assign(v)


@ti.func
def _alone(x):
    v = Vector(0.0)
    v[0] = x
    return v


@ti.func
def _careful(planes: ti.template(), at, cells, here):
    """Return the sum of a tap's products, of real cells only."""
    total = 0.0
    for r in range(here):
        for v in range(planes.width):
            q = r * planes.pitch + v
            total += load_scalar(planes.space, cells * WIDTH + q) * load_scalar(planes.space, at + q)
    return total
