"""The words of :mod:`tkern.lang.tiles` on a CPU: tiles lie in the running thread's workspace, in panels of 16 columns.

A tile of ``rows`` × ``cols`` is stored as cols/16 panels, each ``rows`` vectors of 16. That one form serves every
use: as the left operand a scalar is read at a fixed offset from its row, as the right operand a row of a panel is one
vector, and as a sum four neighbouring rows of a panel are four neighbouring vectors. The product is a 4 × 16
micro-kernel: eight sums, two vectors and one broadcast fit the sixteen registers of AVX2.

What lies past a tile's last row or column is 0, so no product need know where that is.
"""

import taichi as ti

from tkern.lang.folded_cpu import Folded
from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.packed_cpu import PackedSums, PackedTile
from tkern.lang.products_cpu import add_scores, element_at, put_at, scores_product, vector_at
from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.rows_cpu import Vector, load, load_scalar, load_some, store, store_scalar, store_some, tree_sum
from tkern.lang.safe import vector_exp


@handle
class CpuTiles:
    """Words for one task per program, with the workspace of the running thread; scores come 16 at a time."""

    Array = ti.types.ndarray(dtype=Vector, ndim=1)
    Rows = Array
    lanes = 1
    # No power of two: panels whose starts are 4096 bytes apart share a few lines of the first cache. Of 64, 80, 112,
    # 128, 144, 176 and 208, 112 was the fastest over the standard shapes; see docs/measurements.md.
    queries = 112
    keys = 112
    # Rows of numbers, one a query, that a program takes where there is little to do for each.
    rows_each = 64
    packs = True
    # Columns of a sum that a program makes: all of them.
    width = 2**30
    key = ("cpu tiles",)

    def packed_floats(self, cols):
        """Return the floats of a packed tile of queries with ``cols`` columns."""
        return (self.queries * -(-cols // WIDTH) + 1) * WIDTH

    @macro
    def threads(self, programs):
        return programs

    @macro
    def program(self, i, space, size, chunks):
        return _Program(i, space, value(ti.global_thread_idx() * size))

    @macro
    def packed(self, a, start, rows, cols):
        """Return the packed tile at float ``start`` of ``a``, to be filled."""
        return Tile(a, value(start >> 4), rows, value(_panels(cols)))

    @macro
    def scalar(self, a, at):
        return load_scalar(a, at)

    @macro
    def put_scalar(self, a, at, v):
        store_scalar(a, at, v)

    @ti.func
    def some(self, a: ti.template(), at, count):
        """Return neighbouring floats of ``a`` from ``at`` on, of which ``count`` exist; 0 past them."""
        v = Vector(0.0)
        if count >= WIDTH:
            v = load(a, at)
        elif count > 0:
            v = load_some(a, at, count)
        return v

    @macro
    def exp(self, x):
        return vector_exp(x, WIDTH)

    @macro
    def all(self, x):
        """Return a number as every one of neighbouring ones."""
        return Vector(x)

    @ti.func
    def fill(self, a: ti.template(), i, count, number):
        """Write ``number`` to the 4096 of ``count`` floats that are this program's."""
        start = i * 4096
        mine = ti.min(4096, count - start)
        for c in range((mine + (WIDTH - 1)) >> 4):
            left = mine - c * WIDTH
            if left >= WIDTH:
                store(a, start + c * WIDTH, Vector(number))
            else:
                store_some(a, start + c * WIDTH, left, Vector(number))

    @ti.func
    def dot(self, a: ti.template(), a_at, b: ti.template(), b_at, count):
        """Return the sum of the products of ``count`` floats of ``a`` and of ``b``."""
        total = Vector(0.0)
        for c in range((count + (WIDTH - 1)) >> 4):
            total += self.some(a, a_at + c * WIDTH, count - c * WIDTH) * self.some(
                b, b_at + c * WIDTH, count - c * WIDTH
            )
        return tree_sum(total)


@handle
class _Program:
    def __init__(self, i, space, base):
        self.id = i
        self.space = space
        self.base = base
        self.used = value(0)

    @macro
    def tile(self, rows, cols):
        """Return a tile of ``rows`` × ``cols`` floats; what is in it is undefined."""
        panels = _panels(cols) if isinstance(cols, int) else value(_panels(cols))
        made = Tile(self.space, value(self.base + self.used), rows, panels)
        self.used = value(self.used + rows * panels)
        return made

    @macro
    def right(self, operand, cols):
        """Return room for the transpose of a tile, as the right operand of a product along its columns."""
        panels = operand.rows // WIDTH
        rows = value(_panels(cols) * WIDTH)
        made = Tile(self.space, value(self.base + self.used), rows, panels)
        self.used = value(self.used + rows * panels)
        return made

    @macro
    def packed(self, rows, cols):
        """Return a packed tile, to be read."""
        return PackedTile(rows, value(_panels(cols)))

    @macro
    def packed_sums(self, rows, cols, out):
        """Return sums that lie packed in ``out``."""
        return PackedSums(rows, value(_panels(cols)), out)

    @macro
    def scores(self, rows, cols):
        return self.tile(rows, cols)

    @macro
    def sums(self, rows, cols):
        return self.tile(rows, cols)

    @macro
    def is_one_of(self, programs):
        """Return whether there is such a program: there is a task for each, and for nothing else."""
        return True

    @macro
    def share(self, count):
        """Return how many steps a loop of ``count`` has: there is one lane."""
        return count

    @macro
    def own(self, step):
        return step

    @macro
    def folded(self, rows, cols):
        """Return room for sums of tiles, whose rows or columns may be added up too."""
        return Folded(self.tile(rows, cols))

    @macro
    def running(self, rows):
        """Return room for the running maximum and sum of rows of scores."""
        return self.tile(2 * rows, WIDTH)


@handle
class Columns:
    """Sixteen neighbouring columns of scores: the ``first`` and the ``last``, and ``each`` one's number."""

    def __init__(self, first):
        self.first = first
        self.last = first + (WIDTH - 1)
        self.each = ti.Vector([first + k for k in range(WIDTH)])


@handle
class Tile:
    """``rows`` × 16·``panels`` floats from vector ``at`` of the workspace on; either may be a run-time number."""

    def __init__(self, space, at, rows, panels):
        self.space = space
        self.at = at
        self.rows = rows
        self.panels = panels
        # Rows that are filled; the others are 0.
        self.count = variable(0)
        # Panels of scores that a product has filled.
        self.filled = variable(0)
        # 1 where something in the tile is not finite: then 0 times it is not 0.
        self.odd = variable(0)

    @ti.func
    def clear(self, start, stride, count, cols):
        for n in range(self.rows * self.panels):
            put_at(self.space, self.at + n, Vector(0.0))

    @ti.func
    def load(self, a: ti.template(), start, stride, skip, count, cols):
        """Fill from rows of ``cols`` floats of ``a``, the first at float ``start``, ``stride`` floats apart.

        Rows before ``skip`` and from ``count`` on are not read: they become 0.
        """
        self.odd = 0
        self.count = ti.max(count, 0)
        rest = Vector(0.0)
        for r in range(self.rows):
            if r >= skip and r < count:
                for c in range(self.panels):
                    left = cols - c * WIDTH
                    v = Vector(0.0)
                    if left >= WIDTH:
                        v = load(a, start + r * stride + c * WIDTH)
                    else:
                        v = load_some(a, start + r * stride + c * WIDTH, left)
                    put_at(self.space, self.at + c * self.rows + r, v)
                    rest += v * 0.0
            else:
                for c in range(self.panels):
                    put_at(self.space, self.at + c * self.rows + r, Vector(0.0))
        if (tree_sum(rest) == 0.0) == 0:
            self.odd = 1

    @ti.func
    def hide(self, seen: ti.template(), start, count):
        """Set the rows to 0 where ``seen`` is 0 from float ``start`` on, whatever is in them."""
        for r in range(count):
            if load_scalar(seen, start + r) == 0.0:
                for c in range(self.panels):
                    put_at(self.space, self.at + c * self.rows + r, Vector(0.0))
        if self.odd == 1:
            # Perhaps all that was not finite has just been hidden.
            rest = Vector(0.0)
            for n in range(self.rows * self.panels):
                rest += vector_at(self.space, self.at + n) * 0.0
            self.odd = ti.cast((tree_sum(rest) == 0.0) == 0, ti.i32)

    @ti.func
    def turn(self, other: ti.template()):
        """Fill with the transpose of ``other``; its rows become columns, and are counted as these."""
        self.count = other.count
        for c in range(self.panels):
            for d in range(other.panels):
                for u in range(WIDTH):
                    put_at(
                        self.space,
                        self.at + c * self.rows + d * WIDTH + u,
                        _column(self.space, other.at + d * other.rows + c * WIDTH, u),
                    )

    @ti.func
    def save(self, a: ti.template(), start, stride, count, cols):
        """Write the first ``count`` rows of ``cols`` floats to ``a``, laid out as in ``load``."""
        for r in range(count):
            for c in range(self.panels):
                left = cols - c * WIDTH
                v = variable(vector_at(self.space, self.at + c * self.rows + r))
                to = start + r * stride + c * WIDTH
                if left >= WIDTH:
                    store(a, to, v)
                else:
                    store_some(a, to, left, v)

    @ti.func
    def mark(self):
        """Write behind a packed tile whether it is finite."""
        mark = Vector(0.0)
        mark[0] = ti.cast(self.odd, ti.f32)
        put_at(self.space, self.at + self.rows * self.panels, mark)

    @ti.func
    def gather(self, packed: ti.template(), start, step, parts):
        """Set to the sum of ``parts`` packed tiles, the first at float ``start``, ``step`` floats apart."""
        for n in range(self.rows * self.panels):
            total = variable(vector_at(packed, (start >> 4) + n))
            for part in range(1, parts):
                total += vector_at(packed, ((start + part * step) >> 4) + n)
            put_at(self.space, self.at + n, total)

    @ti.func
    def along(self, a: ti.template(), b: ti.template(), depth, band: ti.template()):
        """Set to a·b, ``b`` the turned right operand, ``depth`` columns of ``a``; undefined outside of ``band``."""
        self.filled = _panels(b.count)
        scores_product(self, a, b, a.count, self.filled, depth, band)

    @ti.func
    def add_across(self, scores: ti.template(), b: ti.template(), start, stride, count, cols, band: ti.template()):
        """Add scoresᵀ·b; columns of scores past those that were filled have no part."""
        rows = ti.min(count, scores.filled * WIDTH)
        add_scores(self, scores, b, rows, band, True)

    @ti.func
    def add_down(self, scores: ti.template(), b: ti.template(), start, stride, count, cols, band: ti.template()):
        """Add scores·b."""
        add_scores(self, scores, b, count, band, False)

    @ti.func
    def weigh(self, f: ti.template(), first_row, rows, first_column):
        """Put the weights P in place of the scores; 0 past the last row."""
        for r in range(_whole(rows)):
            if r < rows:
                row = f.row(first_row + r)
                for c in range(self.filled):
                    at = self.at + c * self.rows + r
                    columns = Columns(value(first_column + c * WIDTH))
                    p = Vector(0.0)
                    if f.sees(row, columns):
                        p = f.weight(row, columns, variable(vector_at(self.space, at)))
                    put_at(self.space, at, p)
            else:
                for c in range(self.filled):
                    put_at(self.space, self.at + c * self.rows + r, Vector(0.0))

    @ti.func
    def differentiate(self, grads: ti.template(), f: ti.template(), first_row, rows, first_column):
        """Put the weights P in place of the scores, and dS in place of dP in ``grads``; 0 past the last row."""
        for r in range(_whole(rows)):
            if r < rows:
                row = f.row(first_row + r)
                for c in range(self.filled):
                    at = self.at + c * self.rows + r
                    other = grads.at + c * self.rows + r
                    columns = Columns(value(first_column + c * WIDTH))
                    p, ds = Vector(0.0), Vector(0.0)
                    if f.sees(row, columns):
                        s, dp = variable(vector_at(self.space, at)), variable(vector_at(self.space, other))
                        p, ds = f.weight_and_gradient(row, columns, s, dp)
                    put_at(self.space, at, p)
                    put_at(self.space, other, ds)
            else:
                for c in range(self.filled):
                    put_at(self.space, self.at + c * self.rows + r, Vector(0.0))
                    put_at(self.space, grads.at + c * self.rows + r, Vector(0.0))

    @ti.func
    def bias_gradients(self, scores: ti.template(), f: ti.template(), first_row, rows, first_column):
        """Put dS by the bias in place of dP; 0 past the last row."""
        for r in range(self.rows):
            if r < rows:
                row = f.row(first_row + r)
                for c in range(self.panels):
                    at = self.at + c * self.rows + r
                    columns = Columns(value(first_column + c * WIDTH))
                    s = variable(vector_at(self.space, scores.at + c * self.rows + r))
                    put_at(self.space, at, f.bias_gradient(row, columns, s, variable(vector_at(self.space, at))))
            else:
                for c in range(self.panels):
                    put_at(self.space, self.at + c * self.rows + r, Vector(0.0))

    @ti.func
    def begin(self, lowest):
        """Begin running maxima and sums."""
        for r in range(self.rows >> 1):
            put_at(self.space, self.at + r, Vector(lowest))
            put_at(self.space, self.at + (self.rows >> 1) + r, Vector(0.0))

    @ti.func
    def follow(self, scores: ti.template(), f: ti.template(), first_row, rows, first_column):
        """Take scores into the running maxima and sums; each of the 16 columns of a panel runs on its own."""
        for r in range(rows):
            row = f.row(first_row + r)
            most = variable(vector_at(self.space, self.at + r))
            sum_ = variable(vector_at(self.space, self.at + (self.rows >> 1) + r))
            for c in range(scores.filled):
                columns = Columns(value(first_column + c * WIDTH))
                x = f.score(row, columns, variable(vector_at(scores.space, scores.at + c * scores.rows + r)))
                more = ti.max(most, x)
                sum_ = sum_ * vector_exp(most - more, WIDTH) + f.counted(x, more)
                most = more
            put_at(self.space, self.at + r, most)
            put_at(self.space, self.at + (self.rows >> 1) + r, sum_)

    @macro
    def end(self):
        """Nothing is to be brought together: one lane followed all columns."""

    @ti.func
    def total(self, r):
        """Return the running maximum and sum of row ``r`` over all columns."""
        most = variable(vector_at(self.space, self.at + r))
        sum_ = variable(vector_at(self.space, self.at + (self.rows >> 1) + r))
        highest = most[0]
        for k in ti.static(range(1, WIDTH)):
            highest = ti.max(highest, most[k])
        return highest, tree_sum(sum_ * vector_exp(most - highest, WIDTH))


@macro
def _panels(cols):
    """Return the panels of 16 columns that hold ``cols``."""
    return (cols + (WIDTH - 1)) >> 4


@macro
def _whole(rows):
    """Return rows rounded up to what a product takes at a time as steps of its sums."""
    return ((rows + (WIDTH - 1)) >> 4) << 4


@macro
def _column(space, at, u):
    return ti.Vector([element_at(space, at + j, u) for j in range(WIDTH)])
