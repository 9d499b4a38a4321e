"""The words of :mod:`tkern.lang.convs` on a GPU where channels are few: a lane is a program with sums in registers.

It makes one sum, or those of a few channels of an image at one cell, for which a patch is read once.

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
    span = 256
    depth = 2**30

    def __init__(self, rows):
        self.rows = rows
        self.key = ("gpu convs", rows)

    @macro
    def threads(self, programs):
        return programs

    @macro
    def program(self, i, space, size):
        return _Program(self, i)

    @macro
    def scalar(self, a, at):
        return value(element(a, at))

    @macro
    def put_scalar(self, a, at, v):
        put(a, at, v)


@handle
class _Program:
    def __init__(self, words, i):
        self.words = words
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
        return _Sums(self.words.rows)

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
    def load(self, a, start, stride, total, rows, count):
        self.array, self.start, self.stride, self.last = a, start, stride, rows - 1

    load = macro(load)


@handle
class _Turned:
    def load(self, images, channels, cells):
        self.images = images

    load = macro(load)


@handle
class _Sums:
    """A few channels that are made, at one cell."""

    def __init__(self, rows):
        self.totals = [variable(0.0) for _ in range(rows)]
        self.parts = [variable(0.0) for _ in range(rows)]

    @macro
    def begin(self, numbers, at, step, rows):
        for r, total in enumerate(self.totals):
            total._assign(element(numbers, at + ti.min(r, rows - 1) * step))

    @ti.func
    def add(self, row, weights: ti.template(), patches: ti.template(), rows, cells, count):
        vertical, horizontal = patches.rows, patches.columns
        image, u, v = patches.cells.place()
        top = u * vertical.stride + vertical.off
        side = v * horizontal.stride + horizontal.off
        area = vertical.taps * horizontal.taps
        for channel in range(count // ti.max(area, 1)):
            # A sum for each channel, then those: rounding grows with the length of a chain.
            self.clear_parts()
            for i in range(vertical.taps):
                for j in range(horizontal.taps):
                    x = patches.read(image, channel, top + i * vertical.step, side + j * horizontal.step)
                    self.add_product(weights, channel * area + i * horizontal.taps + j, x)
            self.add_parts()

    @macro
    def clear_parts(self):
        for part in self.parts:
            part._assign(0.0)

    @macro
    def add_product(self, weights, tap, x):
        # A row past the last is the last one again: its sum is not saved.
        for r, part in enumerate(self.parts):
            at = weights.start + ti.min(r, weights.last) * weights.stride + tap
            part._assign(part + x * element(weights.array, at))

    @macro
    def add_parts(self):
        for total, part in zip(self.totals, self.parts, strict=True):
            total._assign(total + part)

    @ti.func
    def save(self, images: ti.template(), lattice: ti.template(), rows, cells: ti.template()):
        image, u, v = cells.place()
        line = images.start + image * images.image + (lattice.row + u * lattice.up) * lattice.width
        at = line + lattice.column + v * lattice.over
        for r in ti.static(range(len(self.totals))):
            if r < rows:
                put(images.array, at + r * images.area, self.totals[r])


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
