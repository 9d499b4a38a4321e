"""The words of :mod:`tkern.lang.convs` for images on a GPU: a workgroup makes a tile of channels × cells.

A slice has some taps: their weights, and what they read at each cell of the tile. A lane keeps to its cells.
"""

import taichi as ti

from tkern.lang.conv_tiles_gpu import FAR, GpuConvTiles, Taps, TileSums, Workgroup, put_if, shares
from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.rows_gpu import element, put
from tkern.lang.taps import Cells


@handle
class GpuImageTiles(GpuConvTiles):
    """Words for one workgroup per program, which makes ``tile.rows`` channels at ``tile.cols`` cells."""

    def __init__(self, tile: object, launched: int) -> None:
        super().__init__(tile, launched)
        self.cells = tile.cols
        self.key = ("gpu image tiles", tile, launched)

    @macro
    def program(self, i, space, size):
        return _Program(self, i)


@handle
class _Program(Workgroup):
    @macro
    def patches(self):
        return _Patches(self)

    @macro
    def weights(self, rows):
        return _Weights(self)

    @macro
    def sums(self, rows):
        return _Sums(self)


@handle
class _Patches:
    """What taps read, on its way: a lane has ``held`` cells, ``lanes`` apart, and every ``down``-th tap of a slice."""

    def __init__(self, program):
        tile = program.words.tile
        self.program = program
        self.held, self.count, self.down = shares(tile.lanes, tile.cols, tile.slice)
        bits = tile.cols.bit_length() - 1
        self.column = value(program.lane & (tile.cols - 1))
        self.tap = value(program.lane >> bits) if self.down > 1 else 0
        # Where so many taps read at a time, and one more that reads nothing.
        self.taps = Taps(tile.lanes + 1)
        self.begun, self.first = variable(0), variable(0)
        self.cells = [[variable(0) for _ in range(3)] for _ in range(self.held)]
        self.numbers = [[variable(0.0) for _ in range(self.count)] for _ in range(self.held)]

    @ti.func
    def gather(
        self, images: ti.template(), rows: ti.template(), columns: ti.template(), cells: ti.template(), first, count
    ):
        p = self.program
        if self.begun == 0:
            self.first = first
            for n in ti.static(range(self.held)):
                self.aim(n, images, rows, columns, cells)
            if p.lane == 0:
                self.taps.note(p.words.lanes, 0, False, images, rows, columns)
            self.begun = 1
        place = (first - self.first) & (p.words.lanes - 1)
        if place == 0:
            self.taps.note(p.lane, first + p.lane, True, images, rows, columns)
            # The whole workgroup passes here, or none of it.
            ti.simt.block.sync()
        self.fetch(place, images, rows, columns, count)

    @ti.func
    def aim(
        self, n: ti.template(), images: ti.template(), rows: ti.template(), columns: ti.template(), cells: ti.template()
    ):
        cell = self.column + n * self.program.words.lanes
        image, u, v = Cells(cells.first + cell, 1, cells.height, cells.width).place()
        top, side = u * rows.stride + rows.off, v * columns.stride + columns.off
        self.place(n, images.start + image * images.image + top * columns.size + side, top, side, cell < cells.count)

    @macro
    def place(self, n, at, top, side, real):
        self.cells[n][0]._assign(at)
        self.cells[n][1]._assign(ti.select(real, top, FAR))
        self.cells[n][2]._assign(side)

    @macro
    def fetch(self, place, images, rows, columns, count):
        for q in range(self.count):
            tap = value(self.tap + q * self.down)
            at = value(ti.select(tap < count, place + tap, self.program.words.lanes))
            for n in range(self.held):
                x = self.taps.read(at, images, rows, columns, self.cells[n])
                self.numbers[n][q]._assign(x)

    @macro
    def put(self, at, stride):
        first = value((at + self.tap * stride) * 4 + self.column)
        for n, line in enumerate(self.numbers):
            for q, x in enumerate(line):
                to = first + (q * self.down * stride * 4 + n * self.program.words.lanes)
                self.program.shared.one(to)._assign(x)


@handle
class _Weights:
    """Weights on their way: neighbouring lanes have neighbouring taps of a row, and every ``down``-th row."""

    def __init__(self, program):
        tile = program.words.tile
        self.program = program
        _, self.count, self.down = shares(tile.lanes, tile.slice, tile.rows)
        self.tap = value(program.lane & (tile.slice - 1))
        self.row = value(program.lane >> (tile.slice.bit_length() - 1))
        self.numbers = [variable(0.0) for _ in range(self.count)]

    @macro
    def load(self, a, start, term, stride, total, rows, count):
        # A row past the last is the last one again: its sums are not saved. Taps past the last are 0.
        real = value(self.tap < count)
        first = value(start + term + ti.select(real, self.tap, 0))
        for q in range(self.count):
            row = ti.min(self.row + q * self.down, rows - 1)
            self.numbers[q]._assign(ti.select(real, element(a, first + row * stride), 0.0))

    @macro
    def put(self, at, stride):
        rows = self.program.words.tile.rows
        if self.down > rows:
            put_if(self, at, stride, self.row < rows)
        else:
            self.put_all(at, stride)

    @macro
    def put_all(self, at, stride):
        first = value((at + self.tap * stride) * 4 + self.row)
        for q, x in enumerate(self.numbers):
            self.program.shared.one(first + q * self.down)._assign(x)


@handle
class _Sums(TileSums):
    """Channels × cells."""

    @ti.func
    def begin(self, numbers: ti.template(), at, step, rows):
        for i in ti.static(range(self.total.rows)):
            self.set_row(i, element(numbers, at + ti.min(self.total.row(i), rows - 1) * step))

    @macro
    def set_row(self, i, x):
        x = value(x)
        for one in self.total.sums[i]:
            one._assign(x)

    @ti.func
    def add(self, row, weights: ti.template(), patches: ti.template(), rows, cells, count):
        self.step(weights, patches)

    @ti.func
    def save(self, images: ti.template(), lattice: ti.template(), rows, cells: ti.template()):
        self.finish()
        for j in ti.static(range(self.total.cols)):
            cell = self.total.column(j)
            if cell < cells.count:
                image, u, v = Cells(cells.first + cell, 1, cells.height, cells.width).place()
                line = images.start + image * images.image + (lattice.row + u * lattice.up) * lattice.width
                at = line + lattice.column + v * lattice.over
                for i in ti.static(range(self.total.rows)):
                    if self.total.row(i) < rows:
                        put(images.array, at + self.total.row(i) * images.area, self.total.sums[i][j])
