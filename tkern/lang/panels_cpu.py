"""A tile on a CPU: panels of 16 columns in memory, one form for operands, scores and sums.

A tile of ``rows`` × ``cols`` is stored as cols/16 panels, each ``rows`` vectors of 16. As the left operand of a product
a scalar is read at a fixed offset from its row, as the right operand a row of a panel is one vector, and as a sum four
neighbouring rows of a panel are four neighbouring vectors.

What lies past a tile's last row or column is 0, so no product need know where that is.
"""

import taichi as ti

from tkern.lang.macros import handle, macro, variable
from tkern.lang.products_cpu import add_scores, element_at, put_at, put_one, vector_at
from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.rows_cpu import Vector, load, load_scalar, store, store_scalar, tree_sum


@macro
def panels_of(cols):
    """Return the panels of 16 columns that hold ``cols``."""
    return (cols + (WIDTH - 1)) >> 4


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
        # 1 where something in the tile is not finite: then 0 times it is not 0.
        self.odd = variable(0)

    @ti.func
    def clear(self):
        for n in range(self.rows * self.panels):
            put_at(self.space, self.at + n, Vector(0.0))

    @ti.func
    def resume(self, a: ti.template(), start, stride, count, cols, again):
        """Begin sums: with the rows of ``a`` that were saved before, or afresh."""
        if again == 1:
            self.load(a, start, stride, 0, count, cols)
        else:
            self.clear()

    @ti.func
    def load(self, a: ti.template(), start, stride, skip, count, cols):
        """Fill from rows of ``cols`` floats of ``a``, the first at float ``start``, ``stride`` floats apart.

        Rows before ``skip`` and from ``count`` on are not read: they become 0.
        """
        self.odd = 0
        self.count = ti.max(count, 0)
        rest = Vector(0.0)
        for r in range(self.rows):
            inside = r >= skip and r < count
            for c in range(self.panels):
                at = self.at + c * self.rows + r
                left = ti.select(inside, cols - c * WIDTH, 0)
                if left >= WIDTH:
                    put_at(self.space, at, load(a, start + r * stride + c * WIDTH))
                else:
                    # One by one: written out sixteen times, the rare case takes seconds to compile.
                    put_at(self.space, at, Vector(0.0))
                    for u in range(left):
                        put_one(self.space, at, u, load_scalar(a, start + r * stride + c * WIDTH + u))
                rest += vector_at(self.space, at) * 0.0
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
                at = self.at + c * self.rows + r
                to = start + r * stride + c * WIDTH
                if left >= WIDTH:
                    store(a, to, variable(vector_at(self.space, at)))
                else:
                    for u in range(left):
                        store_scalar(a, to + u, element_at(self.space, at, u))

    @ti.func
    def add_across(self, scores: ti.template(), b: ti.template(), start, stride, count, cols, band: ti.template()):
        """Add scoresᵀ·b; columns of scores past those that were filled have no part."""
        rows = ti.min(count, scores.filled * WIDTH)
        add_scores(self, scores, b, rows, band, True)

    @ti.func
    def add_down(self, scores: ti.template(), b: ti.template(), start, stride, count, cols, band: ti.template()):
        """Add scores·b."""
        add_scores(self, scores, b, count, band, False)


@macro
def _column(space, at, u):
    return ti.Vector([element_at(space, at + j, u) for j in range(WIDTH)])
