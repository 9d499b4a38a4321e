"""A kernel for each rule of ``tkern lint`` that meets it, at the lines marked so, and a near twin that does not.

None of it is run here but what ``tests/test_lint.py`` names.
"""

import math

import taichi as ti

from tkern.lang import safe
from tkern.lang.rows_cpu import WIDTH, Vector, load, store

Floats = ti.types.ndarray(dtype=ti.f32, ndim=1)
Vectors = ti.types.ndarray(dtype=Vector, ndim=1)
Flags = ti.types.ndarray(dtype=ti.u1, ndim=1)  # fault: unsupported-type
Bytes = ti.types.ndarray(dtype=ti.u8, ndim=1)
HIDDEN = -math.inf
LEAST = -1.0e30


def rows(t):
    @ti.kernel
    def elements(x: t.Array, y: t.Array, n: ti.i32, cols: ti.i32, programs: ti.i32):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs)
            for step in range(p.steps(n)):
                row = p.row(step, n, cols)
                xs = row.read(x)
                s = t.total()
                for b in range(row.steps):
                    for k in ti.static(range(t.steps_unrolled)):
                        c = row.column(b, k)
                        v = xs.at(c)
                        w = v * 2.0
                        row.store(y, c, ti.exp(w))  # fault: vector-math
                        row.store(y, c, t.exp(w))
                        row.store(y, c, -v)  # fault: vector-math
                        row.store(y, c, 0.0 - v)
                        row.store(y, c, abs(v) + ti.sqrt(v))  # fault: vector-math
                        if w > 1.0:  # fault: vector-condition
                            w = v
                        w = ti.select(w > 1.0, w, v)
                        y[i] = w  # fault: array-index
                        s.add(c, w)
                total = row.sum(s)
                if total > 0.0:
                    total = ti.exp(-total)
                if row.load_scalar(y) > 0.0:
                    total = row.sum(s)  # fault: divergent-barrier
                if cols > 3:
                    total = row.sum(s)
                row.store_scalar(y, total)

    return elements


@ti.kernel
def vector_exp(x: Vectors, y: Vectors):
    for i in range(4):
        store(y, i * WIDTH, through(load(x, i * WIDTH)))
        v = load(x, i * WIDTH)
        store(y, i * WIDTH, ti.exp(v))  # fault: vector-math
        store(y, i * WIDTH, safe.vector_exp(v, WIDTH))


@ti.func
def through(v):
    return v


@ti.kernel
def vector_branch(x: Vectors, y: Vectors):
    for i in range(4):
        v = load(x, i * WIDTH)
        if v > 0.5:  # fault: vector-condition
            v = v * 2.0
        if v[0] > 0.5:
            v = v * 2.0
        store(y, i * WIDTH, v)


@ti.kernel
def half_of_the_shape(y: Floats):
    for i in range(y.shape[0] // 2):  # fault: shape-range
        y[i] = 7.0


@ti.kernel
def half_by_name(y: Floats):
    n = y.shape[0] // 2
    for i in range(n):  # fault: shape-range
        y[i] = 7.0


@ti.kernel
def half_otherwise(y: Floats, n: ti.i32):
    for i in range(n // 2):
        y[i] = 7.0
    for i in range(y.shape[0] >> 1):
        for j in range(y.shape[0] // 2):
            y[i + j] = 7.0


@ti.kernel
def sums(x: Floats, y: Floats):
    s = 0.0
    for i in range(64):
        y[0] += x[i]  # fault: atomic-add
        ti.atomic_max(y[1], x[i])  # fault: atomic-add
        s += x[i]  # fault: atomic-add
    y[2] = s
    for i in range(64):
        own = 0.0
        for j in range(3):
            own += x[i + j]
        y[i] = y[i] + own


@ti.kernel
def conditions(x: Floats, y: Floats, flags: Bytes):
    for i in range(64):
        y[i] = ti.select((x[i] > 0.0) & (x[i] < 1.0), 1.0, 0.0)  # fault: bool-bits
        if x[i] > 0.0 and (flags[i] & 1) == 1:
            y[i] = ti.select(safe.both(x[i] > 0.0, x[i] < 1.0), 1.0, 0.0)
        if x[i] != x[i]:  # fault: nan-compare
            y[i] = 0.0
        if x[i] != x[i + 1] and safe.is_nan(x[i]) == 0:
            y[i] = 1.0


@ti.kernel
def infinities(x: Floats, y: Floats):
    for i in range(64):
        if ti.math.isnan(x[i]):  # fault: not-finite
            y[i] = float("-inf")  # fault: not-finite
        if x[i] > 1.0e38:
            y[i] = HIDDEN  # fault: not-finite
        if x[i] < LEAST:
            y[i] = LEAST


@ti.kernel
def types(x: Floats, y: Floats):
    for i in range(64):
        y[i] = ti.cast(ti.cast(x[i], ti.f64) * 2.0, ti.f32)  # fault: unsupported-type
        y[i] = ti.cast(ti.cast(x[i], ti.i64), ti.f32)


@ti.kernel
def threads(x: Floats, y: Floats):
    for i in range(64):
        y[i] = ti.simt.subgroup.reduce_add(x[i])  # fault: subgroup
        y[i] = ti.simt.warp.shfl_down_f32(ti.u32(1), x[i], 1)  # fault: subgroup
        y[i] = ti.cast(ti.global_thread_idx(), ti.f32)  # fault: thread-index
        y[i] = ti.cast(ti.simt.block.thread_idx(), ti.f32)  # fault: thread-index
        ti.simt.block.sync()  # fault: gpu-words
        if ti.static(ti.cfg.arch == ti.vulkan):
            ti.simt.block.sync()
        y[i] = ti.cast(i & 63, ti.f32)


@ti.kernel
def allowed(y: Floats):
    for i in range(64):
        ti.simt.block.sync()  # tkern: allow gpu-words only ever launched on a GPU
        # tkern: allow gpu-words the same, from the line above
        ti.simt.block.sync()
        y[i] = 0.0


@ti.kernel
def serial(y: Floats, n: ti.i32):
    if n > 3:
        for i in range(64):  # fault: serial-loop
            y[i] = 1.0
    if ti.static(True):
        for i in range(64):
            y[i] = 1.0
    for i in range(64):
        if n > 3:
            for j in range(2):
                y[i + j] = 2.0


@ti.kernel
def printed(y: Floats):
    for i in range(64):
        print(y[i])  # fault: print-assert
        assert y[i] > 0.0  # fault: print-assert
        y[i] = 1.0


@ti.kernel
def unknown_name(y: Floats):
    for i in range(64):
        y[i] = nothing_of_that_name  # noqa: F821


def host(x):
    """Do in Python what no kernel may: nothing of it is found, nor in a kernel that uses the same names."""
    y = float("inf")
    own = -y
    assert own < y
    assert x == x
    print(float("inf"), ti.f64, (x > 0) & (x < 1))
    x[0] += 1
    return abs(-x)
