"""Transposing on a CPU: blocks of 8 × 8 floats in registers, by the shuffles that processors have.

Two neighbours are interleaved, then pairs of those, then halves are put together: 24 shuffles for 64 floats. Each is
written as a vector made of elements of two others, which LLVM knows for a shuffle.
"""

import taichi as ti
from taichi.lang import impl

from tkern.lang.macros import builder, macro, value, variable
from tkern.lang.products_cpu import element_at
from tkern.lang.rows import VECTOR_WIDTH as WIDTH

_EIGHT = 8


@macro
def turn_block(a, starts, space, to, one, step=1):
    """Write the transpose of 16 × 16 floats to vectors of ``space``, ``to`` and every ``step``-th from there.

    Row r begins at float ``starts(r)``. ``one`` is 1.0, known at run time only: what is multiplied by it LLVM keeps in
    registers, else it moves each float by itself, four times as slowly.
    """
    for top in (0, _EIGHT):
        for side in (0, _EIGHT):
            rows = [variable(_load(a, value(starts(top + r) + side)) * one) for r in range(_EIGHT)]
            for c, column in enumerate(_turned(rows)):
                for k in range(_EIGHT):
                    element_at(space, to + (side + c) * step, top + k)._assign(_lane(column, k))


@macro
def held(elements):
    """Return a variable that holds a vector of ``elements``: to Taichi a list of them is a text, not yet a value."""
    return variable(variable(ti.Vector(elements)))


@macro
def _load(a, at):
    vector, first = value(at >> 4), value(at & (WIDTH - 1))
    return held([element_at(a, vector, first + k) for k in range(_EIGHT)])


@macro
def _turned(rows):
    pairs = []
    for r in range(0, _EIGHT, 2):
        pairs += [_mix(rows[r], rows[r + 1], low, low + 8, low + 1, low + 9) for low in (0, 2)]
    fours = []
    for half in (0, 4):
        for k in (0, 1):
            one, other = pairs[half + k], pairs[half + k + 2]
            fours += [_mix(one, other, low, low + 1, low + 8, low + 9) for low in (0, 2)]
    columns = []
    for high in (0, 4):
        for k in range(4):
            chosen = [high + n for n in range(4)] + [8 + high + n for n in range(4)]
            columns.append(_chosen(fours[k], fours[k + 4], chosen))
    return columns


@macro
def _mix(a, b, *first):
    """Return four elements of each half of ``a`` and ``b``, those of the first half numbered, b's from 8 on."""
    return _chosen(a, b, [*first, *(n + 4 for n in first)])


@macro
def _chosen(a, b, numbers):
    return held([_lane(a, n) if n < _EIGHT else _lane(b, n - _EIGHT) for n in numbers])


@macro
def _lane(v, k):
    return impl.subscript(builder(), v, k)
