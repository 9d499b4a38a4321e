"""The gradients of layer norm, one Taichi kernel for every backend.

With m = mean(x) and r = 1/√(mean((x − m)²) + eps) of a row, D its length, d = x − m and g = dy·(offset + w)::

    dx = r·(g − Σ g/D − d·r²·Σ g·d/D)
    dw = Σ dy·d·r over all rows,   db = Σ dy over all rows

A program walks over its rows. Each row of x and dy is read from memory once, for its mean; the second and third look
find it in registers (GPU) or in the cache (CPU). Where m and r are known, from the forward pass, a look is saved. dw
and db go to private rows of the program, summed afterwards.

The words (``t``, ``p``, ``row``) are those of :mod:`tkern.lang.rows`.
"""

import taichi as ti

from tkern.lang.safe import inverse_root


def backward(t):
    """Build dx and the private rows of dw and db.

    Arrays: x, dy, dx ``rows·cols``; weight ``cols``; mean, rstd ``rows`` where ``saved`` is 1, else any; dw_rows,
    db_rows ``programs`` rows (padded, see :func:`tkern.lang.rows.plan_rows`); all float32. dx is written where
    ``wants_x`` is 1, the private rows hold sums where ``wants_sums`` is 1 (else zeros).
    """

    @ti.kernel
    def layer_norm_backward(
        x: t.Array,
        weight: t.Array,
        dy: t.Array,
        mean: t.Array,
        rstd: t.Array,
        dx: t.Array,
        dw_rows: t.Array,
        db_rows: t.Array,
        rows: ti.i32,
        cols: ti.i32,
        programs: ti.i32,
        eps: ti.f32,
        offset: ti.f32,
        saved: ti.i32,
        wants_x: ti.i32,
        wants_sums: ti.i32,
    ):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs)
            w = p.shared_row(weight, cols)
            dw = p.column_sums(dw_rows, cols)
            db = p.column_sums(db_rows, cols)
            for step in range(p.steps(rows)):
                row = p.row(step, rows, cols)
                xs = row.read(x)
                dys = row.read(dy)
                values = t.total()
                for part in ti.static(range(t.parts)):
                    # A look less where the mean is known. The sum is for all lanes to make, so it stays.
                    for b in range(row.begin(part), ti.select(saved == 1, 0, row.end(part))):
                        for k in ti.static(range(t.steps_unrolled)):
                            c = row.column(b, k, part)
                            values.add(c, xs.at(c))
                m = row.sum(values) / cols
                if saved == 1:
                    m = row.load_scalar(mean)
                squares = t.total()
                gradients = t.total()
                products = t.total()
                for part in ti.static(range(t.parts)):
                    for b in range(row.begin(part), row.end(part)):
                        for k in ti.static(range(t.steps_unrolled)):
                            c = row.column(b, k, part)
                            d = row.only(c, xs.at(c) - m, 0.0)
                            g = dys.at(c) * (offset + w.at(c))
                            squares.add(c, d * d)
                            gradients.add(c, g)
                            products.add(c, g * d)
                r = inverse_root(row.sum(squares) / cols + eps)
                if saved == 1:
                    r = row.load_scalar(rstd)
                g_sum, gd_sum = row.sum2(gradients, products)
                g_mean = g_sum / cols
                along = gd_sum * r * r / cols
                for part in ti.static(range(t.parts)):
                    for b in range(row.begin(part), row.end(part)):
                        for k in ti.static(range(t.steps_unrolled)):
                            c = row.column(b, k, part)
                            d = xs.at(c) - m
                            dyv = dys.at(c)
                            if wants_sums == 1:
                                dw.add(c, dyv * d * r)
                                db.add(c, dyv)
                            if wants_x == 1:
                                row.store(dx, c, r * (dyv * (offset + w.at(c)) - g_mean - d * along))
            dw.finish()
            db.finish()

    return layer_norm_backward
