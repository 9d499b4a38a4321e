"""From products of queries and keys to scores, weights and their gradients: attention's mathematics of one element.

With S = scale·QKᵀ (softcapped, biased), P = exp(S − m)/l over the visible keys, m and l the maximum and the sum of a
row, and Δ = rowsum(out·dout) − dlse::

    O = P·V        dP = dO·Vᵀ     dS = P·(dP − Δ)
    dV = Pᵀ·dO     dK = scale·dSᵀ·Q     dQ = scale·dS·K     dbias = dS
"""

import taichi as ti

from tkern.lang.macros import handle, macro, value
from tkern.lang.safe import LOWEST, both


@handle
class Row:
    """What the scores of one query share."""

    def __init__(self, low, high, shift, factor, delta, bias):
        self.low = low
        self.high = high
        self.shift = shift
        self.factor = factor
        self.delta = delta
        self.bias = bias

    @macro
    def seeing(self, low, high):
        """Return the same of a query that sees keys ``low`` to ``high``."""
        return Row(low, high, self.shift, self.factor, self.delta, self.bias)


@handle
class Band:
    """Which of a tile's scores are visible by position: column c of row r if r + low ≤ c ≤ r + high."""

    def __init__(self, low, high):
        self.low = value(low)
        self.high = value(high)


@handle
class Scores:
    """From products to scores, weights and their gradients, for one (batch, head).

    ``which`` says at compile time what is known already: ``stats`` (m and l) and ``delta``, and whether all is
    ``plain``: without a bias, a key mask or a softcap.
    """

    def __init__(self, t, which, arrays, numbers, batch, head):
        self.t = t
        self.which = which
        self.arrays = arrays
        self.n = numbers
        # Read once: a kernel's numbers lie in memory, and a score waits for them.
        self.scale, self.softcap = value(numbers.scale), value(numbers.softcap)
        self.has_bias, self.has_mask, self.bias_k = (
            value(numbers.has_bias),
            value(numbers.has_mask),
            value(numbers.bias_k),
        )
        self.rows = value((batch * numbers.heads + head) * numbers.queries)
        self.mask_at = value(batch * numbers.keys)
        self.bias_at = value(batch * numbers.bias_b + head * numbers.bias_h)

    @macro
    def row(self, i):
        """Return what the scores of query ``i`` share."""
        n, a, t = self.n, self.arrays, self.t
        low = value(ti.max(i + n.offset - n.left, 0))
        high = value(ti.min(i + n.offset + n.right, n.keys - 1))
        at = value(self.rows + i)
        shift = t.scalar(a.shift, at) if self.which.stats else 0.0
        factor = t.scalar(a.factor, at) if self.which.stats else 0.0
        delta = t.scalar(a.delta, at) if self.which.delta else 0.0
        return Row(low, high, shift, factor, delta, value(self.bias_at + i * n.bias_q))

    @macro
    def band(self, i, j):
        """Return what is visible of the tile of scores whose first is that of query ``i`` and key ``j``."""
        first = i + self.n.offset - j
        return Band(first - self.n.left, first + self.n.right)

    @macro
    def sees(self, row, columns):
        """Return whether one of the columns is visible by position."""
        return both(columns.last >= row.low, columns.first <= row.high)

    @ti.func
    def raw(self, s):
        """Return scale·s, softcapped, and the derivative of that by s."""
        x = s * self.scale
        slope = self.t.all(self.scale)
        if not ti.static(self.which.plain) and self.softcap > 0.0:
            # tanh y = 1 − 2/(exp 2y + 1); beyond ±40 it is ±1 to the last bit.
            y = x * (1.0 / self.softcap)
            y = ti.select(y > 40.0, 40.0, ti.select(y < -40.0, -40.0, y))
            tanh = 1.0 - 2.0 / (self.t.exp(y * 2.0) + 1.0)
            x = tanh * self.softcap
            slope = (1.0 - tanh * tanh) * self.scale
        return x, slope

    @ti.func
    def masked(self, row, columns, x):
        """Return scores with their bias, LOWEST where the key is hidden."""
        if not ti.static(self.which.plain) and self.has_bias == 1:
            if self.bias_k == 1:
                x = x + self.t.some(self.arrays.bias, row.bias + columns.first, self.n.keys - columns.first)
            else:
                x = x + self.t.all(self.t.scalar(self.arrays.bias, row.bias))
            x = ti.select(x < LOWEST, LOWEST, x)
        if not ti.static(self.which.plain) and self.has_mask == 1:
            seen = self.t.some(self.arrays.key_mask, self.mask_at + columns.first, self.n.keys - columns.first)
            x = ti.select(seen > 0.5, x, LOWEST)
        # Most columns lie inside: a branch is cheaper than comparing each of them.
        if columns.first < row.low or columns.last > row.high:
            x = ti.select(columns.each < row.low, LOWEST, x)
            x = ti.select(columns.each > row.high, LOWEST, x)
        return x

    @ti.func
    def score(self, row, columns, s):
        """Return the scores, LOWEST where the key is hidden."""
        x, _ = self.raw(s)
        return self.masked(row, columns, x)

    @ti.func
    def counted(self, x, most):
        """Return exp(x − most) of visible scores, 0 of hidden ones. A NaN stays one, here and below."""
        return ti.select(x < 0.5 * LOWEST, 0.0, self.t.exp(x - most))

    @ti.func
    def weight(self, row, columns, s):
        """Return P; a hidden score needs no test, for row.shift is a score or 0."""
        return self.t.exp(self.score(row, columns, s) - row.shift) * row.factor

    @ti.func
    def weight_and_gradient(self, row, columns, s, dp):
        """Return P, and dS by the product QKᵀ: scale·softcap's slope·P·(dP − Δ), 0 where P is, whatever dP is."""
        x, slope = self.raw(s)
        p = self.t.exp(self.masked(row, columns, x) - row.shift) * row.factor
        return p, ti.select(p == 0.0, 0.0, p * (dp - row.delta) * slope)

    @ti.func
    def gradient(self, row, s, p, dp):
        """Return dS by the product QKᵀ where P is known."""
        _, slope = self.raw(s)
        return ti.select(p == 0.0, 0.0, p * (dp - row.delta) * slope)

    @ti.func
    def bias_gradient(self, row, columns, s, dp):
        """Return dS by the bias: without scale and softcap."""
        p = self.weight(row, columns, s)
        return ti.select(p == 0.0, 0.0, p * (dp - row.delta))


@handle
class Named:
    """Arguments of a kernel by name."""

    def __init__(self, **named):
        self.__dict__.update(named)


@macro
def named(**arguments):
    """Return arguments of a kernel under their names, as one object."""
    return Named(**arguments)


# Sizes, steps between heads, rows and tiles in floats, and the options, as one argument.
Numbers = ti.types.struct(
    batch=ti.i32,
    heads=ti.i32,
    kv_heads=ti.i32,
    queries=ti.i32,
    keys=ti.i32,
    dim=ti.i32,
    value_dim=ti.i32,
    q_b=ti.i32,
    q_h=ti.i32,
    q_r=ti.i32,
    k_b=ti.i32,
    k_h=ti.i32,
    k_r=ti.i32,
    v_b=ti.i32,
    v_h=ti.i32,
    v_r=ti.i32,
    o_b=ti.i32,
    o_h=ti.i32,
    o_r=ti.i32,
    bias_b=ti.i32,
    bias_h=ti.i32,
    bias_q=ti.i32,
    bias_k=ti.i32,
    # Keys before ``skip`` and from ``stop`` on are hidden from every query by their position.
    skip=ti.i32,
    stop=ti.i32,
    offset=ti.i32,
    left=ti.i32,
    right=ti.i32,
    has_bias=ti.i32,
    has_mask=ti.i32,
    want_q=ti.i32,
    want_k=ti.i32,
    want_v=ti.i32,
    parts=ti.i32,
    # Tiles of queries that a program of keys takes at a time.
    stretch=ti.i32,
    size=ti.i32,
    # Programs that share the columns of a sum.
    chunks=ti.i32,
    scale=ti.f32,
    softcap=ti.f32,
    nothing=ti.f32,
)


# How the scores of dbias are spread over programs: how many each axis has (``lines`` and ``columns`` of tiles), how
# many of each a program passes over, whether it adds up the rows or columns of a tile, and the steps of what it writes.
Spread = ti.types.struct(
    heads=ti.i32,
    lines=ti.i32,
    columns=ti.i32,
    pass_b=ti.i32,
    pass_h=ti.i32,
    pass_q=ti.i32,
    pass_k=ti.i32,
    fold_q=ti.i32,
    fold_k=ti.i32,
    step_b=ti.i32,
    step_h=ti.i32,
    step_q=ti.i32,
    step_k=ti.i32,
)
