"""Sum private rows into one: the second pass of a sum over very many rows.

out[c] = Σ_p partial[p, c], in an order fixed by the sizes alone, so two runs give the same bits and no atomics are
needed. Each program of the first pass owns one private row, however many threads ran it.
"""

from functools import lru_cache

import taichi as ti

from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.rows_cpu import Vector, load, store_some
from tkern.lang.rows_gpu import element, put

# A program of a GPU sums 32 columns, 8 lanes to a column: neighbouring lanes read neighbouring columns, and a column
# of a few hundred private rows is a few dozen loads for each of its lanes.
_COLUMNS = 32
_SHARERS = 8
_LANES = _COLUMNS * _SHARERS
# So many columns keep the device busy with a lane for each, and then there is nothing to share.
_MANY = 2**15


def sum_kernel(backend: str, cols: int):
    """Return the kernel ``(partial, out, rows, stride, cols)`` that sums ``rows`` private rows of ``cols`` columns."""
    if backend == "cpu":
        return _cpu()
    if cols >= _MANY:
        return _gpu_long()
    # Blocks are compiled in; a power of two, so that few kernels serve every width.
    return _gpu(1 << max(0, -(-cols // _COLUMNS) - 1).bit_length())


@lru_cache(maxsize=None)
def _cpu():
    @ti.kernel
    def sum_private_rows(
        partial: ti.types.ndarray(dtype=Vector, ndim=1),
        out: ti.types.ndarray(dtype=Vector, ndim=1),
        rows: ti.i32,
        stride: ti.i32,
        cols: ti.i32,
    ):
        ti.loop_config(block_dim=4)
        for b in range((cols + (WIDTH - 1)) >> 4):
            # Eight rows at a time, then those sums: a chain of 16 for 64 rows, since rounding grows with its length.
            s = Vector(0.0)
            for eight in range((rows + 7) >> 3):
                part = Vector(0.0)
                for r in range(eight * 8, ti.min(eight * 8 + 8, rows)):
                    part += load(partial, r * stride + b * WIDTH)
                s += part
            store_some(out, b * WIDTH, cols - b * WIDTH, s)

    return sum_private_rows


@lru_cache(maxsize=None)
def _gpu(padded_blocks: int):
    # Of any rank: ``out`` may be a caller's own device array, with the axes it has.
    array = ti.types.ndarray(dtype=ti.f32)

    @ti.kernel
    def sum_private_rows(partial: array, out: array, rows: ti.i32, stride: ti.i32, cols: ti.i32):
        ti.loop_config(block_dim=_LANES)
        for i in range(padded_blocks * _LANES):
            shared = ti.simt.block.SharedArray((_LANES,), ti.f32)  # tkern: allow gpu-words of the GPU's kernel
            lane = i & (_LANES - 1)
            sharer = lane >> 5
            column = (i >> 8) * _COLUMNS + (lane & (_COLUMNS - 1))
            s = 0.0
            for step in range((rows + (_SHARERS - 1)) // _SHARERS):
                r = step * _SHARERS + sharer
                if r < rows and column < cols:
                    s += element(partial, r * stride + column)
            shared[lane] = s
            ti.simt.block.sync()  # tkern: allow gpu-words of the GPU's kernel
            for bit in ti.static((2, 1, 0)):
                if sharer < (1 << bit):
                    shared[lane] = shared[lane] + shared[lane + (_COLUMNS << bit)]
                ti.simt.block.sync()  # tkern: allow gpu-words of the GPU's kernel
            if sharer == 0 and column < cols:
                put(out, column, shared[lane])

    return sum_private_rows


@lru_cache(maxsize=None)
def _gpu_long():
    # Of any rank, as above.
    array = ti.types.ndarray(dtype=ti.f32)

    @ti.kernel
    def sum_private_rows(partial: array, out: array, rows: ti.i32, stride: ti.i32, cols: ti.i32):
        ti.loop_config(block_dim=_LANES)
        for column in range(cols):
            # Four sums side by side, whose loads do not wait for each other, and then theirs.
            a, b, c, d = 0.0, 0.0, 0.0, 0.0
            for four in range(rows >> 2):
                at = four * 4 * stride + column
                a += element(partial, at)
                b += element(partial, at + stride)
                c += element(partial, at + 2 * stride)
                d += element(partial, at + 3 * stride)
            for r in range(rows >> 2 << 2, rows):
                a += element(partial, r * stride + column)
            put(out, column, (a + b) + (c + d))

    return sum_private_rows
