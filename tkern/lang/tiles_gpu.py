"""The words of :mod:`tkern.lang.tiles` on a GPU: a program is a workgroup, a tile's scores lie in its lanes' registers.

An operand is read where it is: ``load`` notes where its rows begin, ``hide`` which of them count as 0, and a product
streams them through shared memory (:mod:`tkern.lang.products_gpu`). Sums of many columns are split over programs, each
with ``width`` columns that fit into registers, which make the scores anew.

The lane is the low bits of the loop's index, which holds on every backend as long as the range is a multiple of
``lanes``; every barrier stands where all lanes of the workgroup pass. There are no atomics, and each sum has a fixed
order, so two runs give the same bits.
"""

import taichi as ti
from taichi.lang import impl

from tkern.lang.macros import builder, handle, macro, value, variable
from tkern.lang.products_gpu import Fragment, Shared, add_product, along, stage
from tkern.lang.rows_gpu import element, put


@handle
class GpuTiles:
    """Words for one workgroup per program, with tiles of the ``sizes`` that the op's table gives."""

    Array = ti.types.ndarray(dtype=ti.f32)
    rows_each = 1

    def __init__(self, sizes, launched, fours):
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
        # Scores are staged in rows of this many groups of four, one more than they need, against bank conflicts; the
        # slices of the operand that they are multiplied with lie behind them.
        self.staged_stride = sizes.keys // 4 + 1
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
        self.score_column = value(self.lane & (words.across - 1))
        self.score_row = value(self.lane >> (words.across.bit_length() - 1))
        self.sum_column = value(self.lane & (words.sums_across - 1))
        self.sum_row = value(self.lane >> (words.sums_across.bit_length() - 1))
        self.shared = Shared(words.sizes.shared_fours, words.sizes.vectors)
        # What slices had numbers that are not finite: see products_gpu.
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
        return _OwnSums(self, rows, out)

    @macro
    def keeps(self, places):
        """Return how many places are to be filled and emptied."""
        return 0

    @macro
    def sums(self, rows, cols):
        """Return sums of the program's columns."""
        return _Sums(self, rows)

    @macro
    def folded(self, rows, cols):
        return Folded(self)

    @macro
    def running(self, rows):
        return _Running(self)

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
class Columns:
    """The one column of a score."""

    def __init__(self, first):
        self.first = first
        self.last = first
        self.each = first


@handle
class Tile:
    """Rows of an array: those before ``skip``, from ``count`` on and under a veil count as 0."""

    def __init__(self):
        self.a = None
        self.start = variable(0)
        self.stride = variable(0)
        self.skip = variable(0)
        self.count = variable(0)
        self.has_veil = False
        self.veil_at = variable(0)
        self.veiled = variable(0)

    @macro
    def load(self, a, start, stride, skip, count, cols):
        self.a = a
        self.start._assign(start)
        self.stride._assign(stride)
        self.skip._assign(skip)
        self.count._assign(count)
        self.veiled._assign(0)

    @macro
    def keep(self, place, a, start, stride, count, cols, seen, seen_at):
        """Nothing is kept."""

    @macro
    def take(self, place, a, start, stride, count, cols, seen, seen_at):
        self.load(a, start, stride, 0, count, cols)
        self.hide(seen, seen_at, count)

    @macro
    def hide(self, seen, start, count):
        self.has_veil, self.veil = True, seen
        self.veil_at._assign(start)
        self.veiled._assign(1)


@handle
class _Right:
    def __init__(self):
        self.source = None

    @macro
    def turn(self, other):
        self.source = other


@handle
class Scores:
    """A tile of scores, in fragments."""

    def __init__(self, program):
        words = program.words
        rows = words.queries * words.across // words.lanes
        self.program = program
        self.part = Fragment(
            rows,
            words.keys // words.across,
            value(program.score_row * rows),
            value(program.score_column * 4),
            4 * words.across,
        )

    @ti.func
    def along(self, a: ti.template(), b: ti.template(), depth, band: ti.template()):
        along(self.program, self.part, a, b.source, depth)

    @macro
    def row(self, f, first_row, rows, i):
        """Return what the scores of the fragment's row ``i`` share, and whether it is one of the tile's ``rows``."""
        r = value(self.part.first_row + i)
        return f.row(value(first_row + ti.min(r, rows - 1))), value(r < rows)

    @macro
    def columns(self, first_column):
        """Return the fragment's columns."""
        return [Columns(value(first_column + self.part.column(j))) for j in range(self.part.cols)]

    @macro
    def weigh(self, f, first_row, rows, first_column):
        columns = self.columns(first_column)
        for i, line in enumerate(self.part.sums):
            row, inside = self.row(f, first_row, rows, i)
            for j, s in enumerate(line):
                p = f.weight(row, columns[j], s)
                s._assign(ti.select(inside, p, 0.0))

    @macro
    def differentiate(self, grads, f, first_row, rows, first_column):
        columns = self.columns(first_column)
        for i, line in enumerate(self.part.sums):
            row, inside = self.row(f, first_row, rows, i)
            for j, s in enumerate(line):
                dp = grads.part.sums[i][j]
                p, ds = f.weight_and_gradient(row, columns[j], s, dp)
                s._assign(ti.select(inside, p, 0.0))
                dp._assign(ti.select(inside, ds, 0.0))

    @macro
    def bias_gradients(self, scores, f, first_row, rows, first_column):
        columns = self.columns(first_column)
        for i, line in enumerate(self.part.sums):
            row, inside = self.row(f, first_row, rows, i)
            for j, dp in enumerate(line):
                ds = f.bias_gradient(row, columns[j], scores.part.sums[i][j], dp)
                dp._assign(ti.select(inside, ds, 0.0))


@handle
class _Sums:
    """Rows × the program's columns of sums, in fragments."""

    def __init__(self, program, tile_rows):
        words = program.words
        rows = tile_rows * words.sums_across // words.lanes
        self.program = program
        self.part = Fragment(
            rows,
            words.width // words.sums_across,
            value(program.sum_row * rows),
            value(program.sum_column * 4),
            4 * words.sums_across,
        )

    @macro
    def clear(self):
        self.part.clear()

    @macro
    def resume(self, a, start, stride, count, cols, again):
        """Begin afresh: all is summed at one go."""
        self.part.clear()

    @ti.func
    def add_across(self, scores: ti.template(), b: ti.template(), start, stride, count, cols, band: ti.template()):
        add_product(self.program, self.part, scores.part, b, cols, True, False)

    @ti.func
    def add_down(self, scores: ti.template(), b: ti.template(), start, stride, count, cols, band: ti.template()):
        add_product(self.program, self.part, scores.part, b, cols, False, False)

    @ti.func
    def save(self, a: ti.template(), start, stride, count, cols):
        for i in ti.static(range(self.part.rows)):
            row = self.part.first_row + i
            if row < count:
                _save_row(self.program, self.part, a, start + row * stride, cols, i, False)


@handle
class _OwnSums:
    """Sums in an array that only this program adds to."""

    def __init__(self, program, tile_rows, out):
        self.program = program
        self.sums = _Sums(program, tile_rows)
        self.out = out

    @macro
    def clear(self, place):
        """The array is 0 before the launch."""

    @macro
    def save(self, place, start, stride, count, cols):
        """Nothing is left to do."""

    @ti.func
    def add_down(self, place, scores: ti.template(), b: ti.template(), start, stride, count, cols, band: ti.template()):
        part = self.sums.part
        add_product(self.program, part, scores.part, b, cols, False, True)
        for i in ti.static(range(part.rows)):
            row = part.first_row + i
            if row < count:
                _save_row(self.program, part, self.out, start + row * stride, cols, i, True)


@macro
def _save_row(program, part, a, start, cols, i, more):
    for g in range(part.cols // 4):
        column = value(program.first_column + part.column(4 * g))
        numbers = part.sums[i][4 * g : 4 * g + 4]
        _save_four(program.words, a, start + column, numbers, cols - column, more)


@ti.func
def _save_four(words: ti.template(), a: ti.template(), at, numbers: ti.template(), left, more: ti.template()):
    if left > 0:
        if ti.static(more):
            words.put_four(a, at, _sum_of(words.some_four(a, at, left), numbers), left)
        else:
            words.put_four(a, at, numbers, left)


@macro
def _sum_of(some, others):
    return [value(x + y) for x, y in zip(some, others, strict=True)]


@handle
class Folded:
    """The sum of many tiles; its rows or columns are added up at the end, in shared memory."""

    def __init__(self, program):
        self.program = program
        self.sum = Scores(program)
        self.rows = variable(0)
        self.columns = variable(0)

    @macro
    def begin(self):
        self.sum.part.clear()

    @macro
    def fold(self, other, rows, columns):
        self.sum.part.add(other.part)
        self.rows._assign(rows)
        self.columns._assign(columns)

    @ti.func
    def write(self, a: ti.template(), start, stride, rows, cols):
        program = self.program
        words = program.words
        line = 4 * words.staged_stride
        stage(program, self.sum.part)
        ti.simt.block.sync()
        if self.columns == 1:
            for step in range((words.queries + (words.lanes - 1)) // words.lanes):
                r = step * words.lanes + program.lane
                if r < words.queries:
                    total = 0.0
                    for c in range(words.keys):
                        total += program.shared.one(r * line + c)
                    _set(program.shared, r * line, total)
            ti.simt.block.sync()
        if self.rows == 1:
            for step in range((cols + (words.lanes - 1)) // words.lanes):
                c = step * words.lanes + program.lane
                if c < cols:
                    total = 0.0
                    for r in range(words.queries):
                        total += program.shared.one(r * line + c)
                    _set(program.shared, c, total)
            ti.simt.block.sync()
        for step in range((rows * cols + (words.lanes - 1)) // words.lanes):
            place = step * words.lanes + program.lane
            if place < rows * cols:
                r = place // cols
                put(a, start + r * stride + place - r * cols, program.shared.one(r * line + place - r * cols))


@macro
def _set(shared, at, v):
    shared.one(at)._assign(v)


@handle
class _Running:
    """Running maxima and sums of rows: each lane follows its own columns, ``end`` brings them together."""

    def __init__(self, program):
        words = program.words
        rows = words.queries * words.across // words.lanes
        self.program = program
        self.most = [variable(0.0) for _ in range(rows)]
        self.sum = [variable(0.0) for _ in range(rows)]

    @macro
    def begin(self, lowest):
        for most, total in zip(self.most, self.sum, strict=True):
            most._assign(lowest)
            total._assign(0.0)

    @macro
    def follow(self, scores, f, first_row, rows, first_column):
        columns = scores.columns(first_column)
        for i, line in enumerate(scores.part.sums):
            row, _ = scores.row(f, first_row, rows, i)
            xs = [value(f.score(row, columns[j], s)) for j, s in enumerate(line)]
            more = self.most[i]
            for x in xs:
                more = value(ti.max(more, x))
            total = value(self.sum[i] * ti.exp(self.most[i] - more))
            for x in xs:
                total = value(total + f.counted(x, more))
            self.sum[i]._assign(total)
            self.most[i]._assign(more)

    @ti.func
    def end(self):
        ti.simt.block.sync()
        _put_running(self)
        ti.simt.block.sync()

    @ti.func
    def total(self, r):
        """Return the maximum and the sum of row ``r``, its lanes' taken in order."""
        program = self.program
        lanes = program.words.across
        sums = program.words.queries * program.words.across
        first = ti.min(r, program.words.queries - 1) * lanes
        most = value(program.shared.one(first))
        for k in range(1, lanes):
            most = ti.max(most, program.shared.one(first + k))
        total = 0.0
        for k in range(lanes):
            total += program.shared.one(sums + first + k) * ti.exp(program.shared.one(first + k) - most)
        return most, total


@macro
def _put_running(running):
    program = running.program
    words = program.words
    for i, (most, total) in enumerate(zip(running.most, running.sum, strict=True)):
        at = value((program.score_row * len(running.most) + i) * words.across + program.score_column)
        program.shared.one(at)._assign(most)
        program.shared.one(words.queries * words.across + at)._assign(total)
