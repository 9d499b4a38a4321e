"""The words of :mod:`tkern.lang.convs` for gradients of weights on a GPU: a workgroup makes a tile of taps × channels.

A slice has some cells: what each tap of the tile reads there, and the channels of dy. A lane keeps to its taps and
channels; its cell moves on by a slice at a time.
"""

import taichi as ti

from tkern.lang.conv_tiles_gpu import FAR, GpuConvTiles, Taps, TileSums, Workgroup, shares
from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.rows_gpu import element, put
from tkern.lang.taps import Cells


@handle
class GpuWeightTiles(GpuConvTiles):
    """Words for one workgroup per program, which sums ``tile.rows`` taps × ``tile.cols`` channels."""

    def __init__(self, tile: object, launched: int) -> None:
        super().__init__(tile, launched)
        self.depth, self.span = tile.rows, tile.slice
        self.key = ("gpu weight tiles", tile, launched)

    @macro
    def program(self, i, space, size):
        return _Program(self, i)


@handle
class _Program(Workgroup):
    def __init__(self, words, i):
        super().__init__(words, i)
        # The lane's cell: how far it is in the slice, its image, row and column, and how far those go in a slice.
        self.cell = value(self.lane & (words.span - 1))
        self.image, self.u, self.v = variable(0), variable(0), variable(0)
        self.images, self.up, self.along = variable(0), variable(0), variable(0)
        self.begun = variable(0)

    @macro
    def patches(self):
        return _Patches(self)

    @macro
    def turned(self, cols):
        return _Turned(self)

    @macro
    def totals(self, rows, cols):
        return _Totals(self)

    @ti.func
    def move(self, cells: ti.template()):
        """Go to the lane's cell of the next slice, or of the first one."""
        if self.begun == 0:
            image, u, v = Cells(cells.first + self.cell, 1, cells.height, cells.width).place()
            images, up, along = Cells(self.words.span, 1, cells.height, cells.width).place()
            self.image, self.u, self.v = image, u, v
            self.images, self.up, self.along = images, up, along
            self.begun = 1
        else:
            v = self.v + self.along
            wrapped = v >= cells.width
            u = self.u + self.up + ti.select(wrapped, 1, 0)
            over = u >= cells.height
            self.v = ti.select(wrapped, v - cells.width, v)
            self.u = ti.select(over, u - cells.height, u)
            self.image += self.images + ti.select(over, 1, 0)


@handle
class _Patches:
    """What taps read, on its way: a lane has one cell of a slice, and every ``down``-th tap."""

    def __init__(self, program):
        tile = program.words.tile
        self.program = program
        _, self.count, self.down = shares(tile.lanes, tile.slice, tile.rows)
        self.row = value(program.lane >> (tile.slice.bit_length() - 1))
        self.taps = Taps(tile.rows)
        self.noted = variable(0)
        self.numbers = [variable(0.0) for _ in range(self.count)]

    @ti.func
    def gather(
        self, images: ti.template(), rows: ti.template(), columns: ti.template(), cells: ti.template(), first, count
    ):
        p = self.program
        if self.noted == 0:
            for n in ti.static(range(-(-p.words.tile.rows // p.words.lanes))):
                place = p.lane + n * p.words.lanes
                if place < p.words.tile.rows:
                    self.taps.note(place, first + place, place < count, images, rows, columns)
            # The whole workgroup passes here, or none of it.
            ti.simt.block.sync()
            self.noted = 1
        top, side = p.u * rows.stride + rows.off, p.v * columns.stride + columns.off
        at = images.start + p.image * images.image + top * columns.size + side
        self.fetch(images, rows, columns, at, ti.select(p.cell < cells.count, top, FAR), side)

    @macro
    def fetch(self, images, rows, columns, at, top, side):
        for q in range(self.count):
            x = self.taps.read(self.row + q * self.down, images, rows, columns, (at, top, side))
            self.numbers[q]._assign(x)

    @macro
    def put(self, at, stride):
        _put(self, at, stride)


@handle
class _Turned:
    """Channels of dy on their way: a lane has one cell of a slice, and every ``down``-th channel."""

    def __init__(self, program):
        tile = program.words.tile
        self.program = program
        _, self.count, self.down = shares(tile.lanes, tile.slice, tile.cols)
        self.row = value(program.lane >> (tile.slice.bit_length() - 1))
        self.numbers = [variable(0.0) for _ in range(self.count)]

    @ti.func
    def load(self, images: ti.template(), channels, cells: ti.template()):
        p = self.program
        p.move(cells)
        real = p.cell < cells.count
        at = images.start + p.image * images.image + p.u * cells.width + p.v
        self.fetch(images, ti.select(real, at, images.start), real, channels)

    @macro
    def fetch(self, images, at, real, channels):
        # A channel past the last is the last one again: its sums are not saved. Cells past the last are 0.
        for q in range(self.count):
            channel = ti.min(self.row + q * self.down, channels - 1)
            self.numbers[q]._assign(ti.select(real, element(images.array, at + channel * images.area), 0.0))

    @macro
    def put(self, at, stride):
        _put(self, at, stride)


@macro
def _put(slice_, at, stride):
    first = value((at + slice_.program.cell * stride) * 4 + slice_.row)
    for q, x in enumerate(slice_.numbers):
        slice_.program.shared.one(first + q * slice_.down)._assign(x)


@handle
class _Totals(TileSums):
    """Taps × channels, summed over cells."""

    @macro
    def clear(self, rows):
        """They are 0."""

    @ti.func
    def add(self, row, patches: ti.template(), turned: ti.template(), rows, cols, count):
        self.step(patches, turned)

    @ti.func
    def save_turned(self, out: ti.template(), start, stride, rows, cols):
        self.finish()
        for j in ti.static(range(self.total.cols)):
            col = self.total.column(j)
            if col < cols:
                for i in ti.static(range(self.total.rows)):
                    if self.total.row(i) < rows:
                        put(out, start + col * stride + self.total.row(i), self.total.sums[i][j])
