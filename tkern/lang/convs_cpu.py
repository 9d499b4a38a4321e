"""The words of :mod:`tkern.lang.convs` on a CPU: tiles lie in rows of vectors in the running thread's workspace.

A tile's row holds a tap (or a channel) at neighbouring cells. Patches serve as they are as either operand of the
micro-kernel: a row's floats one by one on the left, 16 neighbouring cells on the right.
"""

import taichi as ti

from tkern.lang.macros import handle, macro, value
from tkern.lang.patches_cpu import gather_patches, load_straight, load_turned, save_cells, save_turned
from tkern.lang.products_cpu import (
    INDICES,
    PANELS,
    ROWS,
    add_step,
    add_steps,
    begin_block,
    blocks_of,
    element_at,
    end_block,
    put_at,
    vector_at,
)
from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.rows_cpu import Vector, load, load_scalar, load_some, store_scalar, tree_sum

# Cells of a tile. Its rows are one vector longer, since a run of cells is written by whole vectors: 13 is odd, so
# that neighbouring rows do not share lines of the first cache.
CELLS = 192
_STRIDE = CELLS // WIDTH + 1
# Taps of a tile: 16 channels of 3 × 3.
DEPTH = 144
_DEPTH_STRIDE = DEPTH // WIDTH
# With fewer channels on one side than this (depthwise) a micro-kernel would be idle: rows are taken one by one.
_FEW = 3


@handle
class CpuConvs:
    """Words for one task per program, with the workspace of the running thread."""

    Array = ti.types.ndarray(dtype=Vector, ndim=1)
    lanes = 1
    # Rows that products take at a time.
    block = ROWS
    cells = CELLS
    span = CELLS
    depth = DEPTH
    # Vectors of the workspace: of patches, of a channel that is made, with its weights, and of a panel of turned ones.
    patch_vectors = DEPTH * _STRIDE
    row_vectors = _STRIDE + _DEPTH_STRIDE
    turned_vectors = CELLS + WIDTH
    key = ("cpu convs",)

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
        """Return where a weight lies: row by row, a channel's taps side by side."""
        return value((row * channels + channel) * taps + tap)


@handle
class _Program:
    def __init__(self, i, space, size):
        self.id = i
        self.space = space
        self.base = base = value(ti.global_thread_idx() * size)
        # 1.0, known at run time only: see turn_block.
        self.one = value(ti.cast(size > 0, ti.f32))
        # Room for a block of 16 × 16 floats on its way to its transpose.
        self.scratch = base
        self.used = WIDTH

    @macro
    def is_one_of(self, programs):
        """Return whether there is such a program: there is a task for each, and for nothing else."""
        return True

    @macro
    def _tile(self, cls, rows, stride):
        made = cls(self, value(self.base + self.used), stride)
        self.used = value(self.used + rows * stride)
        return made

    @macro
    def patches(self):
        """Return room for the taps that products take at a time, at the cells of a tile."""
        return self._tile(Patches, DEPTH, _STRIDE)

    @macro
    def weights(self, rows):
        """Return room for ``rows`` of weights, as many taps as patches have."""
        return self._tile(Weights, value(_whole(rows)), _DEPTH_STRIDE)

    @macro
    def sums(self, rows):
        """Return room for sums of ``rows`` at the cells of a tile."""
        return self._tile(Sums, value(_whole(rows)), _STRIDE)

    @macro
    def totals(self, rows, cols):
        """Return room for sums of ``rows`` × ``cols`` over cells."""
        return self._tile(Sums, value(_whole(rows)), value((cols + (WIDTH - 1)) >> 4))

    @macro
    def turned(self, cols):
        """Return room for ``cols`` channels at the cells of a tile, as the right operand of a product along cells."""
        return self._tile(Turned, value((cols + (WIDTH - 1)) >> 4), CELLS + WIDTH)


@macro
def _whole(rows):
    return blocks_of(rows) * ROWS


@handle
class _Tile:
    def __init__(self, program, at, stride):
        self.space = program.space
        self.scratch = program.scratch
        self.one = program.one
        self.at = at
        # Vectors from one row to the next.
        self.stride = stride


@handle
class Patches(_Tile):
    """Taps at cells, a tap a row. As a right operand a step of the sum is a row, a panel a vector of it."""

    panel = 1
    step = _STRIDE
    by_cell = False

    @ti.func
    def gather(
        self, images: ti.template(), rows: ti.template(), columns: ti.template(), cells: ti.template(), first, count
    ):
        """Fill with ``count`` taps from ``first`` on of the window ``rows`` × ``columns`` over ``images``."""
        gather_patches(self, images, rows, columns, cells, first, count)

    @ti.func
    def save_turned(self, out: ti.template(), start, stride, count, cells):
        """Write ``count`` taps at ``cells`` to rows of ``out``, a cell a row, ``stride`` floats apart."""
        save_turned(self, out, start, stride, count, cells)


@handle
class Weights(_Tile):
    """Weights, an output a row."""

    @ti.func
    def load(self, a: ti.template(), start, term, stride, total, rows, count):
        """Fill with ``count`` floats from ``term`` on of ``rows`` of ``a``, which has ``total`` floats.

        The first row begins at float ``start``, the others ``stride`` floats apart.
        """
        for r in range(rows):
            for b in range((count + (WIDTH - 1)) >> 4):
                at = start + term + r * stride + b * WIDTH
                v = Vector(0.0)
                if at + WIDTH <= total:
                    v = load(a, at)
                else:
                    v = load_some(a, at, total - at)
                put_at(self.space, self.at + r * self.stride + b, v)


@handle
class Turned(_Tile):
    """Channels at cells, a cell a row of 16 channels, panel after panel of those; of few channels, a channel a row."""

    panel = CELLS + WIDTH
    step = 1
    by_cell = True

    @ti.func
    def load(self, images: ti.template(), channels, cells: ti.template()):
        """Fill from ``channels`` of ``images``, whose cells all have their own float."""
        if channels < _FEW:
            load_straight(self, images, channels, cells, _STRIDE)
        else:
            load_turned(self, images, channels, cells)


@handle
class Sums(_Tile):
    """Sums of products, added up in the workspace."""

    @ti.func
    def clear(self, rows):
        for n in range(_whole(rows) * self.stride):
            put_at(self.space, self.at + n, Vector(0.0))

    @ti.func
    def begin(self, numbers: ti.template(), at, step, rows):
        """Set each row to a number, ``step`` floats from one to the next."""
        for r in range(rows):
            for n in range(self.stride):
                put_at(self.space, self.at + r * self.stride + n, Vector(load_scalar(numbers, at + r * step)))

    @ti.func
    def add(self, row, a: ti.template(), b: ti.template(), rows, cols, depth):
        """Add a·b, of ``rows`` × ``cols``, from ``row`` on: sums of ``depth`` products."""
        if ti.static(b.by_cell):
            if cols < _FEW:
                for m in range(rows):
                    for c in range(cols):
                        _add_dot(self, (row + m) * self.stride * WIDTH + c, a, m, b, c, depth)
            else:
                self.add_blocks(row, a, b, rows, cols, depth)
        else:
            if rows < _FEW:
                for m in range(rows):
                    for n in range((cols + (WIDTH - 1)) >> 4):
                        _add_row(self, (row + m) * self.stride + n, a, m, b, n, depth)
            else:
                self.add_blocks(row, a, b, rows, cols, depth)

    @ti.func
    def add_blocks(self, row, a: ti.template(), b: ti.template(), rows, cols, depth):
        panels, done = (cols + (WIDTH - 1)) >> 4, 0
        # As many panels at a time as may be, then those that are left one by one.
        for some in ti.static(PANELS):
            for n in range((panels - done) // some):
                for m in range(blocks_of(rows)):
                    _micro_kernel(self, row + m * ROWS, done + n * some, a, m * ROWS, b, depth, some)
            done += (panels - done) // some * some

    @ti.func
    def save(self, images: ti.template(), lattice: ti.template(), rows, cells: ti.template()):
        """Write ``rows`` at ``cells`` to channels of ``images``, the cells where ``lattice`` has them."""
        save_cells(self, images, lattice, rows, cells)

    @ti.func
    def save_turned(self, out: ti.template(), start, stride, rows, cols):
        """Write ``rows`` × ``cols`` transposed to ``out`` from ``start`` on, its rows ``stride`` floats apart."""
        save_turned(self, out, start, stride, rows, cols)


@ti.func
def _add_row(c: ti.template(), to, a: ti.template(), row, b: ti.template(), n, depth):
    """Add to one vector of c a row of ``a`` times a column of vectors of b."""
    total = Vector(0.0)
    for k in range(depth):
        x = element_at(a.space, a.at + row * a.stride + (k >> 4), k & (WIDTH - 1))
        total += vector_at(b.space, (b.at + k * b.step + n) & INDICES) * x
    put_at(c.space, c.at + to, vector_at(c.space, c.at + to) + total)


@ti.func
def _add_dot(c: ti.template(), to, a: ti.template(), row, b: ti.template(), col, depth):
    """Add to one float of c the product of a row of ``a`` and one of b."""
    left, right = a.at + row * a.stride, b.at + col * _STRIDE
    whole = depth >> 4
    total = Vector(0.0)
    for k in range(whole):
        total += vector_at(a.space, (left + k) & INDICES) * vector_at(b.space, (right + k) & INDICES)
    rest = tree_sum(total)
    for k in range(whole * WIDTH, depth):
        x = element_at(a.space, left + whole, k & (WIDTH - 1))
        rest += x * element_at(b.space, right + whole, k & (WIDTH - 1))
    at = c.at * WIDTH + to
    store_scalar(c.space, at, load_scalar(c.space, at) + rest)


@ti.func
def _micro_kernel(c: ti.template(), row, n, a: ti.template(), first, b: ti.template(), depth, panels: ti.template()):
    sums = begin_block(panels)
    left = a.at + first * a.stride
    right = b.at + n * b.panel
    whole = depth >> 4
    for k in range(whole):
        at = (right + k * (WIDTH * b.step)) & INDICES
        add_steps(sums, a.space, (left + k) & INDICES, b.space, at, a.stride, b.step, b.panel)
    for k in range(whole * WIDTH, depth):
        at = (right + k * b.step) & INDICES
        add_step(sums, a.space, (left + whole) & INDICES, k & (WIDTH - 1), b.space, at, a.stride, b.panel)
    end_block(sums, c.space, c.at + row * c.stride + n, c.stride)
