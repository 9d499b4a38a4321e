"""Products of tiles on a GPU: operands pass through shared memory in slices, sums stay in registers.

Three products make up attention. ``along`` multiplies rows of two operands with each other, ``across`` and ``down``
multiply staged scores (transposed, or as they are) with rows of an operand. A lane of an 8 × 4 fragment reads 12
numbers for 32 multiplications.

While one slice is multiplied the next is on its way from device memory in registers (``Slice``). Every write to
shared memory stands behind a barrier, so a program may begin where the one before it ended. Staged scores have a part
of it to themselves, and stay there while other products pass through the rest.
"""

import taichi as ti

from tkern.lang.fragments_gpu import Slice
from tkern.lang.macros import handle, macro, value


@handle
class Along:
    """The products of rows of ``a`` with rows of ``b``, sums of ``depth`` terms.

    The first slices are on their way once this is made, and what comes between need not wait for them.
    """

    def __init__(self, program, a, b, depth):
        words = program.words
        self.program = program
        self.a, self.b, self.depth = a.a, b.a, depth
        self.left = Slice(program, words.queries, words.slice // 4)
        self.right = Slice(program, words.keys, words.slice // 4)
        self.left.aim(a, 0, 0)
        self.right.aim(b, 0, 0)
        self.fetch(0)

    @ti.func
    def fetch(self, first):
        columns = self.program.words.slice
        self.left.fetch(self.a, first, self.depth - first, columns, True)
        self.right.fetch(self.b, first, self.depth - first, columns, True)

    @ti.func
    def multiply(self, scores: ti.template()):
        """Set ``scores`` to the products."""
        program = self.program
        words = program.words
        scores.clear()
        steps = (self.depth + (words.slice - 1)) // words.slice
        for step in range(steps):
            ti.simt.block.sync()
            _put_turned(program, self.left, self.right)
            ti.simt.block.sync()
            # While a slice is multiplied the next one is on its way.
            if step + 1 < steps:
                self.fetch((step + 1) * words.slice)
            # A slice's sum from 0 on, and then the slices: an error grows with the length of a chain.
            sums = scores.fresh()
            for part in range(words.slice // words.unrolled):
                _steps_along(program, sums, part)
            scores.add(sums)


@macro
def _put_turned(program, left, right):
    """Put slices into shared memory a column beside the other, where a lane reads four rows of a column at once."""
    words = program.words
    for n in range(left.passes):
        left.put_turned(n, words.staged, words.left_stride)
    for n in range(right.passes):
        right.put_turned(n, words.staged + words.left_stride * words.slice, words.right_stride)


@macro
def _steps_along(program, sums, part):
    words, shared = program.words, program.shared
    left = value(words.staged + part * (words.unrolled * words.left_stride) + sums.at_row)
    right = words.staged + words.left_stride * words.slice
    right = value(right + part * (words.unrolled * words.right_stride) + sums.at_column)
    for u in range(words.unrolled):
        a = _fours(shared, left + u * words.left_stride, sums.rows, sums.tall)
        b = _fours(shared, right + u * words.right_stride, sums.cols, sums.across)
        _add_outer(sums, a, b)


@macro
def _fours(shared, at, count, step):
    """Return ``count`` floats, in groups of four that lie ``step`` groups apart."""
    return [one for g in range(count // 4) for one in shared.four(at + g * step)]


@macro
def _add_outer(sums, a, b):
    for line, x in zip(sums.sums, a, strict=True):
        for one, y in zip(line, b, strict=True):
            one._assign(one + x * y)


@macro
def stage(program, scores):
    """Put scores into shared memory, where every lane may read them after the next barrier."""
    shared, stride = program.shared, program.words.staged_stride
    for i in range(scores.rows):
        for g in range(scores.cols // 4):
            at = scores.row(i) * stride + scores.at_column + g * scores.across
            shared.put_four(at, scores.sums[i][4 * g : 4 * g + 4])


@macro
def staged_fours(program, scores, i, g):
    """Return group ``g`` of the lane's row ``i`` of staged scores; a lane may read its own before a barrier."""
    at = scores.row(i) * program.words.staged_stride + scores.at_column + g * scores.across
    return program.shared.four(value(at))


@ti.func
def add_product(
    program: ti.template(), total: ti.template(), scores: ti.template(), b: ti.template(), cols, across: ti.template()
):
    """Add scores·b to ``total``, or scoresᵀ·b where ``across``.

    Only the program's columns of b's ``cols`` are made. A row of b that is multiplied by 0 has no effect, whatever
    is in it: a slice with a number that is not finite is marked, and multiplied with care.
    """
    words = program.words
    part = Slice(program, words.slice, words.width // 4)
    steps = (ti.max(b.count, 0) + (words.slice - 1)) // words.slice
    left = cols - program.first_column
    part.aim(b, 0, program.first_column)
    part.fetch(b.a, 0, left, words.width, False)
    scores.stage()
    sums = total.fresh()
    for step in range(steps):
        program.mark += 1
        ti.simt.block.sync()
        _put_slice(program, part)
        ti.simt.block.sync()
        if step + 1 < steps:
            part.aim(b, (step + 1) * words.slice, program.first_column)
            part.fetch(b.a, 0, left, words.width, False)
        if program.marks[program.mark & 1] == program.mark:
            for k in range(words.slice):
                _step_with_care(program, sums, step * words.slice + k, k, across)
        elif ti.static(across):
            for some in range(words.slice // words.unrolled):
                _steps_across(program, sums, step * words.slice, some * words.unrolled)
        else:
            for group in range(words.slice // 4):
                _step_down(program, sums, step * (words.slice // 4) + group, group)
    # The sum of a tile from 0 on, and then the tiles: an error grows with the length of a chain.
    total.add(sums)


@macro
def _put_slice(program, part):
    words = program.words
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
    return _fours(program.shared, words.staged + k * (words.width // 4) + sums.at_column, sums.cols, sums.across)


@macro
def _steps_across(program, sums, row, first):
    stride = program.words.staged_stride
    left, right = value((row + first) * stride + sums.at_row), value(first)
    for u in range(program.words.unrolled):
        _add_outer(sums, _fours(program.shared, left + u * stride, sums.rows, sums.tall),
                   _right_four(program, sums, right + u))  # fmt: skip


@macro
def _step_down(program, sums, column, group):
    stride = program.words.staged_stride
    at = value(sums.row(0) * stride + column)
    a = [program.shared.four(at + i * (sums.tall * stride)) for i in range(sums.rows)]
    for u in range(4):
        _add_outer(sums, [x[u] for x in a], _right_four(program, sums, group * 4 + u))


@macro
def _step_with_care(program, sums, row, k, across):
    stride = 4 * program.words.staged_stride
    b = _right_four(program, sums, k)
    for i in range(sums.rows):
        at = row * stride + sums.row(i) if across else sums.row(i) * stride + row
        a = value(program.shared.one(at))
        for j in range(sums.cols):
            sums.sums[i][j]._assign(sums.sums[i][j] + ti.select(a == 0.0, 0.0, a * b[j]))
