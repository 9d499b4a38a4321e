"""Tiles of scores on a GPU, in fragments, and what becomes of them.

``along`` only notes its operands: a product is made where it is used, so that one fragment of scores lives at a time.
What ``weigh`` makes is staged in shared memory, where products with it read it.
"""

import taichi as ti

from tkern.lang.fragments_gpu import Fragment
from tkern.lang.macros import handle, macro, value
from tkern.lang.products_gpu import Along, stage, staged_fours
from tkern.lang.safe import both


@handle
class Columns:
    """The one column of a score."""

    def __init__(self, first):
        self.first = first
        self.last = first
        self.each = first


@handle
class Scores:
    """A tile of scores, in fragments."""

    def __init__(self, program):
        words = program.words
        tall = words.lanes // words.across
        self.program = program
        self.part = Fragment(
            words.queries // tall,
            words.keys // words.across,
            program.score_row,
            program.score_column,
            tall,
            words.across,
        )
        self.factors = None
        self.staged = False

    @macro
    def along(self, a, b, depth, band):
        self.factors = a, b.source, depth
        self.band = band
        self.staged = False

    @macro
    def begin(self):
        """Return the product, which is on its way."""
        return Along(self.program, *self.factors)

    @macro
    def make(self):
        self.begin().multiply(self.part)

    @macro
    def stage(self):
        """Put the scores where products read them, unless they are there."""
        if not self.staged:
            _stage_after_others(self.program, self.part)

    @macro
    def lines(self, f, first_row, rows):
        """Return what the scores of each of the fragment's rows share, asked for once, and whether any may count.

        Those of a query that sees no key must not, whatever its numbers are, nor those past the tile's ``rows``.
        """
        return [self.line(f, first_row, rows, i) for i in range(self.part.rows)]

    @macro
    def line(self, f, first_row, rows, i):
        r = value(self.part.row(i))
        row = f.row(value(first_row + ti.min(r, rows - 1)))
        # Not "!= 0", which is false of a NaN on every backend.
        return row, value(both((row.factor == 0.0) == 0, r < rows))

    @macro
    def columns(self, first_column):
        """Return the fragment's columns."""
        return [Columns(value(first_column + self.part.column(j))) for j in range(self.part.cols)]

    @ti.func
    def weigh(self, f: ti.template(), first_row, rows, first_column):
        product = self.begin()
        product.multiply(self.part)
        lines = self.lines(f, first_row, rows)
        self.weigh_all(f, lines, first_row, rows, first_column)
        self.stage_first()

    @ti.func
    def weigh_all(self, f: ti.template(), lines: ti.template(), first_row, rows, first_column):
        if self.is_inside(f, rows, first_column):
            self.weigh_each(f, lines, first_row, rows, first_column, True)
        else:
            self.weigh_each(f, lines, first_row, rows, first_column, False)

    @macro
    def is_inside(self, f, rows, first_column):
        """Return whether all of the tile's scores are visible by position, and none lies outside of the matrix."""
        words, band = self.program.words, self.band
        below = both(band.low <= 1 - words.queries, rows == words.queries)
        above = both(band.high >= words.keys - 1, first_column + words.keys <= f.n.keys)
        return value(both(below, above))

    @macro
    def weigh_each(self, f, lines, first_row, rows, first_column, inside):
        columns = self.columns(first_column)
        for i, line in enumerate(self.part.sums):
            row, counts = lines[i]
            if inside:
                # No score is compared with what its query sees.
                row = row.seeing(-(2**31), 2**31 - 1)
            for j, s in enumerate(line):
                s._assign(ti.select(counts, f.weight(row, columns[j], s), 0.0))

    @macro
    def stage_first(self):
        """Stage scores that were just made: their product has passed barriers since others were read."""
        stage(self.program, self.part)
        self.staged = True

    @ti.func
    def differentiate(self, grads: ti.template(), f: ti.template(), first_row, rows, first_column):
        """Turn scores into P, which is staged, and ``grads`` from dP into dS."""
        product = self.begin()
        product.multiply(self.part)
        lines = self.lines(f, first_row, rows)
        raw = self.part.copied(f.which.plain)
        self.weigh_all(f, lines, first_row, rows, first_column)
        self.stage_first()
        other = grads.begin()
        other.multiply(grads.part)
        self.gradients_each(grads, f, self.lines(f, first_row, rows), raw)

    @macro
    def gradients_each(self, grads, f, lines, raw):
        for i, line in enumerate(grads.part.sums):
            row, _ = lines[i]
            for g in range(grads.part.cols // 4):
                # From where they are staged, so that they take no registers meanwhile.
                weights = staged_fours(self.program, self.part, i, g)
                for u, p in enumerate(weights):
                    dp = line[4 * g + u]
                    dp._assign(f.gradient(row, raw.sums[i][4 * g + u], p, dp))

    @ti.func
    def bias_gradients(self, scores: ti.template(), f: ti.template(), first_row, rows, first_column):
        scores.make()
        self.make()
        self.bias_gradients_each(scores, f, first_row, rows, first_column)

    @macro
    def bias_gradients_each(self, scores, f, first_row, rows, first_column):
        columns = self.columns(first_column)
        for i, line in enumerate(self.part.sums):
            row, counts = self.line(f, first_row, rows, i)
            for j, dp in enumerate(line):
                ds = f.bias_gradient(row, columns[j], scores.part.sums[i][j], dp)
                dp._assign(ti.select(counts, ds, 0.0))


@ti.func
def _stage_after_others(program: ti.template(), part: ti.template()):
    ti.simt.block.sync()
    stage(program, part)
