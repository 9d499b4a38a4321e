"""Max pooling, forward and backward, each kernel one text for every backend.

With x(o, i) the cell at place i of window o::

    y(o)       = max over i of x(o, i)
    indices(o) = the first i at which it is that
    dx(c)      = Σ over windows o, places i with x(o, i) = c:  dy(o) where i = indices(o)

Both run over their results: a window looks at its cells, a cell at the windows over it, so each result has one owner
that writes it once, sums have a fixed order, and nothing need be zeroed before. For ties "split" and "all" a cell also
has part in a window whose largest cell equals it, found by the saved index, and for "split" takes one of ``counts``
parts. Which windows lie over a row is found once for the row, and over 16 cells (or one) once for those.

The words (``t``, ``p``, ``row``, …) are those of :mod:`tkern.lang.windows`.
"""

import taichi as ti

from tkern.lang.safe import both, either
from tkern.lang.window_numbers import given, is_nan_order


def forward(t):
    """Build y and indices of x. Arrays: x ``planes·h·w``; y, indices one for each window."""

    @ti.kernel
    def max_pool2d(x: t.Array, y: t.Array, indices: t.Offsets, n: t.Numbers, programs: ti.i32):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs, n)
            for step in range(p.steps(n.rows)):
                row = p.window_row(step)
                for b in range(row.steps):
                    windows = row.windows(b)
                    order, largest, index = windows.least(), windows.nothing(), windows.nowhere()
                    for u in range(row.first, row.last):
                        for v in range(windows.first, windows.last):
                            cell = windows.cell(u, v)
                            x_cell = cell.value(x)
                            x_order = cell.order(x_cell)
                            larger = x_order > order
                            order = ti.select(larger, x_order, order)
                            largest = ti.select(larger, x_cell, largest)
                            index = ti.select(larger, cell.offset, index)
                    windows.put(y, largest)
                    windows.put_offsets(indices, index)

    return max_pool2d


def find(t):
    """Build the indices alone. Arrays as ``forward``."""

    @ti.kernel
    def max_pool2d_find(x: t.Array, indices: t.Offsets, n: t.Numbers, programs: ti.i32):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs, n)
            for step in range(p.steps(n.rows)):
                row = p.window_row(step)
                for b in range(row.steps):
                    windows = row.windows(b)
                    order, index = windows.least(), windows.nowhere()
                    for u in range(row.first, row.last):
                        for v in range(windows.first, windows.last):
                            cell = windows.cell(u, v)
                            x_order = cell.order(cell.value(x))
                            larger = x_order > order
                            order = ti.select(larger, x_order, order)
                            index = ti.select(larger, cell.offset, index)
                    windows.put_offsets(indices, index)

    return max_pool2d_find


def count(t):
    """Build, for each window, how many cells beside the first equal its largest; 0 for a NaN, which equals nothing.

    Arrays as ``forward``; counts like indices; moves ``kh·kw`` int32: from a window's first cell to each of its cells.
    """

    @ti.kernel
    def max_pool2d_count(
        x: t.Array, indices: t.Offsets, moves: t.Moves, counts: t.Offsets, n: t.Numbers, programs: ti.i32
    ):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs, n)
            for step in range(p.steps(n.rows)):
                row = p.window_row(step)
                for b in range(row.steps):
                    windows = row.windows(b)
                    largest = windows.order_at(x, indices, moves)
                    equal = windows.nowhere()
                    for u in range(row.first, row.last):
                        for v in range(windows.first, windows.last):
                            cell = windows.cell(u, v)
                            equal += ti.select(cell.order(cell.value(x)) == largest, 1, 0)
                    windows.put_offsets(counts, ti.select(is_nan_order(largest), 0, equal - 1))

    return max_pool2d_count


@ti.func
def _of_first(window: ti.template(), a: ti.template()):
    """Return dy of a window whose largest cell is this one, and 0 of another."""
    return window.where(window.index(a.indices) == window.offset, window.value(a.dy))


@ti.func
def _wins(window: ti.template(), a: ti.template()):
    """Return whether this cell is the window's first largest, or equals that one and is no NaN."""
    mine, its = window.mine(a.x), window.its(a.x, a.indices, a.moves)
    index = window.index(a.indices)
    equal = both(mine == its, is_nan_order(mine) == 0)
    return either(index == window.offset, both(index >= 0, equal))


@ti.func
def _of_all(window: ti.template(), a: ti.template()):
    return window.where(_wins(window, a), window.value(a.dy))


@ti.func
def _of_split(window: ti.template(), a: ti.template()):
    return window.where(_wins(window, a), window.value(a.dy) / (window.number(a.counts) + 1.0))


def backward(t):
    """Build dx from dy and indices, ties going to the first. Arrays: dx ``planes·h·w``; dy, indices one a window."""

    @ti.kernel
    def max_pool2d_backward(indices: t.Offsets, dy: t.Array, dx: t.Array, n: t.Numbers, programs: ti.i32):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs, n)
            arrays = given(indices=indices, dy=dy)
            for step in range(p.steps(n.rows)):
                row = p.cell_row(step)
                for b in range(row.steps):
                    cells = row.cells(b)
                    total = cells.zero()
                    for u in range(row.windows):
                        for v in range(cells.windows):
                            cells.sum(total, u, v, _of_first, arrays)
                    cells.put(dx, total)

    return max_pool2d_backward


@ti.func
def _first_takes(cell: ti.template(), a: ti.template()):
    return cell.where(a.index == cell.offset, a.dy)


@ti.func
def _equals_take(cell: ti.template(), a: ti.template()):
    equal = both(cell.order(cell.value(a.x)) == a.order, is_nan_order(a.order) == 0)
    return cell.where(either(a.index == cell.offset, equal), a.dy)


def _backward_apart(t, share, split):
    """Build dx from x and dy for windows that lie apart: x, dy and dx each pass through memory once."""

    @ti.kernel
    def max_pool2d_backward_apart(x: t.Array, dy: t.Array, dx: t.Array, n: t.Numbers, programs: ti.i32):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs, n)
            for step in range(p.steps(n.rows)):
                row = p.window_row(step)
                for b in range(row.steps):
                    windows = row.windows(b)
                    order, index = windows.least(), windows.nowhere()
                    parts = windows.nothing() + 1.0
                    for u in range(row.first, row.last):
                        for v in range(windows.first, windows.last):
                            cell = windows.cell(u, v)
                            x_order = cell.order(cell.value(x))
                            larger = x_order > order
                            # Equals are counted while they are the largest so far; a NaN has none.
                            equal = both(x_order == order, is_nan_order(order) == 0)
                            parts = ti.select(larger, 1.0, ti.select(equal, parts + split, parts))
                            order = ti.select(larger, x_order, order)
                            index = ti.select(larger, cell.offset, index)
                    windows.hand_out(dx, share, given(x=x, order=order, index=index, dy=windows.value(dy) / parts))

    return max_pool2d_backward_apart


def backward_apart(t):
    """Build dx from x and dy, ties going to the first, for windows that lie apart. Arrays as ``backward``."""
    return _backward_apart(t, _first_takes, 0.0)


def backward_apart_split(t):
    """As ``backward_apart``, equals sharing dy."""
    return _backward_apart(t, _equals_take, 1.0)


def backward_apart_all(t):
    """As ``backward_apart``, equals each taking the whole of dy."""
    return _backward_apart(t, _equals_take, 0.0)


def _backward_ties(t, share):
    @ti.kernel
    def max_pool2d_backward_ties(
        x: t.Array,
        indices: t.Offsets,
        moves: t.Moves,
        counts: t.Offsets,
        dy: t.Array,
        dx: t.Array,
        n: t.Numbers,
        programs: ti.i32,
    ):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs, n)
            arrays = given(x=x, indices=indices, moves=moves, counts=counts, dy=dy)
            for step in range(p.steps(n.rows)):
                row = p.cell_row(step)
                for b in range(row.steps):
                    cells = row.cells(b)
                    total = cells.zero()
                    for u in range(row.windows):
                        for v in range(cells.windows):
                            cells.sum(total, u, v, share, arrays)
                    cells.put(dx, total)

    return max_pool2d_backward_ties


def backward_split(t):
    """Build dx, dy going in equal parts to cells that are equally large. Arrays as ``backward`` and ``count``."""
    return _backward_ties(t, _of_split)


def backward_all(t):
    """Build dx, the whole of dy going to each cell that is equally large. Arrays as ``backward_split``."""
    return _backward_ties(t, _of_all)
