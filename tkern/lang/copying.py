"""Copy a matrix row by row: what streaming costs in this language, the roof of every row kernel."""

import taichi as ti


def copy_rows(t):
    """Build y = x, both ``rows·cols`` float32."""

    @ti.kernel
    def copy(x: t.Array, y: t.Array, rows: ti.i32, cols: ti.i32, programs: ti.i32):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs)
            for step in range(p.steps(rows)):
                row = p.row(step, rows, cols)
                xs = row.read(x)
                for b in range(row.steps):
                    for k in ti.static(range(t.steps_unrolled)):
                        c = row.column(b, k)
                        row.store(y, c, xs.at(c))

    return copy
