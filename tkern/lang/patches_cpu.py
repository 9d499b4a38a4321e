"""The way of a convolution's operands into the workspace of a thread, and of its sums out of it, on a CPU.

Cells side by side in a row of the grid read a run of the image, from which they are copied by whole vectors. What a
copy writes past the end of its run the next one overwrites, or it lies in the room behind a tile's row.
"""

import taichi as ti
from taichi.lang import impl

from tkern.lang.macros import builder, macro, value, variable
from tkern.lang.products_cpu import vector_at
from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.rows_cpu import Vector, load, load_scalar, store, store_scalar, store_some
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
    # Where a grid is as large as the image, a tap reads the whole image from one place on, but for its edges.
    aligned = rows.stride == 1 and columns.stride == 1 and cells.width == columns.size and cells.height == rows.size
    image, u, v = cells.place()
    done = 0
    while done < cells.count:
        length = ti.min(cells.width - v, cells.count - done)
        if aligned:
            length = ti.min((cells.height - u) * cells.width - v, cells.count - done)
        plane = images.start + image * images.image + c0 * images.area
        top = u * rows.stride + rows.off
        side = v * columns.stride + columns.off
        i, j = i0, j0
        to = tile.at * WIDTH + done
        for _ in range(count):
            if aligned:
                down, across = rows.off + i * rows.step, columns.off + j * columns.step
                _copy_image(tile.space, to, images, plane, rows.size, columns.size, down, across, u, v, length)
            else:
                h = top + i * rows.step
                w = side + j * columns.step
                if h >= 0 and h < rows.size:
                    line = plane + h * columns.size
                    _copy_run(tile.space, to, images, line, w, columns.size, columns.stride, length)
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
        if aligned or u == cells.height:
            u = 0
            image += 1


@ti.func
def _copy_image(space: ti.template(), to, images: ti.template(), plane, height, width, down, across, u, v, length):
    """Write the cells from (u, v) on of an image moved by ``down`` rows and ``across`` columns, 0 where it was not."""
    begin = u * width + v
    end = begin + length
    low = ti.min(end, ti.max(begin, -down * width))
    high = ti.max(low, ti.min(end, (height - down) * width))
    source = plane + down * width + across
    target = to - begin
    _clear(space, to, low - begin)
    _copy(space, target + low, images, source + low, high - low)
    _clear(space, target + high, end - high)
    # What came around the edge from the row above or below.
    if across != 0:
        for c in range(ti.min(width, ti.abs(across))):
            q = u * width + ti.select(across < 0, c, width - 1 - c)
            if q < begin:
                q += width
            while q < end:
                store_scalar(space, target + q, 0.0)
                q += width


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
        _copy(space, to + low, images, at, high - low)
    elif stride == 2:
        blocks = (high - low + (WIDTH - 1)) >> 4
        if at + 2 * WIDTH * blocks <= images.total:
            for b in range(blocks):
                _store_every_other(space, to + low + b * WIDTH, images.array, at + b * 2 * WIDTH)
        else:
            _copy_each(space, to + low, images.array, at, 2, high - low)
    else:
        _copy_each(space, to + low, images.array, at, stride, high - low)
    if high < length:
        _clear(space, to + high, length - high)


@ti.func
def _copy(space: ti.template(), to, images: ti.template(), at, count):
    """Copy ``count`` floats, by whole vectors unless one would reach past an end of the array.

    That is asked once, and not for each vector: a loop with a second way through it is several times as slow.
    """
    blocks = (count + (WIDTH - 1)) >> 4
    if at >= 0 and at + blocks * WIDTH <= images.total:
        for b in range(blocks):
            store(space, to + b * WIDTH, variable(load(images.array, at + b * WIDTH) * Vector(images.one)))
    else:
        for k in range(count):
            inside = ti.max(0, ti.min(images.total - 1, at + k))
            store_scalar(space, to + k, load_scalar(images.array, inside))


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
                    _turn_channels(images.array, x, area, last, tile.space, to, images.one)
                else:
                    for r in range(ti.min(WIDTH, last + 1)):
                        for u in range(ti.min(WIDTH, length - b * WIDTH)):
                            store_scalar(tile.space, (to + u) * WIDTH + r, load_scalar(images.array, x + r * area + u))
        done += length
        at = 0
        image += 1


@macro
def _turn_channels(a, at, area, last, space, to, one):
    turn_block(a, lambda r: at + ti.min(r, last) * area, space, to, one)


@ti.func
def load_straight(tile: ti.template(), images: ti.template(), channels, cells: ti.template(), stride):
    """Fill ``tile`` with ``channels`` at ``cells``, a channel a row, ``stride`` vectors apart."""
    area = cells.height * cells.width
    image = cells.first // area
    at = cells.first - image * area
    done = 0
    while done < cells.count:
        length = ti.min(area - at, cells.count - done)
        for c in range(channels):
            source = images.start + image * images.image + c * area + at
            _copy_run(tile.space, (tile.at + c * stride) * WIDTH + done, images, source, 0, length, 1, length)
        done += length
        at = 0
        image += 1


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
    turn_block(tile.space, lambda r: at + ti.min(r, last) * (tile.stride * WIDTH), tile.space, tile.scratch, tile.one)


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
            at = (tile.at + r * tile.stride) * WIDTH + done
            _save_run(images.array, to + r * images.area, lattice.over, tile.space, at, length, images.one)
        done += length
        v = 0
        u += 1
        if u == cells.height:
            u = 0
            image += 1


@ti.func
def _save_run(a: ti.template(), to, over, space: ti.template(), at, length, one):
    if over == 1:
        for b in range(length >> 4):
            store(a, to + b * WIDTH, variable(load(space, at + b * WIDTH) * Vector(one)))
        rest = length & (WIDTH - 1)
        if rest > 0:
            store_some(a, to + length - rest, rest, load(space, at + length - rest))
    else:
        for k in range(length):
            store_scalar(a, to + k * over, load_scalar(space, at + k))
