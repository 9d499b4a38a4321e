"""Mathematics that gives the same answer on every backend.

Metal always compiles with fast-math: infinities and NaN tests by comparison cannot be relied on there, so a hidden
score is ``LOWEST``, a finite number, and a NaN is found by its bits. SPIR-V has no bitwise operation on conditions, so
two of them are joined by ``both`` and ``either``, not by ``&`` and ``|``. On a CPU a 16-wide vector takes only the
plain operators (Taichi aborts on ``ti.exp`` of one), so ``vector_exp`` is built from those.
"""

import taichi as ti

from tkern.lang.macros import macro

# Stands for minus infinity. exp(LOWEST - x) is 0 for every score x above -1e29, and nothing overflows on the way.
LOWEST = -1.0e30

_LOG2E = 1.4426950408889634
# ln 2 in two parts, the first with so few bits that n·_LN2_HIGH is exact for every exponent n.
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.428606765330187e-06
# Where exp stops: rounded to a power of two, the first is 2⁻¹²⁷, which is built as 0, and the second 2¹²⁷.
_EXP_LEAST = -88.0
_EXP_MOST = 88.37
# exp(r) for |r| ≤ ln(2)/2 is 1 + r + r²·p(r), p of these from r⁰ up: the polynomial of least greatest relative error
# (3.1e-9), found by reweighted least squares.
_EXP_TERMS = (0.4999999404, 0.1666651964, 0.0416683927, 0.0083687808, 0.0013814467)


@macro
def both(one, other):
    """Return whether both conditions hold, each made anyway; of vectors, for each element."""
    return ti.select(one, other, False)


@macro
def either(one, other):
    """Return whether one of two conditions holds, each made anyway; of vectors, for each element."""
    return ti.select(one, True, other)


@ti.func
def power_of_two(n: ti.i32) -> ti.f32:
    """Return 2ⁿ as float32, built from its exponent bits; n from −126 to 127, and 0 for −127."""
    return ti.bit_cast((n + 127) << 23, ti.f32)


@ti.func
def vector_exp(x, width: ti.template()):
    """Return eˣ of a vector of ``width`` float32, to about 1e-7 of the result; 0 below −87.7, 2.4e38 above 88.37.

    x = n·ln 2 + r with |r| ≤ ln(2)/2, so eˣ = 2ⁿ·eʳ, and eʳ is a short polynomial. A NaN stays one: bounds are by
    comparison, which is one instruction where ``ti.max`` with its rule for NaN is three.
    """
    bounded = ti.select(x < _EXP_LEAST, _EXP_LEAST, x)
    bounded = ti.select(bounded > _EXP_MOST, _EXP_MOST, bounded)
    n = ti.floor(bounded * _LOG2E + 0.5)
    r = (bounded - n * _LN2_HIGH) - n * _LN2_LOW
    # Summed in pairs, so that few steps wait for one another.
    c = ti.static(_EXP_TERMS)
    square = r * r
    high = (r * c[3] + c[2]) + square * c[4]
    y = (r + 1.0) + ((r * c[1] + c[0]) + high * square) * square
    for k in ti.static(range(width)):
        y[k] = y[k] * power_of_two(ti.cast(n[k], ti.i32))
    return y


@ti.func
def inverse_root(x: ti.f32) -> ti.f32:
    """Return 1/√x of one float32, correctly rounded operations only (``ti.rsqrt`` is off by up to 2 ulp)."""
    return 1.0 / ti.sqrt(x)


@ti.func
def is_nan(x: ti.f32) -> ti.i32:
    """Return 1 where one float32 is NaN, else 0, by its bits: ``x != x`` is false on every backend of Taichi 1.7."""
    return ti.cast((ti.bit_cast(x, ti.i32) & 0x7FFFFFFF) > 0x7F800000, ti.i32)
