"""Tiles on a CPU that lie in an array of their own, one after another, in the form that products take.

An operand that many programs or passes read is packed once. A packed tile is as in :mod:`tkern.lang.tiles_cpu`, cols/16
panels of ``rows`` vectors, and one vector more, whose first float is 1 where something in the tile is not finite.
"""

import taichi as ti

from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.products_cpu import add_scores, element_at


@handle
class PackedTile:
    """One of an array's packed tiles at a time, to be read: an operand of products."""

    def __init__(self, rows, panels):
        self.space = None
        self.at = variable(0)
        self.rows = rows
        self.panels = panels
        self.count = variable(0)
        self.odd = variable(0)

    @macro
    def load(self, a, start, stride, skip, count, cols):
        """Take the tile at float ``start`` of ``a``; what is hidden was set to 0 as it was packed."""
        self.space = a
        self.at._assign(start >> 4)
        self.count._assign(count)
        self.odd._assign(ti.cast(element_at(a, value((start >> 4) + self.rows * self.panels), 0), ti.i32))

    @macro
    def hide(self, seen, start, count):
        """Nothing is left to do."""


@handle
class PackedSums:
    """Sums that lie packed in an array, one tile of them at a time."""

    def __init__(self, rows, panels, space):
        self.space = space
        self.at = variable(0)
        self.rows = rows
        self.panels = panels

    @ti.func
    def add_down(self, scores: ti.template(), b: ti.template(), start, stride, count, cols, band: ti.template()):
        """Add scores·b to the tile at float ``start``."""
        self.at = start >> 4
        add_scores(self, scores, b, count, band, False)
