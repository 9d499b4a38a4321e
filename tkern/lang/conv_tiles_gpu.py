"""What the tiles of convolutions on a GPU have in common: the workgroup, its memory, and the product of two slices.

A workgroup makes a tile of sums, a lane a fragment of it. What is multiplied passes through the workgroup's memory a
slice of the sum at a time, each slice in columns: those of the left operand hold a number for each row of the tile,
those of the right one a number for each of its columns. There are two places for slices: while one is multiplied, the
next is on its way from the device's memory into the lane's registers, and then is put into the other place. So a slice
is multiplied when the next one has been asked for, and the last one when the sums are saved.

What a window reads is looked up: where a tap reads, relative to its cell, is divided out once for many taps and held
in the workgroup's memory (``Taps``); a lane holds where its cells are in registers. What lies outside of an image, and
taps and cells past the last, are so far off that the same comparison rules them out: they read 0.
"""

import taichi as ti

from tkern.lang.fragments_gpu import Fragment, Shared, grid
from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.rows_gpu import element
from tkern.lang.safe import both

# So far outside of every image that no offset leads into it, twice that being an i32.
FAR = -(2**29)


@handle
class GpuConvTiles:
    """Words for one workgroup per program, with a tile of the given sizes; what is summed differs."""

    Array = ti.types.ndarray(dtype=ti.f32)
    Numbers = ti.types.ndarray(dtype=ti.i32)

    def __init__(self, tile: object, launched: int) -> None:
        self.tile = tile
        # How many workgroups are launched, 0 for a number known only at run time: that takes a launch of its own.
        self.launched = launched
        self.lanes = tile.lanes
        self.lane_bits = tile.lanes.bit_length() - 1
        # Groups of four floats of a column of a slice, one more than needed against bank conflicts.
        self.left_stride, self.right_stride = tile.rows // 4 + 1, tile.cols // 4 + 1
        self.right_at = tile.slice * self.left_stride
        self.place = self.right_at + tile.slice * self.right_stride

    @macro
    def threads(self, programs):
        return (self.launched or programs) * self.lanes


@handle
class Workgroup:
    """A program: its number, the lane, and the memory that lanes share."""

    def __init__(self, words, i):
        self.words = words
        self.id = value(i >> words.lane_bits)
        self.lane = value(i & (words.lanes - 1))
        self.shared = Shared(2 * words.place)
        # Where the slice lies that is to be multiplied next, and whether there is one.
        self.at = variable(0)
        self.pending = variable(0)
        _enter()

    @macro
    def is_one_of(self, programs):
        return self.id < programs

    @macro
    def fragment(self):
        tile = self.words.tile
        tall = tile.lanes // tile.across
        column, row = grid(self.lane, tile.lanes, tile.across)
        return Fragment(tile.rows // tall, tile.cols // tile.across, row, column, tall, tile.across)

    @ti.func
    def multiply(self, part: ti.template()):
        """Add the product of the slice that is pending, if one is."""
        if self.pending != 0:
            unrolled = self.words.tile.unrolled
            for step in range(self.words.tile.slice // unrolled):
                for u in ti.static(range(self.words.tile.unrolled)):
                    self.multiply_column(part, step * unrolled + u)

    @macro
    def multiply_column(self, part, k):
        words = self.words
        left = value(self.at + k * words.left_stride + part.at_row)
        right = value(self.at + words.right_at + k * words.right_stride + part.at_column)
        a = [x for g in range(part.rows // 4) for x in self.shared.four(left + g * part.tall)]
        b = [x for g in range(part.cols // 4) for x in self.shared.four(right + g * part.across)]
        for line, x in zip(part.sums, a, strict=True):
            for one, y in zip(line, b, strict=True):
                one._assign(one + x * y)


@handle
class TileSums:
    """A tile of sums, a fragment for each lane.

    Products are summed in ``part``, and that is added to ``total`` after every ``chain``-th slice: rounding grows with
    the length of a chain.
    """

    def __init__(self, program):
        self.program = program
        self.chain = program.words.tile.chain
        self.total = program.fragment()
        self.part = self.total.fresh() if self.chain else self.total
        self.slices = variable(0)

    @ti.func
    def step(self, left: ti.template(), right: ti.template()):
        """Add the slice that is pending, then put the next one, which has been fetched, into the other place."""
        p = self.program
        p.multiply(self.part)
        if ti.static(self.chain > 0):
            self.slices += 1
            if self.slices == self.chain + 1:
                self.fold()
                self.slices = 1
        p.at = p.words.place - p.at
        left.put(p.at, p.words.left_stride)
        right.put(p.at + p.words.right_at, p.words.right_stride)
        # Who puts a slice here the next time but one, has passed this when all have multiplied what is there now.
        ti.simt.block.sync()
        p.pending = 1

    @ti.func
    def finish(self):
        """Add what is left."""
        self.program.multiply(self.part)
        if ti.static(self.chain > 0):
            self.fold()

    @macro
    def fold(self):
        self.total.add(self.part)
        self.part.clear()


@ti.func
def _enter():
    # A workgroup makes one program after another: the memory is to be free.
    ti.simt.block.sync()


@handle
class Taps:
    """Where taps read relative to their cell: the float, the row and the column, in the workgroup's memory."""

    def __init__(self, count):
        self.offsets = ti.simt.block.SharedArray((count,), ti.i32)
        self.rows = ti.simt.block.SharedArray((count,), ti.i32)
        self.columns = ti.simt.block.SharedArray((count,), ti.i32)

    @ti.func
    def note(self, place, tap, real, images: ti.template(), rows: ti.template(), columns: ti.template()):
        """Note at ``place`` where ``tap`` reads, nothing unless it is ``real``."""
        line = tap // columns.taps
        channel = line // rows.taps
        h = (line - channel * rows.taps) * rows.step
        w = (tap - line * columns.taps) * columns.step
        self.offsets[place] = channel * images.area + h * columns.size + w
        self.rows[place] = ti.select(real, h, FAR)
        self.columns[place] = w

    @macro
    def read(self, place, images, rows, columns, cell):
        """Return what the tap at ``place`` reads at a cell, a (float, row, column)."""
        at, top, side = cell
        return _read(
            images.array,
            at + self.offsets.subscript(place),
            top + self.rows.subscript(place),
            side + self.columns.subscript(place),
            rows.size,
            columns.size,
        )


@ti.func
def _read(array: ti.template(), at, h, w, height, width):
    # As numbers without a sign, those below 0 are large.
    inside = both(ti.cast(h, ti.u32) < ti.cast(height, ti.u32), ti.cast(w, ti.u32) < ti.cast(width, ti.u32))
    return ti.select(inside, element(array, ti.select(inside, at, 0)), 0.0)


@macro
def shares(lanes, wide, tall):
    """Return how lanes share wide × tall numbers, neighbours side by side: (places along, those down, lanes down)."""
    held, down = max(1, wide // lanes), max(1, lanes // wide)
    return held, max(1, tall // down), down


@ti.func
def put_if(slice_: ti.template(), at, stride: ti.template(), wanted):
    """Put what a lane has, where there is less to put than lanes."""
    if wanted:
        slice_.put_all(at, stride)
