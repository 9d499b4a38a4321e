"""RMSNorm, forward and backward, each one Taichi kernel for every backend.

With r = 1/√(mean(x²) + eps) of a row, D its length and g = dy·(offset + w)::

    y  = x·r·(offset + w)
    dx = r·(g − x·r²·s/D),   s = Σ g·x over the row
    dw = Σ dy·x·r over all rows

A program walks over its rows. Each row of x and dy is read from memory once, for its sums; the second look finds it in
registers (GPU) or in the cache (CPU). dw goes to a private row per program, and those are summed afterwards.

The words (``t``, ``p``, ``row``) are those of :mod:`tkern.lang.rows`.
"""

import taichi as ti

from tkern.lang.safe import inverse_root


def forward(t):
    """Build y and rstd of x. Arrays: x, y ``rows·cols``; weight ``cols``; rstd ``rows``; all float32."""

    @ti.kernel
    def rms_norm(
        x: t.Array,
        weight: t.Array,
        y: t.Array,
        rstd: t.Array,
        rows: ti.i32,
        cols: ti.i32,
        programs: ti.i32,
        eps: ti.f32,
        offset: ti.f32,
    ):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs)
            w = p.shared_row(weight, cols)
            for step in range(p.steps(rows)):
                row = p.row(step, rows, cols)
                xs = row.read(x)
                squares = t.total()
                for b in range(row.steps):
                    for k in ti.static(range(t.steps_unrolled)):
                        c = row.column(b, k)
                        xv = xs.at(c)
                        squares.add(c, xv * xv)
                r = inverse_root(row.sum(squares) / cols + eps)
                row.store_scalar(rstd, r)
                for b in range(row.steps):
                    for k in ti.static(range(t.steps_unrolled)):
                        c = row.column(b, k)
                        row.store(y, c, xs.at(c) * r * (offset + w.at(c)))

    return rms_norm


def backward(t):
    """Build dx, the private rows of dw, and rstd.

    Arrays: x, dy, dx ``rows·cols``; weight ``cols``; rstd_in ``rows`` where ``saved`` is 1, else any; rstd ``rows``;
    dw_rows ``programs`` rows (padded, see :func:`tkern.lang.rows.plan_rows`); all float32.
    """

    @ti.kernel
    def rms_norm_backward(
        x: t.Array,
        weight: t.Array,
        dy: t.Array,
        rstd_in: t.Array,
        dx: t.Array,
        dw_rows: t.Array,
        rstd: t.Array,
        rows: ti.i32,
        cols: ti.i32,
        programs: ti.i32,
        eps: ti.f32,
        offset: ti.f32,
        saved: ti.i32,
    ):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs)
            w = p.shared_row(weight, cols)
            dw = p.column_sums(dw_rows, cols)
            for step in range(p.steps(rows)):
                row = p.row(step, rows, cols)
                xs = row.read(x)
                dys = row.read(dy)
                squares = t.total()
                products = t.total()
                for b in range(row.steps):
                    for k in ti.static(range(t.steps_unrolled)):
                        c = row.column(b, k)
                        xv = xs.at(c)
                        squares.add(c, xv * xv)
                        products.add(c, dys.at(c) * (offset + w.at(c)) * xv)
                q, s = row.sum2(squares, products)
                r = inverse_root(q / cols + eps)
                if saved == 1:
                    r = row.load_scalar(rstd_in)
                row.store_scalar(rstd, r)
                m = s * r * r / cols
                for b in range(row.steps):
                    for k in ti.static(range(t.steps_unrolled)):
                        c = row.column(b, k)
                        xv = xs.at(c)
                        dyv = dys.at(c)
                        dw.add(c, dyv * xv * r)
                        row.store(dx, c, r * (dyv * (offset + w.at(c)) - xv * m))
            dw.finish()

    return rms_norm_backward
