"""Vectors of 16 lanes on a CPU: integers beside the floats of :mod:`tkern.lang.rows_cpu`, spread and interleaved."""

import taichi as ti
from taichi.lang import impl

from tkern.lang.macros import builder, macro, variable
from tkern.lang.rows_cpu import WIDTH, Vector, load, load_scalar, store_scalar

Ints = ti.types.vector(WIDTH, ti.i32)


@macro
def lanes(f):
    """Return a vector of ``f(k)``."""
    return variable(ti.Vector([f(k) for k in range(WIDTH)]))


@macro
def lane(v, k):
    return impl.subscript(builder(), v, k)


@macro
def load_ints(a, at):
    return lanes(lambda k: ti.cast(element(a, at, k), ti.i32))


@macro
def load_on(a, vector, first):
    """Return the 16 floats from place ``first`` of a vector on, which may be beyond its end."""
    return lanes(lambda k: lane(impl.subscript(builder(), a, vector), first + k))


@macro
def load_ints_on(a, vector, first):
    return lanes(lambda k: ti.cast(lane(impl.subscript(builder(), a, vector), first + k), ti.i32))


@macro
def element(a, at, k):
    return lane(impl.subscript(builder(), a, at >> 4), (at & (WIDTH - 1)) + k)


@macro
def bits(v):
    return lanes(lambda k: ti.bit_cast(lane(v, k), ti.i32))


@macro
def lane_numbers():
    return variable(Ints(list(range(WIDTH))))


@ti.func
def spread(a: ti.template(), at, stride: ti.template()):
    """Return 16 floats from ``at`` on, ``stride`` apart."""
    v = Vector(0.0)
    if ti.static(isinstance(stride, int) and stride == 1):
        v = load(a, at)
    elif ti.static(isinstance(stride, int) and stride == 2):
        # Two loads that reach no further than the last float.
        low, high = load(a, at), load(a, at + (WIDTH - 1))
        v = _even(low, high)
    else:
        for k in ti.static(range(WIDTH)):
            v[k] = load_scalar(a, at + k * stride)
    return v


@ti.func
def taken(v, k):
    """Return lane ``k`` of a vector, known only when the kernel runs."""
    return ti.select(lane_numbers() == k, v, 0).sum()


@ti.func
def store_first(a: ti.template(), at, count, v):
    """Write the first ``count`` floats of ``v``, none where ``count`` is not above 0."""
    for k in range(ti.min(count, WIDTH)):
        store_scalar(a, at + k, taken(v, k))


@macro
def _even(low, high):
    return lanes(lambda k: lane(low, 2 * k) if k < WIDTH // 2 else lane(high, 2 * k - (WIDTH - 1)))


@macro
def interleaved(parts, q):
    """Return the q-th 16 of: the first lane of each part, the second of each, and so on."""
    s = len(parts)
    if s == 1:
        return parts[0]
    return lanes(lambda k: lane(parts[(q * WIDTH + k) % s], (q * WIDTH + k) // s))
