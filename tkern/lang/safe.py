"""Mathematics that gives the same answer on every backend.

Metal always compiles with fast-math: infinities and NaN tests by comparison cannot be relied on there, so a hidden
score is ``LOWEST``, a finite number, and a NaN is found by its bits. On a CPU a 16-wide vector takes only the plain
operators (Taichi aborts on ``ti.exp`` of one), so ``vector_exp`` is built from those.
"""

import taichi as ti

# Stands for minus infinity. exp(LOWEST - x) is 0 for every score x above -1e29, and nothing overflows on the way.
LOWEST = -1.0e30

_LOG2E = 1.4426950408889634
# ln 2 in two parts, the first with so few bits that n·_LN2_HIGH is exact for every exponent n.
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.428606765330187e-06
# exp(x) of float32 is 0 below this and overflows above that.
_EXP_LEAST = -87.33654
_EXP_MOST = 88.72283
# exp(r) for |r| ≤ ln(2)/2, Taylor to r⁷: the first term left out is below 5e-9 of the result.
_EXP_TERMS = (1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0)


@ti.func
def power_of_two(n: ti.i32) -> ti.f32:
    """Return 2ⁿ as float32, built from its exponent bits; n from −126 to 127."""
    return ti.bit_cast((n + 127) << 23, ti.f32)


@ti.func
def vector_exp(x, width: ti.template()):
    """Return eˣ of a vector of ``width`` float32, to about 1e-7 of the result; 0 below −87.3, 3.4e38 above 88.7.

    x = n·ln 2 + r with |r| ≤ ln(2)/2, so eˣ = 2ⁿ·eʳ, and eʳ is a short polynomial. 2ⁿ is applied in two halves, for
    n may be 128. A NaN stays one.
    """
    bounded = ti.min(ti.max(x, _EXP_LEAST), _EXP_MOST)
    n = ti.floor(bounded * _LOG2E + 0.5)
    r = (bounded - n * _LN2_HIGH) - n * _LN2_LOW
    y = r * _EXP_TERMS[0] + _EXP_TERMS[1]
    for k in ti.static(range(2, len(_EXP_TERMS))):
        y = y * r + _EXP_TERMS[k]
    for k in ti.static(range(width)):
        whole = ti.cast(n[k], ti.i32)
        half = whole >> 1
        y[k] = y[k] * power_of_two(half) * power_of_two(whole - half)
    y = ti.select(x < _EXP_LEAST, 0.0 * y, y)
    return ti.select(x == x, y, x)


@ti.func
def inverse_root(x: ti.f32) -> ti.f32:
    """Return 1/√x of one float32, correctly rounded operations only (``ti.rsqrt`` is off by up to 2 ulp)."""
    return 1.0 / ti.sqrt(x)


@ti.func
def is_nan(x: ti.f32) -> ti.i32:
    """Return 1 where one float32 is NaN, else 0, by its bits: ``x != x`` is false on every backend of Taichi 1.7."""
    return ti.cast((ti.bit_cast(x, ti.i32) & 0x7FFFFFFF) > 0x7F800000, ti.i32)
