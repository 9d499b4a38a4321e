"""The gradient of cross-entropy with respect to logits, one Taichi kernel for every backend.

With m the largest of a row, e = exp(z − m), and s what its loss counts::

    dz = s·(e/Σe − rest),   and at the label −s·hit more

A row whose label is negative is ignored: its gradient is 0. Each row of z is read from memory once, for m; the second
look finds it in registers (GPU) or in the cache (CPU), and leaves e where dz will stand. That may be z's own memory: no
element of z is read again once it was written over. The words (``t``, ``p``, ``row``) are those of
:mod:`tkern.lang.rows`.
"""

import taichi as ti

from tkern.lang.safe import LOWEST


def backward(t):
    """Build dlogits.

    Arrays: logits, dlogits ``rows·cols`` float32, which may be one; labels ``rows`` int32, below ``cols``; dout
    ``rows`` float32 where ``each`` is 1, else any. s is ``factor``, times the row's dout where ``each`` is 1.
    """

    @ti.kernel
    def cross_entropy_backward(
        logits: t.Array,
        labels: t.Integers,
        dout: t.Array,
        dlogits: t.Array,
        rows: ti.i32,
        cols: ti.i32,
        programs: ti.i32,
        factor: ti.f32,
        each: ti.i32,
        hit: ti.f32,
        rest: ti.f32,
    ):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs)
            for step in range(p.steps(rows)):
                row = p.row(step, rows, cols)
                label = row.load_scalar(labels)
                zs = row.read(logits)
                largest = t.largest()
                if label >= 0:
                    for part in ti.static(range(t.parts)):
                        for b in range(row.begin(part), row.end(part)):
                            for k in ti.static(range(t.steps_unrolled)):
                                c = row.column(b, k, part)
                                largest.add(c, row.only(c, zs.at(c), LOWEST))
                m = row.max(largest)
                total = t.total()
                if label >= 0:
                    for part in ti.static(range(t.parts)):
                        for b in range(row.begin(part), row.end(part)):
                            for k in ti.static(range(t.steps_unrolled)):
                                c = row.column(b, k, part)
                                e = t.exp(row.only(c, zs.at(c) - m, LOWEST))
                                total.add(c, e)
                                row.store(dlogits, c, e)
                s = factor
                if each == 1:
                    s = factor * row.load_scalar(dout)
                scale = s / row.sum(total)
                if label >= 0:
                    es = row.read(dlogits)
                    for part in ti.static(range(t.parts)):
                        for b in range(row.begin(part), row.end(part)):
                            for k in ti.static(range(t.steps_unrolled)):
                                c = row.column(b, k, part)
                                row.store(dlogits, c, es.at(c) * scale - rest * s)
                    row.add_at(dlogits, label, -hit * s)
                else:
                    for part in ti.static(range(t.parts)):
                        for b in range(row.begin(part), row.end(part)):
                            for k in ti.static(range(t.steps_unrolled)):
                                row.store(dlogits, row.column(b, k, part), t.zero())

    return cross_entropy_backward
