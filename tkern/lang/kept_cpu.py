"""Tiles on a CPU that a program keeps in its thread's workspace, each in its own place, packed as products take them.

What many passes read is loaded, hidden and checked once, and lies close by: in the second cache, if there are few.
"""

import taichi as ti

from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.panels_cpu import Tile
from tkern.lang.products_cpu import add_scores, element_at, put_at
from tkern.lang.rows_cpu import Vector


@handle
class KeptTiles:
    """Operands in ``places``; ``take`` makes one of them the operand of the products that follow.

    Behind each tile stands a vector whose first float is 1 where something in the tile is not finite.
    """

    def __init__(self, space, first, rows, panels):
        self.space = space
        self.first = first
        self.rows = rows
        self.panels = panels
        self.at = variable(0)
        self.count = variable(0)
        self.odd = variable(0)

    @macro
    def of_place(self, place):
        """Return the vector at which a place begins."""
        return value(self.first + place * (self.rows * self.panels + 1))

    @ti.func
    def keep(self, place, a: ti.template(), start, stride, count, cols, seen: ti.template(), seen_at):
        """Fill a place from ``count`` rows of ``a``, 0 where ``seen`` is 0."""
        tile = Tile(self.space, self.of_place(place), self.rows, self.panels)
        tile.load(a, start, stride, 0, count, cols)
        tile.hide(seen, seen_at, count)
        mark = Vector(0.0)
        mark[0] = ti.cast(tile.odd, ti.f32)
        put_at(self.space, tile.at + self.rows * self.panels, mark)

    @macro
    def take(self, place, a, start, stride, count, cols, seen, seen_at):
        self.at._assign(self.of_place(place))
        self.count._assign(count)
        self.odd._assign(ti.cast(element_at(self.space, self.at + self.rows * self.panels, 0), ti.i32))


@handle
class KeptSums:
    """Sums in places, which end up in an array."""

    def __init__(self, space, first, rows, panels, out):
        self.space = space
        self.first = first
        self.rows = rows
        self.panels = panels
        self.out = out
        self.at = variable(0)

    @macro
    def of_place(self, place):
        """Return the place's sums."""
        return Tile(self.space, value(self.first + place * (self.rows * self.panels)), self.rows, self.panels)

    @ti.func
    def clear(self, place):
        self.of_place(place).clear()

    @ti.func
    def add_down(self, place, scores: ti.template(), b: ti.template(), start, stride, count, cols, band: ti.template()):
        """Add scores·b to a place; where it will be saved is of no concern yet."""
        self.at = self.first + place * (self.rows * self.panels)
        add_scores(self, scores, b, count, band, False)

    @ti.func
    def save(self, place, start, stride, count, cols):
        """Write a place's rows to the array."""
        self.of_place(place).save(self.out, start, stride, count, cols)
