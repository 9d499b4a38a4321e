"""Kernels that each have one fault that Metal cannot take, for the check of the MSL to catch; none is ever run."""

import math

import taichi as ti

_Floats = ti.types.ndarray(dtype=ti.f32, ndim=1)
_Integers = ti.types.ndarray(dtype=ti.i32, ndim=1)
_Doubles = ti.types.ndarray(dtype=ti.f64, ndim=1)


@ti.kernel
def sound(x: _Floats, y: _Floats):
    ti.loop_config(block_dim=64)
    for i in range(1024):
        shared = ti.simt.block.SharedArray((64,), ti.f32)
        lane = i & 63
        shared[lane] = x[i]
        ti.simt.block.sync()
        y[i] = shared[63 - lane] if x[i] < 3.0e38 else -1.0e30


@ti.kernel
def too_much_shared_memory(x: _Floats, y: _Floats):
    ti.loop_config(block_dim=64)
    for i in range(1024):
        shared = ti.simt.block.SharedArray((8193,), ti.f32)  # fault
        lane = i & 63
        shared[lane * 128] = x[i]
        ti.simt.block.sync()
        y[i] = shared[8192 - lane * 128]


@ti.kernel
def too_many_threads(x: _Floats, y: _Floats):
    ti.loop_config(block_dim=2048)  # fault
    for i in range(4096):
        y[i] = x[i]


@ti.kernel
def float_atomic(x: _Floats, y: _Floats):
    for i in range(1024):
        ti.atomic_add(y[0], x[i])  # fault


@ti.kernel
def integer_atomic_in_a_branch(x: _Floats, y: _Integers):
    for i in range(1024):
        if x[i] > 0.0:
            ti.atomic_add(y[0], 1)  # fault


@ti.kernel
def double_inside(x: _Floats, y: _Floats):
    for i in range(1024):
        y[i] = ti.cast(ti.cast(x[i], ti.f64) * 2.0, ti.f32)  # fault


@ti.kernel
def double_array(x: _Doubles, y: _Floats):
    for i in range(1024):
        y[i] = ti.cast(x[i], ti.f32)  # fault


@ti.kernel
def infinity(x: _Floats, y: _Floats):
    for i in range(1024):
        y[i] = ti.select(x[i] > 0.0, x[i], -math.inf)  # fault


@ti.kernel
def not_a_number(x: _Floats, y: _Floats):
    for i in range(1024):
        y[i] = ti.select(x[i] > 0.0, x[i], math.nan)  # fault


@ti.kernel
def bitwise_of_conditions(x: _Floats, y: _Floats):
    for i in range(1024):
        y[i] = ti.select((x[i] > 0.0) & (x[i] < 1.0), 1.0, 0.0)  # fault


@ti.kernel
def shared_float_atomic(x: _Floats, y: _Floats):
    ti.loop_config(block_dim=64)
    for i in range(1024):
        shared = ti.simt.block.SharedArray((64,), ti.f32)
        lane = i & 63
        shared[lane] = 0.0
        ti.simt.block.sync()
        shared[lane & 7] += x[i]  # fault
        ti.simt.block.sync()
        y[i] = shared[lane]
@ti.kernel
def msync(x: _Floats, y: _Floats):
    for i in range(1024):
        y[i] = x[i]
        ti.simt.block.mem_sync()
@ti.kernel
def gsync(x: _Floats, y: _Floats):
    for i in range(1024):
        y[i] = x[i]
        ti.simt.grid.memfence()
