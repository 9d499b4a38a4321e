"""The words of :mod:`tkern.lang.convs` on a GPU without tiles: a lane is a program, which makes one sum.

A tile is one tap at one cell (or one after another); what it holds is read from where it is. Neighbouring lanes have
neighbouring cells, so they read side by side.
"""

import taichi as ti

from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.rows_gpu import element, put


@handle
class GpuConvs:
    """Words for one lane per program."""

    Array = ti.types.ndarray(dtype=ti.f32)
    Numbers = ti.types.ndarray(dtype=ti.i32)
    lanes = 64
    cells = 1
    # A sum for each span, then those: rounding grows with the length of a chain.
    span = 64
    depth = 2**30
    key = ("gpu convs",)

    @macro
    def threads(self, programs):
        return programs

    @macro
    def program(self, i, space, size):
        return _Program(i)

    @macro
    def scalar(self, a, at):
        return value(element(a, at))

    @macro
    def put_scalar(self, a, at, v):
        put(a, at, v)

    @macro
    def weight_at(self, row, channels, channel, tap, taps):
        """Return where a weight lies: row by row, a channel's taps side by side."""
        return value((row * channels + channel) * taps + tap)


@handle
class _Program:
    def __init__(self, i):
        self.id = i

    @macro
    def is_one_of(self, programs):
        return True

    @macro
    def patches(self):
        return _Patches()

    @macro
    def weights(self, rows):
        return _Weights()

    @macro
    def turned(self, cols):
        return _Turned()

    @macro
    def sums(self, rows):
        return _Sums()

    @macro
    def totals(self, rows, cols):
        return _Totals()


@handle
class _Patches:
    """Notes what is to be read: ``count`` taps from ``first`` on, at ``cells``."""

    def gather(self, images, rows, columns, cells, first, count):
        self.images, self.rows, self.columns, self.cells, self.first = images, rows, columns, cells, first

    gather = macro(gather)

    @ti.func
    def place(self):
        """Return the channel, row and column of the first tap."""
        line = self.first // self.columns.taps
        channel = line // self.rows.taps
        return channel, line - channel * self.rows.taps, self.first - line * self.columns.taps

    @ti.func
    def read(self, image, channel, h, w):
        """Return the float at row ``h`` and column ``w`` of a channel, 0 outside of the image."""
        inside = h >= 0 and h < self.rows.size and w >= 0 and w < self.columns.size
        at = self.images.start + image * self.images.image + channel * self.images.area + h * self.columns.size + w
        return ti.select(inside, element(self.images.array, ti.select(inside, at, 0)), 0.0)

    @ti.func
    def save_turned(self, out: ti.template(), start, stride, count, cells):
        image, u, v = self.cells.place()
        channel, i, j = self.place()
        h = u * self.rows.stride + self.rows.off + i * self.rows.step
        w = v * self.columns.stride + self.columns.off + j * self.columns.step
        put(out, start, self.read(image, channel, h, w))


@handle
class _Weights:
    def load(self, a, start, term, stride, total, rows, count):
        self.array, self.start = a, start + term

    load = macro(load)


@handle
class _Turned:
    def load(self, images, channels, cells):
        self.images = images

    load = macro(load)


@handle
class _Sums:
    """One channel that is made, at one cell."""

    def __init__(self):
        self.total = variable(0.0)

    @ti.func
    def begin(self, numbers: ti.template(), at, step, rows):
        self.total = element(numbers, at)

    @ti.func
    def add(self, row, weights: ti.template(), patches: ti.template(), rows, cells, count):
        vertical, horizontal = patches.rows, patches.columns
        image, u, v = patches.cells.place()
        top = u * vertical.stride + vertical.off
        side = v * horizontal.stride + horizontal.off
        area = vertical.taps * horizontal.taps
        for channel in range(count // ti.max(area, 1)):
            # A sum for each channel, then those: rounding grows with the length of a chain.
            part = 0.0
            for i in range(vertical.taps):
                for j in range(horizontal.taps):
                    x = patches.read(image, channel, top + i * vertical.step, side + j * horizontal.step)
                    at = weights.start + channel * area + i * horizontal.taps + j
                    part += x * element(weights.array, at)
            self.total += part

    @ti.func
    def save(self, images: ti.template(), lattice: ti.template(), rows, cells: ti.template()):
        image, u, v = cells.place()
        line = images.start + image * images.image + (lattice.row + u * lattice.up) * lattice.width
        put(images.array, line + lattice.column + v * lattice.over, self.total)


@handle
class _Totals:
    """One tap with one channel, summed over cells."""

    def __init__(self):
        self.total = variable(0.0)

    @ti.func
    def clear(self, rows):
        self.total = 0.0

    @ti.func
    def add(self, row, patches: ti.template(), turned: ti.template(), rows, cols, count):
        vertical, horizontal, cells = patches.rows, patches.columns, patches.cells
        channel, i, j = patches.place()
        image, u, v = cells.place()
        part = 0.0
        for _ in range(count):
            h = u * vertical.stride + vertical.off + i * vertical.step
            w = v * horizontal.stride + horizontal.off + j * horizontal.step
            at = turned.images.start + image * turned.images.image + u * cells.width + v
            part += patches.read(image, channel, h, w) * element(turned.images.array, at)
            v += 1
            if v == cells.width:
                v = 0
                u += 1
                if u == cells.height:
                    u = 0
                    image += 1
        self.total += part

    @ti.func
    def save_turned(self, out: ti.template(), start, stride, rows, cols):
        put(out, start, self.total)
