"""Convolution and its gradients: sums of products with patches of an image, each written once for every backend.

With p(n, h, w; c, r, s) = x[n, c, h·stride + r·dilation − padding, …], 0 outside of the image (a *patch*)::

    y[n, k, h, w]  = Σ over c, r, s      w[k, c, r, s] · p(n, h, w; c, r, s)
    dw[k, c, r, s] = Σ over n, h, w      dy[n, k, h, w] · p(n, h, w; c, r, s)
    dx[n, c, h, w] = Σ over k, r, s      w[k, c, r, s] · dy[n, k, (h + padding − r·dilation)/stride, …]

the last over taps for which the quotient is whole: a cell of dx gathers what it fed, and is written once. Cells whose
numbers leave the same rest by the stride (a *phase*) meet the same taps, which read dy side by side: so dx of a phase
is a convolution of dy, and one kernel makes y and dx. The words (``t``, ``p``, tiles) are those of
:mod:`tkern.lang.convs`; who makes what is in :mod:`tkern.ops.conv2d.places`.
"""

import taichi as ti

from tkern.lang.taps import Cells
from tkern.ops.conv2d.places import (
    Part,
    WeightPart,
    before,
    given,
    made_images,
    numbers_for,
    read_images,
    taps_from,
    window,
)

_STRETCH = 64


def convolve(t):
    """Build an image from sums over the patches of another: y from x, or dx from dy.

    Or private images, one for each part of the terms of a sum, ``part_total`` floats apart.
    """

    @ti.kernel
    def conv2d_image(
        a: t.Array, weight: t.Array, bias: t.Array, out: t.Array, space: t.Array, numbers: numbers_for(t),
        programs: ti.i32,
    ):  # fmt: skip
        ti.loop_config(block_dim=t.lanes)
        for thread in range(t.threads(programs)):
            n = given(numbers)
            p = t.program(thread, space, n.size)
            if p.is_one_of(programs):
                at = Part(n, p.id)
                patches, weights, sums = p.patches(), p.weights(n.row_step), p.sums(n.row_step)
                images = read_images(n, a, at.group)
                for tile in range((at.count + (t.cells - 1)) // t.cells):
                    first = tile * t.cells
                    cells = Cells(at.first + first, ti.min(t.cells, at.count - first), at.height, at.width)
                    sums.begin(bias, (at.group * n.made + at.row) * n.bias_step, n.bias_step, at.rows)
                    for step in range((at.last_term - at.first_term + n.depth - 1) // n.depth):
                        term = at.first_term + step * n.depth
                        terms = ti.min(n.depth, at.last_term - term)
                        patches.gather(images, at.vertical, at.horizontal, cells, term, terms)
                        weights.load(weight, at.weight, term, at.terms, n.other_total, at.rows, terms)
                        sums.add(0, weights, patches, at.rows, cells.count, terms)
                    made = made_images(n, out, at.group, at.row, 0, at.part * n.part_total)
                    sums.save(made, at.lattice, at.rows, cells)

    return conv2d_image


def backward_weight(t):
    """Build dw, or private parts of it: one for each slice of the sum over cells, ``stride`` floats apart."""

    @ti.kernel
    def conv2d_backward_weight(
        x: t.Array, dy: t.Array, partial: t.Array, space: t.Array, numbers: numbers_for(t), stride: ti.i32,
        programs: ti.i32,
    ):  # fmt: skip
        ti.loop_config(block_dim=t.lanes)
        for thread in range(t.threads(programs)):
            n = given(numbers)
            p = t.program(thread, space, n.size)
            if p.is_one_of(programs):
                at = WeightPart(n, p.id)
                patches, turned, sums = p.patches(), p.turned(n.col_step), p.totals(n.row_step, n.col_step)
                images = read_images(n, x, at.group)
                grads = made_images(n, dy, at.group, at.col, n.other_total, 0)
                sums.clear(at.rows)
                for step in range((at.last - at.first + (t.span - 1)) // t.span):
                    first = at.first + step * t.span
                    cells = Cells(first, ti.min(t.span, at.last - first), n.made_height, n.made_width)
                    turned.load(grads, at.cols, cells)
                    for block in range((at.rows + (t.depth - 1)) // t.depth):
                        row = block * t.depth
                        rows = ti.min(t.depth, at.rows - row)
                        patches.gather(images, at.vertical, at.horizontal, cells, at.row + row, rows)
                        sums.add(row, patches, turned, rows, at.cols, cells.count)
                taps = n.channels * n.kernel_h * n.kernel_w
                to = at.slice * stride + (at.group * n.made + at.col) * taps + at.row
                sums.save_turned(partial, to, taps, at.rows, at.cols)

    return conv2d_backward_weight


def sum_channels(t):
    """Build the sum of each row of dy, a channel of an image."""

    @ti.kernel
    def conv2d_sum_channels(dy: t.Array, out: t.Array, rows: ti.i32, cols: ti.i32, programs: ti.i32):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs)
            for step in range(p.steps(rows)):
                row = p.row(step, rows, cols)
                dys = row.read(dy)
                total = t.total()
                for b in range(row.steps):
                    for k in ti.static(range(t.steps_unrolled)):
                        c = row.column(b, k)
                        total.add(c, dys.at(c))
                row.store_scalar(out, row.sum(total))

    return conv2d_sum_channels


def im2col(t):
    """Build the matrix of patches, a row for each place of the window."""

    @ti.kernel
    def conv2d_im2col(x: t.Array, out: t.Array, space: t.Array, numbers: numbers_for(t), programs: ti.i32):
        ti.loop_config(block_dim=t.lanes)
        for thread in range(t.threads(programs)):
            n = given(numbers)
            p = t.program(thread, space, n.size)
            if p.is_one_of(programs):
                patches = p.patches()
                images = read_images(n, x, 0)
                vertical, horizontal = window(n)
                cell_part = p.id // n.row_parts
                row = (p.id - cell_part * n.row_parts) * n.row_step
                first = cell_part * n.cell_step
                left = n.batch * n.made_height * n.made_width - first
                cells = Cells(first, ti.min(n.cell_step, left), n.made_height, n.made_width)
                taps = n.channels * n.kernel_h * n.kernel_w
                rows = ti.min(n.row_step, taps - row)
                patches.gather(images, vertical, horizontal, cells, row, rows)
                patches.save_turned(out, first * taps + row, taps, rows, cells.count)

    return conv2d_im2col


def arrange(t):
    """Build the weights as dx meets them: those of a phase together, for each of its channels a row of taps of all k.

    A program arranges the weights of a few input channels of a group, for ``col_step`` of its outputs.
    """

    @ti.kernel
    def conv2d_arrange(weight: t.Array, out: t.Array, numbers: numbers_for(t), programs: ti.i32):
        ti.loop_config(block_dim=t.lanes)
        for thread in range(t.threads(programs)):
            n = given(numbers)
            p = t.program(thread, out, n.size)
            if p.is_one_of(programs):
                area = n.kernel_h * n.kernel_w
                place = p.id // n.col_parts
                begin = (p.id - place * n.col_parts) * n.col_step
                end = ti.min(begin + n.col_step, n.channels)
                group = place // n.row_parts
                c0 = (place - group * n.row_parts) * n.row_step
                c1 = ti.min(c0 + n.row_step, n.made)
                first = (n.done_groups + group) * n.channels * n.all_made + n.done_made
                # In stretches of outputs: the taps of one lie side by side, and are in the cache still for each.
                for stretch in range((end - begin + (_STRETCH - 1)) // _STRETCH):
                    k0 = begin + stretch * _STRETCH
                    k1 = ti.min(k0 + _STRETCH, end)
                    for r in range(n.kernel_h):
                        for s in range(n.kernel_w):
                            i, j = r // n.every_h, s // n.every_w
                            r0, s0 = r - i * n.every_h, s - j * n.every_w
                            taps_h, taps_w = taps_from(r0, n.every_h, n.kernel_h), taps_from(s0, n.every_w, n.kernel_w)
                            phases = before(r0, n.every_h, n.kernel_h) * n.kernel_w
                            phases += taps_h * before(s0, n.every_w, n.kernel_w)
                            taps, tap = taps_h * taps_w, i * taps_w + j
                            to = (group * area + phases) * n.made * n.channels
                            for c in range(c0, c1):
                                source = (first + c) * area + r * n.kernel_w + s
                                for k in range(k0, k1):
                                    x = t.scalar(weight, source + k * n.all_made * area)
                                    t.put_scalar(out, to + t.weight_at(c, n.channels, k, tap, taps), x)

    return conv2d_arrange
