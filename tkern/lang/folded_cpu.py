"""Sums of tiles of scores on a CPU, for the gradient of a bias."""

import taichi as ti

from tkern.lang.macros import handle, macro
from tkern.lang.products_cpu import element_at, put_at, vector_at
from tkern.lang.rows_cpu import Vector, tree_sum


@handle
class Folded:
    """The sum of many tiles. Added-up rows stand in its first row, added-up columns in its first column."""

    def __init__(self, tile):
        self.tile = tile

    @ti.func
    def begin(self):
        self.tile.clear()

    @ti.func
    def fold(self, other: ti.template(), rows, columns):
        t = self.tile
        for r in range(t.rows):
            to = ti.select(rows == 1, 0, r)
            if columns == 1:
                total = Vector(0.0)
                for c in range(t.panels):
                    total += vector_at(t.space, other.at + c * t.rows + r)
                _add(t.space, t.at + to, tree_sum(total))
            else:
                for c in range(t.panels):
                    at = t.at + c * t.rows + to
                    put_at(t.space, at, vector_at(t.space, at) + vector_at(t.space, other.at + c * t.rows + r))

    @ti.func
    def write(self, a: ti.template(), start, stride, rows, cols):
        self.tile.save(a, start, stride, rows, cols)


@macro
def _add(space, at, v):
    element_at(space, at, 0)._assign(element_at(space, at, 0) + v)
