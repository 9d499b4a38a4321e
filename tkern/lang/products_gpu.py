"""Products of tiles on a GPU: operands pass through shared memory in slices, sums stay in registers.

Three products make up attention. ``along`` multiplies rows of two operands with each other, ``across`` and ``down``
multiply staged scores (transposed, or as they are) with rows of an operand. Each takes its slice of four neighbouring
floats at a time: a lane of an 8 × 8 fragment then reads 16 numbers for 64 multiplications.

While one slice is multiplied the next is on its way from device memory in registers (``Slice``). Every write to
shared memory stands behind a barrier, so a program may begin where the one before it ended.
"""

import taichi as ti
from taichi.lang import impl

from tkern.lang.macros import builder, handle, macro, value, variable
from tkern.lang.rows_gpu import element

# The bits of a float32 that are not its sign; what is at least _INFINITY in them is not finite.
_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000


@handle
class Shared:
    """The workgroup's memory, in groups of four floats."""

    def __init__(self, fours, vectors):
        self.vectors = vectors
        if vectors:
            self.array = ti.simt.block.SharedArray((fours,), ti.types.vector(4, ti.f32))
        else:
            self.array = ti.simt.block.SharedArray((4 * fours,), ti.f32)

    @macro
    def four(self, at):
        """Return four neighbouring floats."""
        if self.vectors:
            v = variable(self.array.subscript(at))
            return [impl.subscript(builder(), v, u) for u in range(4)]
        return [value(self.array.subscript(at * 4 + u)) for u in range(4)]

    @macro
    def put_four(self, at, numbers):
        if self.vectors:
            self.array.subscript(at)._assign(ti.Vector(numbers))
        else:
            for u, v in enumerate(numbers):
                self.array.subscript(at * 4 + u)._assign(v)

    @macro
    def one(self, at):
        """Float ``at``, to be read or assigned to."""
        if self.vectors:
            return impl.subscript(builder(), self.array.subscript(at >> 2), at & 3)
        return self.array.subscript(at)


@handle
class Fragment:
    """The sums of one lane: ``rows`` neighbouring rows, and columns in groups of four that lie ``step`` apart."""

    def __init__(self, rows, cols, first_row, first_column, step):
        self.rows = rows
        self.cols = cols
        self.first_row = first_row
        self.first_column = first_column
        self.step = step
        self.sums = [[variable(0.0) for _ in range(cols)] for _ in range(rows)]

    @macro
    def column(self, j):
        """Return the tile's column of the fragment's column ``j``."""
        return self.first_column + ((j >> 2) * self.step + (j & 3))

    @macro
    def clear(self):
        for line in self.sums:
            for one in line:
                one._assign(0.0)

    @macro
    def fresh(self):
        """Return another fragment of the same place, all 0."""
        return Fragment(self.rows, self.cols, self.first_row, self.first_column, self.step)

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
    """Rows × groups of four floats of an operand, on their way into shared memory; a lane carries every lanes-th."""

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
        # A row is seen unless its veil is 0; past ``left`` columns nothing is.
        self.veils = [variable(0.0) for _ in places]
        self.left = [variable(0) for _ in places]
        self.numbers = [[variable(0.0) for _ in range(4)] for _ in places]

    @macro
    def aim(self, operand, first_row, first_column):
        """Note where the lane's rows of a tile begin, and whether they are seen; one outside of the tile begins at 0."""
        for n in range(self.passes):
            row = value(first_row + self.rows[n])
            inside = value((row >= operand.skip) & (row < operand.count))
            at = operand.start + row * operand.stride + first_column + self.groups[n] * 4
            self.starts[n]._assign(ti.select(inside, at, first_column + self.groups[n] * 4))
            self.veils[n]._assign(_veil_of(operand, row, inside))

    @ti.func
    def fetch(self, a: ti.template(), first_column, left, columns: ti.template()):
        """Load from ``first_column`` on, where ``left`` columns are left; the slice has ``columns``."""
        # No load waits for another one or for a condition, and nothing is done with what is loaded before it is put
        # into shared memory: until then there are other sums to make.
        for n in ti.static(range(self.passes)):
            self.left[n] = left - self.groups[n] * 4
        if left >= columns:
            self.load_all(a, first_column)
        else:
            self.load_left(a, first_column)

    @macro
    def load_all(self, a, first_column):
        for n in range(self.passes):
            x = self.program.words.four(a, self.starts[n] + first_column)
            for u in range(4):
                self.numbers[n][u]._assign(x[u])

    @macro
    def load_left(self, a, first_column):
        for n in range(self.passes):
            # Past the last column a number is read again.
            left = self.left[n]
            if self.program.words.fours:
                x = self.program.words.four(a, self.starts[n] + first_column + ti.min(left - 4, 0))
            else:
                at = value(self.starts[n] + first_column + ti.min(left - 1, 0))
                x = [element(a, at + ti.max(ti.min(u, left - 1), 0)) for u in range(4)]
            for u in range(4):
                self.numbers[n][u]._assign(x[u])

    @macro
    def settle(self):
        """Set to 0 what is not seen."""
        for n in range(self.passes):
            # Not "!= 0", which is false of a NaN on every backend.
            seen = value((self.veils[n] == 0.0) == 0)
            for u, x in enumerate(self.numbers[n]):
                x._assign(ti.select(seen & (u < self.left[n]), x, 0.0))

    @macro
    def put(self, n, at):
        """Store the lane's n-th group of four."""
        if self.inside[n] is None:
            self.program.shared.put_four(at, self.numbers[n])
        else:
            _put_if(self, n, at)

    @macro
    def has_odd(self, n):
        """Return whether the n-th group has a number that is not finite."""
        found = [(ti.bit_cast(x, ti.i32) & _MAGNITUDE) >= _INFINITY for x in self.numbers[n]]
        return found[0] | found[1] | found[2] | found[3]


@ti.func
def _put_if(slice_: ti.template(), n: ti.template(), at):
    if slice_.inside[n]:
        slice_.program.shared.put_four(at, slice_.numbers[n])


@ti.func
def _veil_of(operand: ti.template(), row, inside):
    """Return what is not 0 if the row is seen; nothing may ask before it must."""
    veil = ti.select(inside, 1.0, 0.0)
    if ti.static(operand.has_veil):
        if operand.veiled == 1 and inside:
            veil = element(operand.veil, operand.veil_at + row)
    return veil


@ti.func
def along(program: ti.template(), scores: ti.template(), a: ti.template(), b: ti.template(), depth):
    """Set ``scores`` to the products of rows of ``a`` with rows of ``b``, sums of ``depth`` terms."""
    words = program.words
    left, right = Slice(program, words.queries, words.slice // 4), Slice(program, words.keys, words.slice // 4)
    scores.clear()
    left.aim(a, 0, 0)
    right.aim(b, 0, 0)
    steps = (depth + (words.slice - 1)) // words.slice
    # While a slice is multiplied the next one is on its way.
    for step in range(steps + 1):
        if step < steps:
            first = step * words.slice
            left.fetch(a.a, first, depth - first, words.slice)
            right.fetch(b.a, first, depth - first, words.slice)
        if step > 0:
            for group in range(words.slice // 4):
                _step_along(program, scores, group)
        ti.simt.block.sync()
        if step < steps:
            _put_rows(program, left, right)
        ti.simt.block.sync()


@macro
def _put_rows(program, left, right):
    words = program.words
    stride = words.slice // 4 + 1
    left.settle()
    right.settle()
    for n in range(left.passes):
        left.put(n, left.rows[n] * stride + left.groups[n])
    mask = 4 * words.across - 1
    shift = words.across.bit_length() - 1
    for n in range(right.passes):
        # Neighbouring rows lie apart, so that lanes that read them side by side meet in no bank.
        row = right.rows[n]
        place = (row & ~mask) | ((row & 3) << shift) | ((row & mask) >> 2)
        right.put(n, (words.queries + place) * stride + right.groups[n])


@macro
def _step_along(program, scores, group):
    words = program.words
    stride = words.slice // 4 + 1
    left = value(scores.first_row * stride + group)
    right = value((words.queries + program.score_column) * stride + group)
    a = [program.shared.four(left + i * stride) for i in range(scores.rows)]
    for j in range(scores.cols):
        b = program.shared.four(right + ((j >> 2) * 4 + (j & 3)) * words.across * stride)
        for i in range(scores.rows):
            _add_four(scores.sums[i][j], a[i], b)


@macro
def _add_four(total, a, b):
    total._assign((((total + a[0] * b[0]) + a[1] * b[1]) + a[2] * b[2]) + a[3] * b[3])


@ti.func
def stage(program: ti.template(), scores: ti.template()):
    """Put scores into shared memory, where every lane may read them after the next barrier."""
    ti.simt.block.sync()
    _put_scores(program, scores)


@macro
def _put_scores(program, scores):
    stride = program.words.staged_stride
    for i in range(scores.rows):
        for g in range(scores.cols // 4):
            at = (scores.first_row + i) * stride + program.score_column + g * program.words.across
            program.shared.put_four(at, scores.sums[i][4 * g : 4 * g + 4])


@ti.func
def add_product(
    program: ti.template(),
    total: ti.template(),
    scores: ti.template(),
    b: ti.template(),
    cols,
    across: ti.template(),
    afresh: ti.template(),
):
    """Add scores·b to ``total``, or scoresᵀ·b where ``across``; set it to that where ``afresh``.

    Only the program's columns of b's ``cols`` are made. A row of b that is multiplied by 0 has no effect, whatever
    is in it: a slice with a number that is not finite is marked, and multiplied with care.
    """
    words = program.words
    if program.first_column < cols:
        stage(program, scores)
        sums = total.fresh()
        part = Slice(program, words.slice, words.width // 4)
        steps = (ti.max(b.count, 0) + (words.slice - 1)) // words.slice
        left = cols - program.first_column
        for step in range(steps + 1):
            if step < steps:
                part.aim(b, step * words.slice, program.first_column)
                part.fetch(b.a, 0, left, words.width)
            if step > 0:
                if program.marks[program.mark & 1] == program.mark:
                    for k in range(words.slice):
                        _step_with_care(program, sums, (step - 1) * words.slice + k, k, across)
                elif ti.static(across):
                    for k in range(words.slice):
                        _step_across(program, sums, (step - 1) * words.slice + k, k)
                else:
                    for group in range(words.slice // 4):
                        _step_down(program, sums, (step - 1) * (words.slice // 4) + group, group)
            program.mark += 1
            ti.simt.block.sync()
            if step < steps:
                _put_slice(program, part)
            ti.simt.block.sync()
        if ti.static(afresh):
            total.assign(sums)
        else:
            # The sum of a tile from 0 on, and then the tiles: an error grows with the length of a chain.
            total.add(sums)


@macro
def _put_slice(program, part):
    words = program.words
    part.settle()
    for n in range(part.passes):
        part.put(n, words.staged + part.rows[n] * (words.width // 4) + part.groups[n])
        _mark(program, part, n)


@ti.func
def _mark(program: ti.template(), part: ti.template(), n: ti.template()):
    # Two places by turns: some lanes put the next slice while others still ask about this one.
    if part.has_odd(n):
        program.marks[program.mark & 1] = program.mark


@macro
def _right_four(program, sums, k):
    """Return row k of the slice at the columns of the fragment."""
    words = program.words
    at = value(words.staged + k * (words.width // 4) + program.sum_column)
    return [one for g in range(sums.cols // 4) for one in program.shared.four(at + g * words.sums_across)]


@macro
def _step_across(program, sums, row, k):
    at = value(row * program.words.staged_stride + program.sum_row * (sums.rows // 4))
    a = [one for g in range(sums.rows // 4) for one in program.shared.four(at + g)]
    b = _right_four(program, sums, k)
    for i in range(sums.rows):
        for j in range(sums.cols):
            sums.sums[i][j]._assign(sums.sums[i][j] + a[i] * b[j])


@macro
def _step_down(program, sums, column, group):
    stride = program.words.staged_stride
    at = value(sums.first_row * stride + column)
    a = [program.shared.four(at + i * stride) for i in range(sums.rows)]
    for u in range(4):
        b = _right_four(program, sums, group * 4 + u)
        for i in range(sums.rows):
            for j in range(sums.cols):
                sums.sums[i][j]._assign(sums.sums[i][j] + a[i][u] * b[j])


@macro
def _step_with_care(program, sums, row, k, across):
    stride = 4 * program.words.staged_stride
    b = _right_four(program, sums, k)
    for i in range(sums.rows):
        at = row * stride + sums.first_row + i if across else (sums.first_row + i) * stride + row
        a = value(program.shared.one(at))
        for j in range(sums.cols):
            sums.sums[i][j]._assign(sums.sums[i][j] + ti.select(a == 0.0, 0.0, a * b[j]))
