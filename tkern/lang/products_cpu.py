"""Products of tiles on a CPU: a micro-kernel of 4 × 16 or 8 × 16 over tiles in panels of 16 columns (see tiles_cpu)."""

import taichi as ti
from taichi.lang import impl

from tkern.lang.macros import builder, handle, macro, value, variable
from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.rows_cpu import Vector
from tkern.processor import has_wide_registers

# Rows of the micro-kernel: eight sums of eight floats, two of a row of b and one number of a fill AVX2's registers.
# AVX-512 has twice as many, of 16 floats; there two panels at a time may share the numbers of a.
ROWS = 8 if has_wide_registers() else 4
PANELS = (2, 1) if has_wide_registers() else (1,)
_PARTS = WIDTH // ROWS
# Vectors of an array, 2**27 - 1 at most. An index masked by this is known not to wrap when a step is added to it, so
# that the step becomes part of the address; else each step costs instructions of its own, and half of the speed.
INDICES = 2**27 - 1


@macro
def blocks_of(rows):
    """Return how many blocks of ROWS there are in ``rows``, the last of which may be a part of one."""
    return (rows + (ROWS - 1)) // ROWS


@macro
def vector_at(a, at):
    """Vector ``at`` of an array, to be read or assigned to."""
    return impl.subscript(builder(), a, at)


@macro
def element_at(a, at, k):
    """Float ``k`` of vector ``at``, likewise."""
    return impl.subscript(builder(), vector_at(a, at), k)


@macro
def put_at(a, at, v):
    """Write vector ``at`` of an array."""
    vector_at(a, at)._assign(v)


@macro
def put_one(a, at, k, v):
    """Write float ``k`` of vector ``at``."""
    element_at(a, at, k)._assign(v)


@ti.func
def scores_product(c: ti.template(), a: ti.template(), b: ti.template(), rows, panels, depth, band: ti.template()):
    """c = a·b, but for blocks of c that lie outside of ``band``, which keep what they hold.

    Only the first ``rows`` rows (rounded up to ROWS) and ``panels`` panels of c are made, from sums of ``depth`` terms
    (rounded up to 16): what lies past them in a and b must be 0.
    """
    for n in range(panels):
        for m in range(blocks_of(rows)):
            first, last = m * ROWS, m * ROWS + (ROWS - 1)
            if n * WIDTH <= last + band.high and n * WIDTH + (WIDTH - 1) >= first + band.low:
                _micro_kernel(c, a, b, n, m, 0, (depth + (WIDTH - 1)) >> 4, False, False)


@ti.func
def add_scores(
    c: ti.template(), scores: ti.template(), b: ti.template(), rows, band: ti.template(), transposed: ti.template()
):
    """Add to the first ``rows`` rows of c scores·b, or scoresᵀ·b: with care where ``b`` is not finite."""
    if b.odd == 1:
        careful_product(c, scores, b, rows, b.count, transposed)
    else:
        add_product(c, scores, b, rows, c.panels, b.count, band, transposed)


@ti.func
def add_product(
    c: ti.template(),
    a: ti.template(),
    b: ti.template(),
    rows,
    panels,
    depth,
    band: ti.template(),
    transposed: ti.template(),
):
    """c += a·b, or aᵀ·b where ``transposed``; ``a`` is 0 outside of ``band``. Sizes are as in ``scores_product``."""
    steps = (depth + (WIDTH - 1)) >> 4
    blocks = blocks_of(rows)
    low, high = band.low, band.high
    if ti.static(transposed):
        low, high = -band.high, -band.low
    # Of most tiles nothing is hidden.
    whole = low + rows <= 1 and high >= depth - 1
    for n in range(panels):
        for m in range(blocks):
            begin, end = 0, steps
            if not whole:
                # The steps of the sum in which one of these rows has a part.
                begin = ti.max(m * ROWS + low, 0) >> 4
                end = ti.min(steps, (m * ROWS + (ROWS - 1) + high + WIDTH) >> 4)
            _micro_kernel(c, a, b, n, m, begin, end, transposed, True)


@ti.func
def careful_product(c: ti.template(), a: ti.template(), b: ti.template(), rows, depth, transposed: ti.template()):
    """As ``add_product``, where a row of ``b`` that is multiplied by 0 has no effect, whatever is in it."""
    for n in range(c.panels):
        for m in range(rows):
            to = c.at + n * c.rows + m
            total = variable(vector_at(c.space, to))
            for k in range(depth):
                x = 0.0
                if ti.static(transposed):
                    x = element_at(a.space, a.at + (m >> 4) * a.rows + k, m & 15)
                else:
                    x = element_at(a.space, a.at + (k >> 4) * a.rows + m, k & 15)
                if (x == 0.0) == 0:
                    total += vector_at(b.space, b.at + n * b.rows + k) * x
            put_at(c.space, to, total)


@ti.func
def _micro_kernel(
    c: ti.template(),
    a: ti.template(),
    b: ti.template(),
    n,
    m,
    begin,
    end,
    transposed: ti.template(),
    add: ti.template(),
):
    to = (c.at + n * c.rows + m * ROWS) & INDICES
    sums = begin_block()
    for k in range(begin, end):
        right = (b.at + n * b.rows + k * WIDTH) & INDICES
        if ti.static(transposed):
            # Rows of a are the sum's steps, its columns the rows of c.
            left = (a.at + (m // _PARTS) * a.rows + k * WIDTH) & INDICES
            first = (m & (_PARTS - 1)) * ROWS
            _add_steps_transposed(sums, a.space, left, first, b.space, right)
        else:
            left = (a.at + k * a.rows + m * ROWS) & INDICES
            add_steps(sums, a.space, left, b.space, right)
    end_block(sums, c.space, to, add=add)


@handle
class _Block:
    """Sums in registers: rows, each of a vector for every panel."""

    def __init__(self, rows):
        self.rows = rows


@macro
def begin_block(panels=1):
    """Return a block of sums, from 0: not from what they are added to, since a sum's error grows with its chain."""
    return _Block([[variable(Vector(0.0)) for _ in range(panels)] for _ in range(ROWS)])


@macro
def add_steps(sums, a, left, b, right, row=1, step=1, panel=0):
    """Add 16 steps: floats of vectors ``left``, a row each, ``row`` apart, times vectors ``right``, ``step`` apart.

    The vectors of the next panel are ``panel`` further on.
    """
    for u in range(WIDTH):
        add_step(sums, a, left, u, b, right + u * step, row, panel)


@macro
def add_step(sums, a, left, u, b, right, row=1, panel=0):
    """Add one step: float ``u`` of each row times vector ``right``."""
    vs = [variable(vector_at(b, right + n * panel)) for n in range(len(sums.rows[0]))]
    for i in range(ROWS):
        x = value(element_at(a, left + i * row, u))
        for n, v in enumerate(vs):
            sums.rows[i][n]._assign(sums.rows[i][n] + v * x)


@macro
def _add_steps_transposed(sums, a, left, first, b, right):
    for u in range(WIDTH):
        v = variable(vector_at(b, right + u))
        for i in range(ROWS):
            sums.rows[i][0]._assign(sums.rows[i][0] + v * value(element_at(a, left + u, first + i)))


@macro
def end_block(sums, space, to, row=None, add=True):
    """Write the sums to vectors ``to``, ``row`` apart if not side by side, or add them to what is there.

    Those of the next panel lie beside them.
    """
    for i in range(ROWS):
        at = to + i if row is None else value((to + i * row) & INDICES)
        for n, total in enumerate(sums.rows[i]):
            put_at(space, at + n, vector_at(space, at + n) + total if add else total)
