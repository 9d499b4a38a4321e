"""What a GPU program keeps of many tiles of scores: their sum, and the running maximum and sum of each row."""

import taichi as ti

from tkern.lang.fragments_gpu import Fragment
from tkern.lang.macros import handle, macro, value, variable
from tkern.lang.products_gpu import stage
from tkern.lang.rows_gpu import put
from tkern.lang.scores_gpu import Scores


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
        ti.simt.block.sync()
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
class Running:
    """Running maxima and sums of rows: each lane follows its own columns, ``end`` brings them together."""

    def __init__(self, program):
        words = program.words
        rows = words.queries * words.across // words.lanes
        part = Fragment(rows, 4, program.score_row, program.score_column, words.lanes // words.across, words.across)
        self.program = program
        self.rows = [part.row(i) for i in range(rows)]
        self.most = [variable(0.0) for _ in range(rows)]
        self.sum = [variable(0.0) for _ in range(rows)]

    @macro
    def begin(self, lowest):
        for most, total in zip(self.most, self.sum, strict=True):
            most._assign(lowest)
            total._assign(0.0)

    @macro
    def follow(self, scores, f, first_row, rows, first_column):
        scores.make()
        columns = scores.columns(first_column)
        for i, line in enumerate(scores.part.sums):
            row, _ = scores.line(f, first_row, rows, i)
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
        at = value(running.rows[i] * words.across + program.score_column)
        program.shared.one(at)._assign(most)
        program.shared.one(words.queries * words.across + at)._assign(total)
