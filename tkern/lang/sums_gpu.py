"""Sums of products on a GPU: a program's columns in fragments, or in an array that only this program adds to."""

import taichi as ti

from tkern.lang.fragments_gpu import Fragment
from tkern.lang.macros import handle, macro, value
from tkern.lang.products_gpu import add_product


@handle
class Sums:
    """Rows × the program's columns of sums, in fragments."""

    def __init__(self, program, tile_rows):
        words = program.words
        tall = words.lanes // words.sums_across
        self.program = program
        self.part = Fragment(
            tile_rows // tall,
            words.width // words.sums_across,
            program.sum_row,
            program.sum_column,
            tall,
            words.sums_across,
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
        if self.program.first_column < cols:
            add_product(self.program, self.part, scores, b, cols, True)

    @ti.func
    def add_down(self, scores: ti.template(), b: ti.template(), start, stride, count, cols, band: ti.template()):
        # A lane's rows lie apart, so that lanes that read along their rows side by side meet in no bank.
        self.scatter()
        if self.program.first_column < cols:
            add_product(self.program, self.part, scores, b, cols, False)

    @macro
    def scatter(self):
        self.part.scattered = True

    @ti.func
    def save(self, a: ti.template(), start, stride, count, cols):
        for i in ti.static(range(self.part.rows)):
            row = self.part.row(i)
            if row < count:
                _save_row(self.program, self.part, a, start + row * stride, cols, i, False)


@handle
class OwnSums:
    """Sums in an array that only this program adds to, made by a part of the tile's rows after the other."""

    def __init__(self, program, tile_rows, out):
        words = program.words
        rows = tile_rows * words.sums_across // words.lanes
        cols = words.width // words.sums_across
        tall = words.lanes // words.sums_across
        self.program = program
        self.out = out
        self.rows = min(rows, max(4, 64 // cols))
        places = program.sum_row, program.sum_column, tall, words.sums_across
        self.parts = [Fragment(self.rows, cols, *places, first=first) for first in range(0, rows, self.rows)]

    @macro
    def clear(self, place):
        """The array was set to 0 by a launch before."""

    @macro
    def save(self, place, start, stride, count, cols):
        """Nothing is left to do."""

    @ti.func
    def add_down(self, place, scores: ti.template(), b: ti.template(), start, stride, count, cols, band: ti.template()):
        if self.program.first_column < cols:
            for n in ti.static(range(len(self.parts))):
                self.add_part(self.parts[n], scores, b, start, stride, count, cols)

    @ti.func
    def add_part(self, part: ti.template(), scores: ti.template(), b: ti.template(), start, stride, count, cols):
        program = self.program
        # What is there is on its way while the product is made, unless some of it is not.
        whole = part.row(part.rows - 1) < count and program.first_column + program.words.width <= cols
        part.clear()
        add_product(program, part, scores, b, cols, False)
        if whole:
            self.write(part, start, stride)
        else:
            for i in ti.static(range(part.rows)):
                row = part.row(i)
                if row < count:
                    _save_row(program, part, self.out, start + row * stride, cols, i, True)

    @macro
    def read(self, part, start, stride):
        for i, line in enumerate(part.sums):
            at = value(start + part.row(i) * stride + self.program.first_column)
            for g in range(part.cols // 4):
                for one, x in zip(
                    line[4 * g :], self.program.words.four(self.out, at + part.column(4 * g)), strict=False
                ):
                    one._assign(x)

    @macro
    def write(self, part, start, stride):
        old = part.fresh()
        self.read(old, start, stride)
        part.add(old)
        for i, line in enumerate(part.sums):
            at = value(start + part.row(i) * stride + self.program.first_column)
            for g in range(part.cols // 4):
                self.program.words.put_four(self.out, at + part.column(4 * g), line[4 * g : 4 * g + 4], 4)


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
