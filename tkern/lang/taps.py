"""What a convolution reads where: cells of a grid, and the taps of a window over an image.

A grid has an entry, a *cell*, for each place of the window: they are numbered in rows, image after image. Tap (i, j) of
the window at cell (u, v) reads row u·stride + off + i·step of the image, and its column likewise; outside of the image
it reads 0. The taps of all channels are numbered as the weights of one output lie in memory: (channel, i, j).
"""

import taichi as ti

from tkern.lang.macros import handle


@handle
class Cells:
    """``count`` cells from ``first`` on, of grids of ``height`` × ``width``, one an image."""

    def __init__(self, first, count, height, width):
        self.first = first
        self.count = count
        self.height = height
        self.width = width

    @ti.func
    def place(self):
        """Return the image, row and column of the first cell."""
        line = self.first // self.width
        image = line // self.height
        return image, line - image * self.height, self.first - line * self.width


@handle
class Axis:
    """A window along one axis: the ``size`` of the image, the ``taps``, and where they read (see above)."""

    def __init__(self, size, taps, stride, off, step):
        self.size = size
        self.taps = taps
        self.stride = stride
        self.off = off
        self.step = step


@handle
class Images:
    """Channels of images in an array of ``total`` floats.

    The first channel of the first of ``count`` images begins at float ``start``; a channel has ``area`` floats, an
    image ``image``.
    ``one`` is 1.0, known at run time only: LLVM copies what is multiplied by it 8 floats at a time, else one by one.
    """

    def __init__(self, array, start, image, area, total, one, count):
        self.array = array
        self.start = start
        self.image = image
        self.area = area
        self.total = total
        self.one = one
        self.count = count


@handle
class Lattice:
    """Where a grid's cells lie in an image ``width`` wide: (u, v) at row up·u + ``row``, column over·v + ``column``."""

    def __init__(self, width, row, up, column, over):
        self.width = width
        self.row = row
        self.up = up
        self.column = column
        self.over = over
