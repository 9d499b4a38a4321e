"""The words of :mod:`tkern.lang.convs` on a CPU, where the lanes of a vector are 16 images of the batch.

Then a tap reads whole vectors wherever it is, nothing is gathered more than once, and taps that lie outside of the
image are left out instead of multiplied by 0. Channels that are read come in sixteens: the 16 of a cell lie one after
another, as do the 16 weights of a tap, and a product takes all taps of 16 channels at a time.

A grid's cells are counted in groups of 16 images; a program's cells lie in one group.
"""

import taichi as ti

from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.products_cpu import INDICES, ROWS, add_steps, begin_block, blocks_of, end_block, put_at, vector_at
from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.rows_cpu import Vector, load_scalar, store, store_scalar, store_some
from tkern.lang.turning_cpu import turn_block

# Cells of a program at most, and vectors between rows of its sums: odd, so that rows do not share lines of a cache.
CELLS = 128
_STRIDE = CELLS + 1
# Blocks whose weights for one step (18 KiB at nine taps) stay in the first cache while cells pass by.
_BLOCKS = 32 // ROWS


@handle
class CpuImageConvs:
    """Words for one task per program, with the workspace of the running thread."""

    Array = ti.types.ndarray(dtype=Vector, ndim=1)
    lanes = 1
    # Rows that products take at a time.
    block = ROWS
    cells = CELLS
    # Vectors between the sums of neighbouring channels.
    row_vectors = _STRIDE
    key = ("cpu image convs",)

    @macro
    def threads(self, programs):
        return programs

    @macro
    def program(self, i, space, size):
        return _Program(i, space, size)

    @macro
    def scalar(self, a, at):
        return load_scalar(a, at)

    @macro
    def put_scalar(self, a, at, v):
        store_scalar(a, at, v)

    @macro
    def weight_at(self, row, channels, channel, tap, taps):
        """Return where a weight lies: rows of a block together, for 16 channels and each tap one row after another.

        So the micro-kernel reads them in one stream, from one address.
        """
        step = ((row // ROWS) * (channels >> 4) + (channel >> 4)) * taps + tap
        return value((step * ROWS + (row & (ROWS - 1))) * WIDTH + (channel & (WIDTH - 1)))


@handle
class _Program:
    """Its workspace holds a block on its way to its transpose, what is read, and at the end its sums."""

    def __init__(self, i, space, size):
        self.id = i
        self.space = space
        self.one = value(ti.cast(size > 0, ti.f32))
        self.base = value(ti.global_thread_idx() * size)
        self.end = value(self.base + size)

    @macro
    def is_one_of(self, programs):
        return True

    @macro
    def patches(self):
        return Patches(self)

    @macro
    def weights(self, rows):
        return Weights()

    @macro
    def sums(self, rows):
        return Sums(self, rows)


@handle
class Patches:
    """The lines of 16 images that a program's cells look at: a cell's 16 channels one after another."""

    def __init__(self, program):
        self.space = program.space
        self.at = value(program.base + WIDTH)

    @macro
    def gather(self, images, rows, columns, cells, first, count):
        """Take the channels of the ``count`` taps from ``first`` on, all taps of 16 channels."""
        self.rows, self.columns, self.cells = rows, columns, cells
        self.group, self.u, self.v = cells.place()
        last = value((cells.first + cells.count - 1) // cells.width)
        ends = [self.u * rows.stride, (last - self.group * cells.height) * rows.stride]
        reach = (rows.taps - 1) * rows.step
        self.top = value(ti.max(0, ends[0] + rows.off + ti.min(0, reach)))
        bottom = value(ti.min(rows.size - 1, ends[1] + rows.off + ti.max(0, reach)))
        _pack(self, images, first // (rows.taps * columns.taps), (bottom - self.top + 1) * columns.size)


@ti.func
def _pack(tile: ti.template(), images: ti.template(), channel, length):
    start = images.start + channel * images.area + tile.top * tile.columns.size
    first, last = tile.group * WIDTH, images.count - 1
    for k in range(WIDTH):
        for b in range((length + (WIDTH - 1)) >> 4):
            at = start + k * images.area + b * WIDTH
            to = tile.at + b * (WIDTH * WIDTH) + k
            if at + ti.min(first + (WIDTH - 1), last) * images.image + WIDTH <= images.total:
                _turn_images(images.array, at, first, last, images.image, tile.space, to, images.one)
            else:
                for r in range(WIDTH):
                    source = at + ti.min(first + r, last) * images.image
                    for c in range(ti.min(WIDTH, length - b * WIDTH)):
                        store_scalar(tile.space, (to + c * WIDTH) * WIDTH + r, load_scalar(images.array, source + c))


@macro
def _turn_images(a, at, first, last, image, space, to, one):
    turn_block(a, lambda r: at + ti.min(first + r, last) * image, space, to, one, step=WIDTH)


@handle
class Weights:
    """Weights, those of a block's outputs side by side (see ``weight_at``), read where they are."""

    @macro
    def load(self, a, start, term, stride, total, rows, count):
        self.array, self.at, self.stride = a, value((start >> 4) + (term >> 4) * ROWS), value((stride >> 4) * ROWS)


@handle
class Sums:
    """Sums of products, a channel a row, a cell a vector of 16 images."""

    def __init__(self, program, rows):
        self.space = program.space
        self.one = program.one
        self.scratch = program.base
        self.at = value(program.end - blocks_of(rows) * ROWS * _STRIDE)

    @ti.func
    def begin(self, numbers: ti.template(), at, step, rows):
        """Set each row to a number, ``step`` floats from one to the next."""
        for r in range(rows):
            for n in range(CELLS):
                put_at(self.space, self.at + r * _STRIDE + n, Vector(load_scalar(numbers, at + r * step)))

    @ti.func
    def add(self, row, weights: ti.template(), patches: ti.template(), rows, cells, count):
        """Add the products of all taps that lie in the image, of 16 channels."""
        vertical, horizontal = patches.rows, patches.columns
        blocks = blocks_of(rows)
        for group in range((blocks + (_BLOCKS - 1)) // _BLOCKS):
            u, v = patches.u, patches.v
            for q in range(cells):
                h, w = u * vertical.stride + vertical.off, v * horizontal.stride + horizontal.off
                i0, i1 = _inside(h, vertical.step, vertical.taps, vertical.size)
                j0, j1 = _inside(w, horizontal.step, horizontal.taps, horizontal.size)
                right = patches.at + ((h - patches.top) * horizontal.size + w) * WIDTH
                for m in range(group * _BLOCKS, ti.min(blocks, group * _BLOCKS + _BLOCKS)):
                    _add_cell(self, m, q, weights, patches, right, i0, i1, j0, j1)
                v += 1
                if v == patches.cells.width:
                    v = 0
                    u += 1

    @ti.func
    def save(self, images: ti.template(), lattice: ti.template(), rows, cells: ti.template()):
        """Write ``rows`` at ``cells`` to channels of ``images``, whose cells they are one by one."""
        group, u, v = cells.place()
        start = images.start + group * WIDTH * images.image + u * cells.width + v
        for r in range(rows):
            for b in range((cells.count + (WIDTH - 1)) >> 4):
                left = cells.count - b * WIDTH
                _turn_cells(self, self.at + r * _STRIDE + b * WIDTH, left - 1)
                for n in range(ti.min(WIDTH, images.count - group * WIDTH)):
                    to = start + n * images.image + r * images.area + b * WIDTH
                    x = variable(vector_at(self.space, self.scratch + n))
                    if left >= WIDTH:
                        store(images.array, to, x)
                    else:
                        store_some(images.array, to, left, x)


@macro
def _turn_cells(sums, at, last):
    turn_block(sums.space, lambda c: (at + ti.min(c, last)) * WIDTH, sums.space, sums.scratch, sums.one)


@ti.func
def _inside(first, step, taps, size):
    """Return the first tap that lies in the image and the one behind the last; taps are ``step`` apart."""
    low, high = 0, taps
    while low < taps and (first + low * step < 0 or first + low * step >= size):
        low += 1
    while high > low and (first + (high - 1) * step < 0 or first + (high - 1) * step >= size):
        high -= 1
    return low, high


@ti.func
def _add_cell(sums: ti.template(), m, q, weights: ti.template(), patches: ti.template(), right, i0, i1, j0, j1):
    """Add to a block of sums at one cell."""
    block = begin_block()
    down, across = patches.rows.step * patches.columns.size * WIDTH, patches.columns.step * WIDTH
    for i in range(i0, i1):
        for j in range(j0, j1):
            left = weights.at + m * weights.stride + (i * patches.columns.taps + j) * ROWS
            at = (right + i * down + j * across) & INDICES
            add_steps(block, weights.array, left & INDICES, patches.space, at)
    end_block(block, sums.space, (sums.at + m * (ROWS * _STRIDE) + q) & INDICES, _STRIDE)
