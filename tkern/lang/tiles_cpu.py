"""The words of :mod:`tkern.lang.tiles` on a CPU: tiles lie in the running thread's workspace, in panels of 16 columns.

One form serves operands, scores and sums (:mod:`tkern.lang.panels_cpu`). The product is a micro-kernel of 4 × 16: eight
sums, two vectors and one broadcast fit the sixteen registers of AVX2 (:mod:`tkern.lang.products_cpu`).
"""

import taichi as ti

from tkern.lang.folded_cpu import Folded
from tkern.lang.kept_cpu import KeptSums, KeptTiles
from tkern.lang.macros import handle, macro, value
from tkern.lang.panels_cpu import Tile, panels_of
from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.rows_cpu import Vector, load, load_scalar, load_some, store, store_scalar, store_some, tree_sum
from tkern.lang.safe import vector_exp
from tkern.lang.scores_cpu import Running, Scores


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
    # Columns of a sum that a program makes: all of them.
    width = 2**30
    key = ("cpu tiles",)

    @macro
    def threads(self, programs):
        return programs

    @macro
    def program(self, i, space, size, chunks):
        return _Program(i, space, value(ti.global_thread_idx() * size))

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
        panels = panels_of(cols) if isinstance(cols, int) else value(panels_of(cols))
        made = Tile(self.space, value(self.base + self.used), rows, panels)
        self.used = value(self.used + rows * panels)
        return made

    @macro
    def right(self, operand, cols):
        """Return room for the transpose of a tile, as the right operand of a product along its columns."""
        panels = operand.rows // WIDTH
        rows = value(panels_of(cols) * WIDTH)
        made = Tile(self.space, value(self.base + self.used), rows, panels)
        self.used = value(self.used + rows * panels)
        return made

    @macro
    def kept(self, rows, cols, places):
        """Return ``places`` for operands that are read again and again."""
        panels = value(panels_of(cols))
        made = KeptTiles(self.space, value(self.base + self.used), rows, panels)
        self.used = value(self.used + places * (rows * panels + 1))
        return made

    @macro
    def kept_sums(self, rows, cols, places, out):
        """Return ``places`` for sums that end up in ``out``."""
        panels = value(panels_of(cols))
        made = KeptSums(self.space, value(self.base + self.used), rows, panels, out)
        self.used = value(self.used + places * (rows * panels))
        return made

    @macro
    def keeps(self, places):
        """Return how many of the places are to be filled and emptied: all of them."""
        return places

    @macro
    def scores(self, rows, cols):
        """Return a tile of scores."""
        tile = self.tile(rows, cols)
        return Scores(tile.space, tile.at, tile.rows, tile.panels)

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
        return Running(self.tile(rows, WIDTH), self.tile(rows, WIDTH))
