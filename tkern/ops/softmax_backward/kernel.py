"""The gradient of softmax, one Taichi kernel for every backend.

With s = Σ dy·y over a row::

    dx = y·(dy − s)

A program walks over its rows. Each row of y and dy is read from memory once, for its sum; the second look finds it in
registers (GPU) or in the cache (CPU). The words (``t``, ``p``, ``row``) are those of :mod:`tkern.lang.rows`.
"""

import taichi as ti


def backward(t):
    """Build dx of y and dy, each ``rows·cols`` float32."""

    @ti.kernel
    def softmax_backward(y: t.Array, dy: t.Array, dx: t.Array, rows: ti.i32, cols: ti.i32, programs: ti.i32):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs)
            for step in range(p.steps(rows)):
                row = p.row(step, rows, cols)
                ys = row.read(y)
                dys = row.read(dy)
                products = t.total()
                for part in ti.static(range(t.parts)):
                    for b in range(row.begin(part), row.end(part)):
                        for k in ti.static(range(t.steps_unrolled)):
                            c = row.column(b, k, part)
                            products.add(c, dys.at(c) * ys.at(c))
                s = row.sum(products)
                for part in ti.static(range(t.parts)):
                    for b in range(row.begin(part), row.end(part)):
                        for k in ti.static(range(t.steps_unrolled)):
                            c = row.column(b, k, part)
                            row.store(dx, c, ys.at(c) * (dys.at(c) - s))

    return softmax_backward
