"""What a lane of a workgroup holds: shared memory, its fragment of a tile of sums, and its part of a slice on its way.

The lanes lie over a tile in a grid, and within a warp (32 lanes) in a grid of 8 × 4, so that lanes that read shared
memory together read few different places of it. A fragment's rows and columns come in groups of four, the groups of
neighbouring lanes side by side; rows may also lie as far apart as there are lanes, where a product reads staged scores
along a row.
"""

import taichi as ti

from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.rows_gpu import element
from tkern.lang.safe import either

# The bits of a float32 that are not its sign; what is at least _INFINITY in them is not finite.
_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000


@macro
def grid(lane, lanes, across):
    """Return a lane's column and row in a grid of ``across`` columns, each warp a block of it."""
    wide, tall = min(across, 4), min(lanes // across, 8)
    low, high = wide.bit_length() - 1, tall.bit_length() - 1
    block, blocks = low + high, across // wide
    column = (lane & (wide - 1)) | (((lane >> block) & (blocks - 1)) << low)
    row = ((lane >> low) & (tall - 1)) | ((lane >> (block + blocks.bit_length() - 1)) << high)
    return value(column), value(row)


@handle
class Shared:
    """The workgroup's memory, in groups of four floats."""

    def __init__(self, fours):
        # Not vectors, which SPIR-V lacks here; on CUDA four neighbours are one load all the same.
        self.array = ti.simt.block.SharedArray((4 * fours,), ti.f32)

    @macro
    def four(self, at):
        """Return four neighbouring floats."""
        return [value(self.array.subscript(at * 4 + u)) for u in range(4)]

    @macro
    def put_four(self, at, numbers):
        for u, v in enumerate(numbers):
            self.array.subscript(at * 4 + u)._assign(v)

    @macro
    def one(self, at):
        """Float ``at``, to be read or assigned to."""
        return self.array.subscript(at)


@handle
class Fragment:
    """The sums of one lane of a grid: rows × columns in groups of four; scattered rows if there is a ``first``."""

    def __init__(self, rows, cols, row, column, tall, across, first=None):
        self.rows = rows
        self.cols = cols
        # The lane's place in the grid, and the grid's size.
        self.at_row = row
        self.at_column = column
        self.tall = tall
        self.across = across
        self.scattered, self.first = first is not None, first or 0
        self.sums = [[variable(0.0) for _ in range(cols)] for _ in range(rows)]

    @macro
    def column(self, j):
        """Return the tile's column of the fragment's column ``j``."""
        return (self.at_column + (j >> 2) * self.across) * 4 + (j & 3)

    @macro
    def row(self, i):
        """Return the tile's row of the fragment's row ``i``."""
        if self.scattered:
            return self.at_row + (self.first + i) * self.tall
        return (self.at_row + (i >> 2) * self.tall) * 4 + (i & 3)

    @macro
    def clear(self):
        for line in self.sums:
            for one in line:
                one._assign(0.0)

    @macro
    def fresh(self):
        """Return another fragment of the same place, all 0."""
        new = Fragment(self.rows, self.cols, self.at_row, self.at_column, self.tall, self.across)
        new.scattered, new.first = self.scattered, self.first
        return new

    @macro
    def copied(self, unused):
        """Return a copy, or this one if it is ``unused``."""
        if unused:
            return self
        new = self.fresh()
        new.assign(self)
        return new

    @macro
    def assign(self, other):
        for line, more in zip(self.sums, other.sums, strict=True):
            for one, v in zip(line, more, strict=True):
                one._assign(v)

    @macro
    def add(self, other):
        for line, more in zip(self.sums, other.sums, strict=True):
            for one, v in zip(line, more, strict=True):
                one._assign(one + v)


@handle
class Slice:
    """Rows × groups of four floats of an operand, on their way into shared memory; a lane carries every lanes-th.

    A row outside of the operand is another one of it: what it is multiplied with is 0, or is not used.
    """

    def __init__(self, program, rows, groups):
        lanes = program.words.lanes
        total = rows * groups
        bits = groups.bit_length() - 1
        self.program = program
        self.passes = -(-total // lanes)
        places = [program.lane + n * lanes for n in range(self.passes)]
        self.inside = [None if (n + 1) * lanes <= total else value(places[n] < total) for n in range(self.passes)]
        self.rows = [value(place >> bits) for place in places]
        self.groups = [value(place & (groups - 1)) for place in places]
        self.starts = [variable(0) for _ in places]
        self.numbers = [[variable(0.0) for _ in range(4)] for _ in places]

    @macro
    def aim(self, operand, first_row, first_column):
        """Note where the lane's rows of a tile begin."""
        last = value(ti.max(operand.count, 1) - 1)
        for n in range(self.passes):
            row = ti.min(first_row + self.rows[n], last)
            self.starts[n]._assign(operand.start + row * operand.stride + first_column + self.groups[n] * 4)

    @ti.func
    def fetch(self, a: ti.template(), first_column, left, columns: ti.template(), zero: ti.template()):
        """Load from ``first_column`` on, where ``left`` of ``columns`` are left; the others are 0 if ``zero``."""
        # No load waits for another one or for a condition, and nothing is done with what is loaded before it is put
        # into shared memory: until then there are other sums to make.
        if left >= columns:
            self.load_all(a, first_column)
        else:
            self.load_left(a, first_column, left, zero)

    @macro
    def load_all(self, a, first_column):
        for n in range(self.passes):
            x = self.program.words.four(a, self.starts[n] + first_column)
            for u in range(4):
                self.numbers[n][u]._assign(x[u])

    @macro
    def load_left(self, a, first_column, left, zero):
        for n in range(self.passes):
            # Past the last column a number is read again.
            own = value(left - self.groups[n] * 4)
            if self.program.words.fours:
                x = self.program.words.four(a, self.starts[n] + first_column + ti.min(own - 4, 0))
            else:
                at = value(self.starts[n] + first_column + ti.min(own - 1, 0))
                x = [element(a, at + ti.max(ti.min(u, own - 1), 0)) for u in range(4)]
            for u in range(4):
                self.numbers[n][u]._assign(ti.select(u < own, x[u], 0.0) if zero else x[u])

    @macro
    def put(self, n, at):
        """Store the lane's n-th group of four."""
        if self.inside[n] is None:
            self.program.shared.put_four(at, self.numbers[n])
        else:
            _put_if(self, n, at)

    @macro
    def put_turned(self, n, at, stride):
        """Store the lane's n-th group of four as a part of a column: rows of ``stride`` groups, from ``at`` on."""
        if self.inside[n] is None:
            self.store_turned(n, at, stride)
        else:
            _put_turned_if(self, n, at, stride)

    @macro
    def store_turned(self, n, at, stride):
        first = value((at + self.groups[n] * 4 * stride) * 4 + self.rows[n])
        for u, x in enumerate(self.numbers[n]):
            self.program.shared.one(first + u * stride * 4)._assign(x)

    @macro
    def has_odd(self, n):
        """Return whether the n-th group has a number that is not finite."""
        found = [(ti.bit_cast(x, ti.i32) & _MAGNITUDE) >= _INFINITY for x in self.numbers[n]]
        return either(either(found[0], found[1]), either(found[2], found[3]))


@ti.func
def _put_if(slice_: ti.template(), n: ti.template(), at):
    if slice_.inside[n]:
        slice_.program.shared.put_four(at, slice_.numbers[n])


@ti.func
def _put_turned_if(slice_: ti.template(), n: ti.template(), at, stride: ti.template()):
    if slice_.inside[n]:
        slice_.store_turned(n, at, stride)
