"""Small kernels that only the tests need. Kernels must stand in a file: Taichi reads their text."""

import taichi as ti

from tkern.lang import safe
from tkern.lang.rows_cpu import WIDTH, Vector, load, load_scalar, store, store_scalar

_Vectors = ti.types.ndarray(dtype=Vector, ndim=1)
_Floats = ti.types.ndarray(dtype=ti.f32, ndim=1)


def sums(t):
    """Build the sum of every row of x, and private rows of the sums of its columns."""

    @ti.kernel
    def sum_rows_and_columns(
        x: t.Array, by_row: t.Array, partial: t.Array, rows: ti.i32, cols: ti.i32, programs: ti.i32
    ):
        ti.loop_config(block_dim=t.lanes)
        for i in range(t.threads(programs)):
            p = t.program(i, programs)
            by_column = p.column_sums(partial, cols)
            for step in range(p.steps(rows)):
                row = p.row(step, rows, cols)
                xs = row.read(x)
                total = t.total()
                for b in range(row.steps):
                    for k in ti.static(range(t.steps_unrolled)):
                        c = row.column(b, k)
                        total.add(c, xs.at(c))
                        by_column.add(c, xs.at(c))
                row.store_scalar(by_row, row.sum(total))
            by_column.finish()

    return sum_rows_and_columns


@ti.kernel
def vector_exp_all(x: _Vectors, y: _Vectors, vectors: ti.i32):
    for i in range(vectors):
        store(y, i * WIDTH, safe.vector_exp(load(x, i * WIDTH), WIDTH))


def scalars(backend):
    """Return a kernel of 1/√x and of the NaN test on eight floats."""

    @ti.kernel
    def on_cpu(x: _Vectors, roots: _Vectors, nans: _Vectors):
        for i in range(8):
            v = load_scalar(x, i)
            store_scalar(roots, i, safe.inverse_root(v))
            store_scalar(nans, i, ti.cast(safe.is_nan(v), ti.f32))

    @ti.kernel
    def on_gpu(x: _Floats, roots: _Floats, nans: _Floats):
        for i in range(8):
            roots[i] = safe.inverse_root(x[i])
            nans[i] = ti.cast(safe.is_nan(x[i]), ti.f32)

    return on_cpu if backend == "cpu" else on_gpu


def conditions(backend):
    """Return a kernel that keeps those of 32 floats that are in (0, 1) or below −1, and sets the others to 0."""

    @ti.kernel
    def of_vectors(x: _Vectors, y: _Vectors):
        for i in range(2):
            v = load(x, i * WIDTH)
            store(y, i * WIDTH, ti.select(safe.either(safe.both(v > 0.0, v < 1.0), v < -1.0), v, 0.0))

    @ti.kernel
    def of_floats(x: _Floats, y: _Floats):
        for i in range(32):
            v = x[i]
            y[i] = ti.select(safe.either(safe.both(v > 0.0, v < 1.0), v < -1.0), v, 0.0)

    return of_vectors if backend == "cpu" else of_floats
