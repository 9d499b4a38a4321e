"""Kernels of shared memory for ``tests/test_lint.py``, as ``lint_faults.py``: its name says that it is for a GPU."""

import taichi as ti

Floats = ti.types.ndarray(dtype=ti.f32, ndim=1)


@ti.kernel
def shared_sum(y: Floats):
    ti.loop_config(block_dim=64)
    for i in range(64):
        shared = ti.simt.block.SharedArray((64,), ti.f32)
        shared[i & 63] = y[i]
        ti.simt.block.sync()
        shared[i & 63] += 2.0  # fault: shared-add
        shared[i & 63] = shared[i & 63] + 2.0
        ti.simt.block.sync()
        y[i] = shared[i & 63]


@ti.kernel
def shared_vectors(y: Floats):
    ti.loop_config(block_dim=64)
    for i in range(64):
        fours = ti.simt.block.SharedArray((64,), ti.types.vector(4, ti.f32))  # fault: shared-vector
        numbers = ti.simt.block.SharedArray((256,), ti.f32)
        numbers[i] = y[i]
        y[i] = fours[i][0]


@ti.kernel
def parted(y: Floats, n: ti.i32):
    ti.loop_config(block_dim=64)
    for i in range(64):
        lane = i & 63
        shared = ti.simt.block.SharedArray((64,), ti.f32)
        shared[lane] = 0.0
        ti.simt.block.sync()
        if lane < 32:
            ti.simt.block.sync()  # fault: divergent-barrier
            y[i] = shared[lane + 32]
        else:
            shared[lane] = 3.0
        ti.simt.block.sync()


@ti.kernel
def parted_by_loops(y: Floats, n: ti.i32):
    ti.loop_config(block_dim=64)
    for i in range(64):
        half = (i & 63) >> 1
        for _step in range(half):
            ti.simt.block.sync()  # fault: divergent-barrier
        for _step in range(n):
            if half > 3:
                continue
            ti.simt.block.sync()  # fault: divergent-barrier
        y[i] = 0.0


@ti.kernel
def together(y: Floats, n: ti.i32):
    ti.loop_config(block_dim=64)
    for i in range(64):
        lane = i & 63
        shared = ti.simt.block.SharedArray((64,), ti.f32)
        shared[lane] = 0.0
        ti.simt.block.sync()
        if lane >= 32:
            shared[lane] = 3.0
        ti.simt.block.sync()
        for step in range(n):
            if step > 2 or n == 7:
                ti.simt.block.sync()
        if lane < 32:
            y[i] = shared[lane + 32]
