"""Ops whose kernels each have one fault that Metal cannot take, for ``tkern msl --kernels`` to catch; none is ever run.

The line at fault is marked, where a finding can know it.
"""

import math
import os

import numpy as np
import taichi as ti

from tkern import hollow
from tkern.lang.macros import macro
from tkern.launch import Launch
from tkern.spec import Case, Cost, Op

_Floats = ti.types.ndarray(dtype=ti.f32, ndim=1)
_Integers = ti.types.ndarray(dtype=ti.i32, ndim=1)
_Longs = ti.types.ndarray(dtype=ti.i64, ndim=1)
_Doubles = ti.types.ndarray(dtype=ti.f64, ndim=1)


@ti.kernel
def sound(x: _Floats, y: _Floats):
    """Stay just inside every limit: 32 KiB, 1024 threads, a huge finite number, integers with an infinity's bits."""
    ti.loop_config(block_dim=1024)
    for i in range(4096):
        shared = ti.simt.block.SharedArray((8192,), ti.f32)
        lane = i & 1023
        shared[lane * 8] = x[i]
        ti.simt.block.sync()
        bits = ti.bit_cast(x[i], ti.i32) & 0x7F800000
        y[i] = ti.select(bits == 0x7F800000, -3.4e38, shared[8184 - lane * 8])


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
def augmented_sum(x: _Floats, y: _Floats):
    for i in range(1024):
        y[0] += x[i]  # fault


@ti.kernel
def sum_in_shared_memory(x: _Floats, y: _Floats):
    ti.loop_config(block_dim=64)
    for i in range(1024):
        shared = ti.simt.block.SharedArray((64,), ti.f32)
        shared[i & 63] = 0.0
        ti.simt.block.sync()
        shared[i & 7] += x[i]  # fault
        ti.simt.block.sync()
        y[i] = shared[i & 63]


@ti.kernel
def atomic_in_a_branch(x: _Floats, y: _Integers):
    for i in range(1024):
        if x[i] > 0.0:
            ti.atomic_add(y[0], 1)  # fault


@ti.kernel
def atomic_in_a_loop(x: _Floats, y: _Integers):
    for i in range(1024):
        for j in range(i):
            ti.atomic_max(y[j], ti.cast(x[i], ti.i32))  # fault


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
def long_atomic(x: _Longs, y: _Longs):
    for i in range(1024):
        ti.atomic_add(y[0], x[i])


@ti.kernel
def shared_vectors(x: _Floats, y: _Floats):
    for i in range(1024):
        shared = ti.simt.block.SharedArray((64,), ti.types.vector(4, ti.f32))
        shared[i & 63] = ti.Vector([x[i], 0.0, 0.0, 0.0])
        y[i] = shared[i & 63][0]


@ti.kernel
def name_that_is_not_there(x: _Floats, y: _Floats):
    for i in range(1024):
        y[i] = nothing_of_that_name(x[i])  # fault  # noqa: F821


@ti.kernel
def axes_that_do_not_fit(x: _Floats, y: _Floats):
    for i in range(1024):
        y[i] = x[i]


@macro
def _abort():
    os.abort()


@ti.kernel
def end_of_the_process(x: _Floats, y: _Floats):
    for i in range(1024):
        _abort()
        y[i] = x[i]


# fmt: off
@ti.kernel
def too_many_buffers(
    a0: _Floats, a1: _Floats, a2: _Floats, a3: _Floats, a4: _Floats, a5: _Floats, a6: _Floats, a7: _Floats,
    a8: _Floats, a9: _Floats, b0: _Floats, b1: _Floats, b2: _Floats, b3: _Floats, b4: _Floats, b5: _Floats,
    b6: _Floats, b7: _Floats, b8: _Floats, b9: _Floats, c0: _Floats, c1: _Floats, c2: _Floats, c3: _Floats,
    c4: _Floats, c5: _Floats, c6: _Floats, c7: _Floats, c8: _Floats, c9: _Floats,
):
    for i in range(1024):
        a = a1[i] + a2[i] + a3[i] + a4[i] + a5[i] + a6[i] + a7[i] + a8[i] + a9[i]
        b = b0[i] + b1[i] + b2[i] + b3[i] + b4[i] + b5[i] + b6[i] + b7[i] + b8[i] + b9[i]
        a0[i] = a + b + c0[i] + c1[i] + c2[i] + c3[i] + c4[i] + c5[i] + c6[i] + c7[i] + c8[i] + c9[i]
# fmt: on


_DTYPES = {_Floats: ti.f32, _Integers: ti.i32, _Longs: ti.i64, _Doubles: ti.f64}


def _op(name, prepare):
    return Op(
        name=name,
        summary="",
        run=prepare,
        prepare=prepare,
        oracle=lambda **inputs: None,
        outputs=("y",),
        cases=(Case("only", lambda rng: {"x": np.zeros(1024, np.float32)}),),
        reductions=lambda inputs: {"y": 1},
        cost=lambda dims: Cost(1.0, 1.0),
        cost_text="none",
        make=lambda rng, dims: {},
        quick=(),
        standard=(),
    )


def _launching(kernel):
    def prepare(x, *, backend):
        launch = Launch(())
        launch.add(kernel, *(hollow.array(_DTYPES[one.annotation], (1024,)) for one in kernel._primal.arguments))
        return launch

    return prepare


def _with_two_axes(x, *, backend):
    launch = Launch(())
    launch.add(axes_that_do_not_fit, *(hollow.array(ti.f32, (32, 32)) for _ in range(2)))
    return launch


def _raises(x, *, backend):
    raise KeyError(backend)


KERNELS = (
    sound, too_much_shared_memory, too_many_threads, too_many_buffers, float_atomic, augmented_sum,
    sum_in_shared_memory, atomic_in_a_branch, atomic_in_a_loop, double_inside, double_array, infinity, not_a_number,
    bitwise_of_conditions, long_atomic, shared_vectors, name_that_is_not_there, end_of_the_process,
)  # fmt: skip
OPS = (
    *(_op(kernel.__name__, _launching(kernel)) for kernel in KERNELS),
    _op("axes_that_do_not_fit", _with_two_axes),
    _op("without_sizes", _raises),
)
