"""Tiles of scores on a CPU: their product, what an op makes of each, and running maxima and sums of their rows."""

import taichi as ti

from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.panels_cpu import Tile, panels_of
from tkern.lang.products_cpu import put_at, scores_product, vector_at
from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.rows_cpu import Vector, tree_sum
from tkern.lang.safe import vector_exp


@handle
class Columns:
    """Sixteen neighbouring columns of scores: the ``first`` and the ``last``, and ``each`` one's number."""

    def __init__(self, first):
        self.first = first
        self.last = first + (WIDTH - 1)
        self.each = ti.Vector([first + k for k in range(WIDTH)])


@handle
class Scores(Tile):
    """A tile of scores, of their weights, or of the gradients of either."""

    def __init__(self, space, at, rows, panels):
        super().__init__(space, at, rows, panels)
        # Panels that a product has filled.
        self.filled = variable(0)

    @ti.func
    def along(self, a: ti.template(), b: ti.template(), depth, band: ti.template()):
        """Set to a·b, ``b`` the turned right operand, ``depth`` columns of ``a``; undefined outside of ``band``."""
        self.filled = panels_of(b.count)
        scores_product(self, a, b, a.count, self.filled, depth, band)

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


@handle
class Running:
    """Running maxima and sums of rows of scores, a vector of each for a row."""

    def __init__(self, most, sums):
        self.most = most
        self.sums = sums

    @ti.func
    def begin(self, lowest):
        for r in range(self.most.rows):
            put_at(self.most.space, self.most.at + r, Vector(lowest))
            put_at(self.sums.space, self.sums.at + r, Vector(0.0))

    @ti.func
    def follow(self, scores: ti.template(), f: ti.template(), first_row, rows, first_column):
        """Take scores in; each of the 16 columns of a panel runs on its own."""
        for r in range(rows):
            row = f.row(first_row + r)
            most, total = self.of_row(r)
            for c in range(scores.filled):
                columns = Columns(value(first_column + c * WIDTH))
                x = f.score(row, columns, variable(vector_at(scores.space, scores.at + c * scores.rows + r)))
                more = ti.max(most, x)
                total = total * vector_exp(most - more, WIDTH) + f.counted(x, more)
                most = more
            put_at(self.most.space, self.most.at + r, most)
            put_at(self.sums.space, self.sums.at + r, total)

    @macro
    def end(self):
        """Nothing is to be brought together: one lane followed all columns."""

    @ti.func
    def total(self, r):
        """Return the maximum and the sum of row ``r`` over all columns."""
        most, total = self.of_row(r)
        highest = most[0]
        for k in ti.static(range(1, WIDTH)):
            highest = ti.max(highest, most[k])
        return highest, tree_sum(total * vector_exp(most - highest, WIDTH))

    @macro
    def of_row(self, r):
        """Return what runs in each of the 16 columns of row ``r``."""
        most, sums = self.most, self.sums
        return variable(vector_at(most.space, most.at + r)), variable(vector_at(sums.space, sums.at + r))


@macro
def _whole(rows):
    """Return rows rounded up to what a product takes at a time as steps of its sums."""
    return ((rows + (WIDTH - 1)) >> 4) << 4
