"""Channels of images in a thread's workspace, with the zeros around them (see :mod:`tkern.lang.thin_cpu`).

Rows are copied by whole vectors; what a copy writes past the end of a row the next row overwrites.
"""

import taichi as ti

from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.rows_cpu import Vector, load, load_scalar, store, store_scalar, store_some

# Floats that a stretch of cells is rounded up to.
_STRETCH = 4 * WIDTH
# Floats behind a plane's rows: as far as vectors reach past its last cell.
BEHIND = _STRETCH + 2 * WIDTH


@handle
class Planes:
    """Planes of ``step`` floats from float ``at`` of ``space`` on, whose rows are read through a window.

    A row of the window's grid has ``width`` cells. Row ``top`` of the image is the first that its first cell reads.
    """

    def __init__(self, space, rows, columns, width):
        self.space = space
        self.rows = rows
        self.columns = columns
        self.width = width
        down = value((ti.max(rows.taps, 1) - 1) * rows.step)
        across = value((ti.max(columns.taps, 1) - 1) * columns.step)
        self.top = value(rows.off + ti.min(down, 0))
        self.reach = value(ti.abs(down))
        side = value(columns.off + ti.min(across, 0))
        end = value(width + columns.off + ti.max(across, 0))
        # Zeros before the first row, and after each row: as many as are read on either side of the image.
        self.lead = value(ti.max(0, -side))
        self.pitch = value(ti.max(width, columns.size + ti.max(self.lead, end - columns.size)))
        # Where the first tap of the first cell is read.
        self.origin = value((rows.off - self.top) * self.pitch + self.lead + columns.off)
        self.at = variable(0)
        self.step = variable(0)

    @ti.func
    def room(self, cells):
        """Return the floats of a plane that ``cells`` rows of the grid are made from."""
        return (self.lead + (cells + self.reach + 1) * self.pitch + BEHIND + (WIDTH - 1)) // WIDTH * WIDTH

    @ti.func
    def vectors(self, cells):
        """Return the vectors of ``cells`` rows of the grid."""
        return (cells * self.pitch + (_STRETCH - 1)) // _STRETCH * (_STRETCH // WIDTH)

    @ti.func
    def band(self, floats, channels, made, height):
        """Return how many rows of a grid at a time have room: ``channels`` planes, and ``made`` rows of sums."""
        fixed = channels * (self.lead + (self.reach + 1) * self.pitch + BEHIND + WIDTH) + made * _STRETCH
        most = ti.max(1, (floats - fixed) // ((channels + made) * self.pitch))
        parts = (height + most - 1) // most
        return (height + parts - 1) // parts

    @macro
    def tap(self, plane, i, j):
        """Return where the first cell's tap (i, j) is read."""
        at = self.at + plane * self.step + self.origin
        return value(at + i * self.rows.step * self.pitch + j * self.columns.step)

    @macro
    def numbered(self, plane, tap):
        """Return where the first cell's tap is read, taps being numbered in rows."""
        i = value(tap // self.columns.taps)
        return self.tap(plane, i, tap - i * self.columns.taps)

    @ti.func
    def fill(self, plane, images: ti.template(), image, channel, u, cells):
        """Fill a plane with what ``cells`` rows of the grid read, from row ``u`` on."""
        source = images.start + image * images.image + channel * images.area
        to = self.at + plane * self.step
        _clear(self.space, to, self.lead)
        to += self.lead
        count = cells + self.reach
        before = ti.max(0, ti.min(count, -(u + self.top)))
        after = ti.max(before, ti.min(count, self.rows.size - (u + self.top)))
        _clear(self.space, to, before * self.pitch)
        line = source + (u + self.top + before) * self.columns.size
        _copy_rows(
            self.space, to + before * self.pitch, self.pitch, images, line, self.columns.size, self.columns.size,
            after - before,
        )  # fmt: skip
        to += after * self.pitch
        _clear(self.space, to, self.at + plane * self.step + self.room(cells) - WIDTH - to)

    @ti.func
    def fill_cells(self, to, images: ti.template(), image, channel, u, cells, first, count):
        """Write a channel at the grid's cells, 0 elsewhere; only ``count`` cells from column ``first`` of row ``u``.

        Up to 15 floats behind them are written, too.
        """
        line = images.start + image * images.image + channel * images.area + u * self.width
        _copy_rows(self.space, to, self.pitch, images, line, self.width, self.width, cells)
        _clear(self.space, to + cells * self.pitch, self.vectors(cells) * WIDTH - cells * self.pitch)
        _clear_exactly(self.space, to, first)
        last = (first + count) // self.width
        if last < cells:
            begin = last * self.pitch + first + count - last * self.width
            _clear_exactly(self.space, to + begin, cells * self.pitch - begin)


@ti.func
def _copy_rows(space: ti.template(), to, pitch, images: ti.template(), line, width, step, rows):
    """Copy ``rows`` of ``width`` floats, ``step`` apart, and zeros up to the next row; by whole vectors.

    Unless one would reach past the end of the array: that is asked once, since a loop with two ways through it is slow.
    """
    blocks = (width + (WIDTH - 1)) >> 4
    gaps = (pitch - width + (WIDTH - 1)) >> 4
    if line + (rows - 1) * step + blocks * WIDTH <= images.total:
        for r in range(rows):
            source, target = line + r * step, to + r * pitch
            for b in range(blocks):
                store(space, target + b * WIDTH, variable(load(images.array, source + b * WIDTH) * Vector(images.one)))
            for b in range(gaps):
                store(space, target + width + b * WIDTH, Vector(0.0))
    else:
        for r in range(rows):
            for k in range(width):
                store_scalar(space, to + r * pitch + k, load_scalar(images.array, line + r * step + k))
            for b in range(gaps):
                store(space, to + r * pitch + width + b * WIDTH, Vector(0.0))


@ti.func
def _clear(space: ti.template(), to, count):
    for b in range((count + (WIDTH - 1)) >> 4):
        store(space, to + b * WIDTH, Vector(0.0))


@ti.func
def _clear_exactly(space: ti.template(), to, count):
    for k in range(count):
        store_scalar(space, to + k, 0.0)


@ti.func
def save_rows(
    space: ti.template(),
    at,
    pitch,
    images: ti.template(),
    lattice: ti.template(),
    image,
    channel,
    u,
    rows,
    width,
    first,
    count,
):
    """Write ``rows`` of a grid, from row ``u`` on, to a channel: ``count`` cells from column ``first`` on at most."""
    plane = images.start + image * images.image + channel * images.area + lattice.column
    whole = lattice.over == 1 and lattice.up == 1 and width == lattice.width
    end = plane + u * width + ti.min(rows * width, first + count)
    for r in range(rows):
        low = ti.select(r == 0, first, 0)
        length = ti.min(width, first + count - r * width) - low
        to = plane + (lattice.row + (u + r) * lattice.up) * lattice.width + low * lattice.over
        source = at + r * pitch + low
        if lattice.over == 1:
            for b in range(length >> 4):
                _move(images, to + b * WIDTH, space, source + b * WIDTH)
            if length & (WIDTH - 1) > 0:
                if length > WIDTH:
                    _move(images, to + length - WIDTH, space, source + length - WIDTH)
                elif whole and to + WIDTH <= end:
                    # The next row overwrites what is too much.
                    _move(images, to, space, source)
                else:
                    store_some(images.array, to, length, load(space, source))
        else:
            for k in range(length):
                store_scalar(images.array, to + k * lattice.over, load_scalar(space, source + k))


@macro
def _move(images, to, space, at):
    store(images.array, to, variable(load(space, at) * Vector(images.one)))
