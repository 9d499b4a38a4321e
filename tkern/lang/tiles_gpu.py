"""The words of :mod:`tkern.lang.tiles` on a GPU: a program is a workgroup, a tile's scores lie in its lanes' registers.

An operand is read where it is: ``load`` notes where its rows begin, and a product streams them through shared memory
(:mod:`tkern.lang.products_gpu`). Rows that nothing sees are read like others: their scores count as 0
(:mod:`tkern.lang.scores_gpu`), and what is multiplied by 0 has no effect, whatever it is. Sums of many columns are
split over programs, each with ``width`` columns that fit into registers, which make the scores anew.

The lane is the low bits of the loop's index, which holds on every backend as long as the range is a multiple of
``lanes``; every barrier stands where all lanes of the workgroup pass. There are no atomics, and each sum has a fixed
order, so two runs give the same bits.
"""

from typing import Any

import taichi as ti
from taichi.lang import impl

from tkern.lang.folded_gpu import Folded, Running
from tkern.lang.fragments_gpu import Shared, grid
from tkern.lang.macros import builder, handle, macro, value, variable
from tkern.lang.rows_gpu import element, put
from tkern.lang.scores_gpu import Scores
from tkern.lang.sums_gpu import OwnSums, Sums


@handle
class GpuTiles:
    """Words for one workgroup per program, with tiles of the ``sizes`` that the op's table gives."""

    Array = ti.types.ndarray(dtype=ti.f32)
    rows_each = 1

    def __init__(self, sizes: Any, launched: int, fours: bool) -> None:
        # Whether rows of operands and sums are whole vectors of 4, and are read and written so.
        self.fours = fours
        self.Rows = ti.types.ndarray(dtype=ti.types.vector(4, ti.f32)) if fours else self.Array
        self.sizes = sizes
        self.launched = launched
        self.lanes = sizes.lanes
        self.queries = sizes.queries
        self.keys = sizes.keys
        self.width = sizes.width
        self.slice = sizes.slice
        self.across = sizes.across
        self.sums_across = sizes.sums_across
        self.unrolled = sizes.unrolled
        # Scores are staged in rows of this many groups of four, and slices of operands lie behind them in columns of
        # so many, each one more than they need, against bank conflicts.
        self.staged_stride = self.right_stride = sizes.keys // 4 + 1
        self.left_stride = sizes.queries // 4 + 1
        self.staged = sizes.queries * self.staged_stride
        self.lane_bits = sizes.lanes.bit_length() - 1
        self.key = ("gpu tiles", sizes, launched, fours)

    @macro
    def threads(self, programs):
        return (self.launched or programs) * self.lanes

    @macro
    def program(self, i, space, size, chunks):
        return _Program(self, i, chunks)

    @macro
    def four(self, a, at):
        """Return four neighbouring floats of rows; ``at`` is the first of a vector where they are whole ones."""
        if self.fours:
            v = variable(element(a, at >> 2))
            return [impl.subscript(builder(), v, u) for u in range(4)]
        return [value(element(a, at + u)) for u in range(4)]

    @macro
    def some_four(self, a, at, left):
        """Return four neighbouring floats of rows of which only ``left`` may be read; the others are copies."""
        if self.fours:
            return self.four(a, at)
        return [value(element(a, at + ti.min(u, left - 1))) for u in range(4)]

    @macro
    def put_four(self, a, at, numbers, left):
        """Write the ``left`` first of four neighbouring floats of rows."""
        if self.fours:
            _put_if(left > 0, element(a, at >> 2), ti.Vector(numbers))
        else:
            for u in range(4):
                _put_if(u < left, element(a, at + u), numbers[u])

    @macro
    def scalar(self, a, at):
        return value(element(a, at))

    @macro
    def put_scalar(self, a, at, v):
        put(a, at, v)

    @macro
    def some(self, a, at, count):
        """Return float ``at``; one that exists, where that does not."""
        return value(element(a, at + ti.min(count - 1, 0)))

    @macro
    def exp(self, x):
        return ti.exp(x)

    @macro
    def all(self, x):
        return ti.cast(x, ti.f32)

    @ti.func
    def fill(self, a: ti.template(), i, count, number):
        """Write ``number`` to ``count`` floats, those of this program."""
        start = (i >> self.lane_bits) * 4096 + (i & (self.lanes - 1))
        for step in range(4096 // self.lanes):
            if start + step * self.lanes < count:
                put(a, start + step * self.lanes, number)

    @ti.func
    def dot(self, a: ti.template(), a_at, b: ti.template(), b_at, count):
        total = 0.0
        for step in range(count >> 2):
            x, y = self.four(a, a_at + step * 4), self.four(b, b_at + step * 4)
            total += x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3]
        if ti.static(not self.fours):
            for c in range((count >> 2) << 2, count):
                total += element(a, a_at + c) * element(b, b_at + c)
        return total


@ti.func
def _put_if(wanted, target: ti.template(), v):
    if wanted:
        _assign(target, v)


@macro
def _assign(target, v):
    target._assign(v)


@handle
class _Program:
    def __init__(self, words, i, chunks):
        self.words = words
        self.group = value(i >> words.lane_bits)
        # Programs that share the columns of sums have one number.
        self.id = value(self.group // chunks)
        self.first_column = value((self.group - self.id * chunks) * words.width)
        self.lane = value(i & (words.lanes - 1))
        self.score_column, self.score_row = grid(self.lane, words.lanes, words.across)
        self.sum_column, self.sum_row = grid(self.lane, words.lanes, words.sums_across)
        self.shared = Shared(words.sizes.shared_fours)
        # What slices had numbers that are not finite: see add_product.
        self.mark = variable(0)
        self.marks = ti.simt.block.SharedArray((2,), ti.i32)
        _begin(self)

    @macro
    def is_one_of(self, programs):
        """Return whether there is such a program: more workgroups may be launched than are needed."""
        return self.group < programs

    @macro
    def tile(self, rows, cols):
        """Return an operand."""
        return Tile()

    @macro
    def right(self, operand, cols):
        """Return an operand seen as the right one of ``along``."""
        return _Right()

    @macro
    def scores(self, rows, cols):
        """Return a tile of scores."""
        return Scores(self)

    @macro
    def kept(self, rows, cols, places):
        """Return an operand; nothing is kept here."""
        return Tile()

    @macro
    def kept_sums(self, rows, cols, places, out):
        """Return sums that are added to ``out`` at once."""
        return OwnSums(self, rows, out)

    @macro
    def keeps(self, places):
        """Return how many places are to be filled and emptied."""
        return 0

    @macro
    def sums(self, rows, cols):
        """Return sums of the program's columns."""
        return Sums(self, rows)

    @macro
    def folded(self, rows, cols):
        return Folded(self)

    @macro
    def running(self, rows):
        return Running(self)

    @macro
    def share(self, count):
        """Return how many steps a loop of ``count`` has that the lanes share."""
        return value((count + (self.words.lanes - 1)) >> self.words.lane_bits)

    @macro
    def own(self, step):
        """Return this lane's part of a step; it may lie past the end."""
        return value(step * self.words.lanes + self.lane)


@ti.func
def _begin(program: ti.template()):
    ti.simt.block.sync()
    if program.lane < 2:
        program.marks[program.lane] = -1


@handle
class Tile:
    """Rows of an array, the first ``count`` of a tile's; the others may be any of them."""

    def __init__(self):
        self.a = None
        self.start = variable(0)
        self.stride = variable(0)
        self.count = variable(0)

    @macro
    def load(self, a, start, stride, skip, count, cols):
        self.a = a
        self.start._assign(start)
        self.stride._assign(stride)
        self.count._assign(count)

    @macro
    def keep(self, place, a, start, stride, count, cols, seen, seen_at):
        """Nothing is kept."""

    @macro
    def take(self, place, a, start, stride, count, cols, seen, seen_at):
        self.load(a, start, stride, 0, count, cols)
        self.hide(seen, seen_at, count)

    @macro
    def hide(self, seen, start, count):
        """Note nothing: the scores of hidden rows are 0."""


@handle
class _Right:
    def __init__(self):
        self.source = None

    @macro
    def turn(self, other):
        self.source = other
