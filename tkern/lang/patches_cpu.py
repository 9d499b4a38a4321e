"""The way of a convolution's operands into the workspace of a thread, and of its sums out of it, on a CPU.

Cells side by side in a row of the grid read a run of the image, from which they are copied by whole vectors. What a
copy writes past the end of its run the next one overwrites, or it lies in the room behind a tile's row.
"""

import taichi as ti
from taichi.lang import impl

from tkern.lang.macros import builder, macro, value, variable
from tkern.lang.products_cpu import vector_at
from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.rows_cpu import Vector, load, load_scalar, load_some, store, store_scalar, store_some
from tkern.lang.turning_cpu import held, turn_block


@ti.func
def gather_patches(
    tile: ti.template(),
    images: ti.template(),
    rows: ti.template(),
    columns: ti.template(),
    cells: ti.template(),
    first,
    count,
):
    """Fill ``tile`` with ``count`` taps from ``first`` on, at ``cells``."""
    c0 = first // (rows.taps * columns.taps)
    rest = first - c0 * (rows.taps * columns.taps)
    i0 = rest // columns.taps
    j0 = rest - i0 * columns.taps
    image, u, v = cells.place()
    done = 0
    while done < cells.count:
        length = ti.min(cells.width - v, cells.count - done)
        plane = images.start + image * images.image + c0 * images.area
        top = u * rows.stride + rows.off
        side = v * columns.stride + columns.off
        i, j = i0, j0
        to = tile.at * WIDTH + done
        for k in range(count):
            h = top + i * rows.step
            if h >= 0 and h < rows.size:
                w = side + j * columns.step
                _copy_run(tile.space, to, images, plane + h * columns.size, w, columns.size, columns.stride, length)
            else:
                _clear(tile.space, to, length)
            to += tile.stride * WIDTH
            j += 1
            if j == columns.taps:
                j = 0
                i += 1
                if i == rows.taps:
                    i = 0
                    plane += images.area
        done += length
        v = 0
        u += 1
        if u == cells.height:
            u = 0
            image += 1


@ti.func
def _copy_run(space: ti.template(), to, images: ti.template(), line, w, size, stride, length):
    """Write columns w, w + stride, … of the row of ``size`` floats from ``line`` on; 0 for those outside of it."""
    low, high = 0, length
    if w < 0:
        low = ti.min(length, (stride - 1 - w) // stride)
        _clear(space, to, low)
    if w + (length - 1) * stride >= size:
        high = ti.max(low, (size - w + stride - 1) // stride)
    at = line + w + low * stride
    if stride == 1:
        for b in range((high - low + (WIDTH - 1)) >> 4):
            x = at + b * WIDTH
            if x + WIDTH <= images.total:
                store(space, to + low + b * WIDTH, variable(load(images.array, x)))
            else:
                store(space, to + low + b * WIDTH, load_some(images.array, x, images.total - x))
    elif stride == 2:
        for b in range((high - low + (WIDTH - 1)) >> 4):
            x = at + b * 2 * WIDTH
            if x + 2 * WIDTH <= images.total:
                _store_every_other(space, to + low + b * WIDTH, images.array, x)
            else:
                _copy_each(space, to + low + b * WIDTH, images.array, x, 2, ti.min(WIDTH, high - low - b * WIDTH))
    else:
        _copy_each(space, to + low, images.array, at, stride, high - low)
    if high < length:
        _clear(space, to + high, length - high)


@ti.func
def _clear(space: ti.template(), to, length):
    for b in range((length + (WIDTH - 1)) >> 4):
        store(space, to + b * WIDTH, Vector(0.0))


@ti.func
def _copy_each(space: ti.template(), to, a: ti.template(), at, stride, count):
    for k in range(count):
        store_scalar(space, to + k, load_scalar(a, at + k * stride))


@macro
def _store_every_other(space, to, a, at):
    one, other = variable(load(a, at)), variable(load(a, value(at + WIDTH)))
    picked = [impl.subscript(builder(), v, 2 * k) for v in (one, other) for k in range(WIDTH // 2)]
    store(space, to, held(picked))


@ti.func
def load_turned(tile: ti.template(), images: ti.template(), channels, cells: ti.template()):
    """Fill ``tile`` with ``channels`` at ``cells``, a cell a row; what stands past the last channel is undefined."""
    area = cells.height * cells.width
    image = cells.first // area
    at = cells.first - image * area
    done = 0
    while done < cells.count:
        length = ti.min(area - at, cells.count - done)
        for n in range((channels + (WIDTH - 1)) >> 4):
            source = images.start + image * images.image + n * WIDTH * area + at
            last = channels - 1 - n * WIDTH
            for b in range((length + (WIDTH - 1)) >> 4):
                to = tile.at + n * tile.stride + done + b * WIDTH
                x = source + b * WIDTH
                if x + ti.min(last, WIDTH - 1) * area + WIDTH <= images.total:
                    _turn_channels(images.array, x, area, last, tile.space, to)
                else:
                    for r in range(ti.min(WIDTH, last + 1)):
                        for u in range(ti.min(WIDTH, length - b * WIDTH)):
                            store_scalar(tile.space, (to + u) * WIDTH + r, load_scalar(images.array, x + r * area + u))
        done += length
        at = 0
        image += 1


@macro
def _turn_channels(a, at, area, last, space, to):
    turn_block(a, lambda r: at + ti.min(r, last) * area, space, to)


@ti.func
def save_turned(tile: ti.template(), out: ti.template(), start, stride, rows, cols):
    """Write ``rows`` × ``cols`` of ``tile`` transposed, to rows ``stride`` floats apart."""
    for m in range((rows + (WIDTH - 1)) >> 4):
        left = rows - m * WIDTH
        for n in range((cols + (WIDTH - 1)) >> 4):
            _turn_tile(tile, (tile.at + m * WIDTH * tile.stride + n) * WIDTH, left - 1)
            for u in range(ti.min(WIDTH, cols - n * WIDTH)):
                to = start + (n * WIDTH + u) * stride + m * WIDTH
                v = variable(vector_at(tile.space, tile.scratch + u))
                if left >= WIDTH:
                    store(out, to, v)
                else:
                    store_some(out, to, left, v)


@macro
def _turn_tile(tile, at, last):
    turn_block(tile.space, lambda r: at + ti.min(r, last) * (tile.stride * WIDTH), tile.space, tile.scratch)


@ti.func
def save_cells(tile: ti.template(), images: ti.template(), lattice: ti.template(), rows, cells: ti.template()):
    """Write ``rows`` of ``tile`` at ``cells`` to channels of ``images``, the cells where ``lattice`` has them."""
    image, u, v = cells.place()
    done = 0
    while done < cells.count:
        length = ti.min(cells.width - v, cells.count - done)
        line = images.start + image * images.image + (lattice.row + u * lattice.up) * lattice.width
        to = line + lattice.column + v * lattice.over
        for r in range(rows):
            _save_run(
                images.array,
                to + r * images.area,
                lattice.over,
                tile.space,
                (tile.at + r * tile.stride) * WIDTH + done,
                length,
            )
        done += length
        v = 0
        u += 1
        if u == cells.height:
            u = 0
            image += 1


@ti.func
def _save_run(a: ti.template(), to, over, space: ti.template(), at, length):
    if over == 1:
        for b in range(length >> 4):
            store(a, to + b * WIDTH, variable(load(space, at + b * WIDTH)))
        rest = length & (WIDTH - 1)
        if rest > 0:
            store_some(a, to + length - rest, rest, load(space, at + length - rest))
    else:
        for k in range(length):
            store_scalar(a, to + k * over, load_scalar(space, at + k))
