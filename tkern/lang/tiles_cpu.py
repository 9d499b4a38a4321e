"""The words of :mod:`tkern.lang.tiles` on a CPU: tiles lie in the running thread's workspace, in panels of 16 columns.

A tile of ``rows`` × ``cols`` is stored as cols/16 panels, each ``rows`` vectors of 16. That one form serves every
use: as the left operand a scalar is read at a fixed offset from its row, as the right operand a row of a panel is one
vector, and as a sum four neighbouring rows of a panel are four neighbouring vectors. The product is a 4 × 16
micro-kernel: eight sums, two vectors and one broadcast fit the sixteen registers of AVX2.

What lies past a tile's last row or column is 0, so no product need know where that is.
"""

import taichi as ti
from taichi.lang import impl

from tkern.lang.macros import builder, handle, macro, value, variable
from tkern.lang.rows import VECTOR_WIDTH as WIDTH
from tkern.lang.rows_cpu import Vector, load, load_scalar, load_some, store, store_scalar, store_some
from tkern.lang.safe import vector_exp

_ROWS = 4


@macro
def _vector(a, at):
    """Vector ``at`` of an array, to be read or assigned to."""
    return impl.subscript(builder(), a, at)


@macro
def _element(a, at, k):
    return impl.subscript(builder(), _vector(a, at), k)


@macro
def _put(a, at, v):
    _vector(a, at)._assign(v)


@handle
class CpuTiles:
    """Words for one task per program, with the workspace of the running thread."""

    Array = ti.types.ndarray(dtype=Vector, ndim=1)
    lanes = 1
    # Queries and keys of a tile: 64 × 64 scores are 16 KB, so that the tiles of a head of 64 lie in the second cache.
    queries = 64
    keys = 64
    one_pass = True

    key = ("cpu tiles",)

    @macro
    def threads(self, programs):
        return programs

    @macro
    def program(self, i, space, size):
        return _Program(i, space, value(ti.global_thread_idx() * size))

    @macro
    def scalar(self, a, at):
        return load_scalar(a, at)

    @macro
    def put_scalar(self, a, at, v):
        store_scalar(a, at, v)

    @ti.func
    def some(self, a: ti.template(), at, count):
        """Return neighbouring floats of ``a`` from ``at`` on, of which ``count`` exist; 0 past them."""
        v = Vector(0.0)
        if count >= WIDTH:
            v = load(a, at)
        elif count > 0:
            v = load_some(a, at, count)
        return v

    @ti.func
    def put_some(self, a: ti.template(), at, count, v):
        if count >= WIDTH:
            store(a, at, v)
        elif count > 0:
            store_some(a, at, count, v)

    @macro
    def exp(self, x):
        return vector_exp(x, WIDTH)

    @ti.func
    def exp_scalar(self, x):
        return ti.exp(x)


@handle
class _Program:
    def __init__(self, i, space, base):
        self.id = i
        self.space = space
        self.base = base
        self.used = 0

    @macro
    def tile(self, rows, panels):
        """Return a tile of ``rows`` (compile-time) × 16·``panels``; what is in it is undefined."""
        made = Tile(self.space, value(self.base + self.used), rows, panels)
        self.used = value(self.used + rows * panels)
        return made


@handle
class Columns:
    """Which columns a vector of a row of scores is: the first, and each one's number as a vector."""

    def __init__(self, first):
        self.first = first
        self.each = variable(ti.Vector([first + k for k in range(WIDTH)]))


@ti.func
def for_each_score(space: ti.template(), scores, grads, first_row, rows, first_column, f: ti.template()):
    """Put ``f``'s answers in place of every 16 scores and of every 16 gradients beside them; 0 past the last row."""
    for r in range(scores.rows):
        inside = r < rows
        row = f.row(ti.select(inside, first_row + r, first_row))
        for c in ti.static(range(scores.panels)):
            at = scores.at + c * scores.rows + r
            if inside:
                columns = Columns(value(first_column + c * WIDTH))
                p, ds = f.at(row, columns, _vector(space, at), _vector(space, grads.at + c * scores.rows + r))
                _put(space, at, p)
                _put(space, grads.at + c * scores.rows + r, ds)
            else:
                _put(space, at, Vector(0.0))
                _put(space, grads.at + c * scores.rows + r, Vector(0.0))


@handle
class Tile:
    """``rows`` × ``cols`` floats from vector ``at`` of the workspace on, in panels; ``panels`` may be a run-time number."""

    def __init__(self, space, at, rows, panels):
        self.space = space
        self.at = at
        self.rows = rows
        self.panels = panels

    @ti.func
    def clear(self):
        for n in range(self.rows * self.panels):
            _put(self.space, self.at + n, Vector(0.0))

    @ti.func
    def load(self, a: ti.template(), start, stride, count, cols):
        """Fill from ``count`` rows of ``cols`` floats of ``a``, the first at float ``start``, ``stride`` floats apart."""
        for c in range(self.panels):
            left = cols - c * WIDTH
            for r in range(self.rows):
                at = self.at + c * self.rows + r
                from_ = start + r * stride + c * WIDTH
                if r < count and left >= WIDTH:
                    _put(self.space, at, load(a, from_))
                elif r < count and left > 0:
                    _put(self.space, at, load_some(a, from_, left))
                else:
                    _put(self.space, at, Vector(0.0))

    @ti.func
    def hide_rows(self, seen):
        """Set the rows to 0 where vector tile ``seen`` is 0, whatever is in them."""
        for r in range(self.rows):
            if _element(seen.space, seen.at + (r >> 4), r & 15) == 0.0:
                for c in range(self.panels):
                    _put(self.space, self.at + c * self.rows + r, Vector(0.0))

    @ti.func
    def transpose(self, other: ti.template()):
        """Fill with the transpose of ``other``: rows of one are columns of the other."""
        for c in range(self.panels):
            for d in range(other.panels):
                for u in range(WIDTH):
                    v = Vector(0.0)
                    for j in ti.static(range(WIDTH)):
                        v[j] = _element(self.space, other.at + d * other.rows + c * WIDTH + j, u)
                    _put(self.space, self.at + c * self.rows + d * WIDTH + u, v)

    @ti.func
    def save(self, a: ti.template(), start, stride, count, cols):
        """Write the first ``count`` rows of ``cols`` floats to ``a``, laid out as in ``load``."""
        for c in range(self.panels):
            left = cols - c * WIDTH
            for r in range(count):
                v = _vector(self.space, self.at + c * self.rows + r)
                to = start + r * stride + c * WIDTH
                if left >= WIDTH:
                    store(a, to, v)
                else:
                    store_some(a, to, left, v)

    @ti.func
    def add_to(self, a: ti.template(), start, stride, count, cols):
        """Add to what ``a`` holds, laid out as in ``load``."""
        for c in range(self.panels):
            left = cols - c * WIDTH
            for r in range(count):
                v = _vector(self.space, self.at + c * self.rows + r)
                to = start + r * stride + c * WIDTH
                if left >= WIDTH:
                    store(a, to, load(a, to) + v)
                else:
                    store_some(a, to, left, load_some(a, to, left) + v)


@ti.func
def product(c: ti.template(), a: ti.template(), b: ti.template(), depth, transposed: ti.template(), add: ti.template()):
    """c = a·b, or aᵀ·b where ``transposed``, plus c where ``add``; ``depth`` is the length of the sums, a multiple of 16."""
    for n in range(c.panels):
        for m in range(c.rows // _ROWS):
            _micro_kernel(c, a, b, n, m, depth, transposed, add)


@ti.func
def _micro_kernel(
    c: ti.template(), a: ti.template(), b: ti.template(), n, m, depth, transposed: ti.template(), add: ti.template()
):
    to = c.at + n * c.rows + m * _ROWS
    sums = _begin(c.space, to, add)
    for k in range(depth >> 4):
        right = b.at + n * b.rows + k * WIDTH
        if ti.static(transposed):
            # Rows of a are the sum's steps, its columns the rows of c.
            left = a.at + (m >> 2) * a.rows + k * WIDTH
            first = (m & 3) * _ROWS
            _steps_transposed(c.space, sums, left, first, right)
        else:
            left = a.at + k * a.rows + m * _ROWS
            _steps(c.space, sums, left, right)
    _end(c.space, to, sums)


@handle
class _Sums:
    def __init__(self, rows):
        self.rows = rows


@macro
def _begin(space, to, add):
    return _Sums([variable(_vector(space, to + i) if add else Vector(0.0)) for i in range(_ROWS)])


@macro
def _steps(space, sums, left, right):
    for u in range(WIDTH):
        v = variable(_vector(space, right + u))
        for i in range(_ROWS):
            sums.rows[i]._assign(sums.rows[i] + v * value(_element(space, left + i, u)))


@macro
def _steps_transposed(space, sums, left, first, right):
    for u in range(WIDTH):
        v = variable(_vector(space, right + u))
        for i in range(_ROWS):
            sums.rows[i]._assign(sums.rows[i] + v * value(_element(space, left + u, first + i)))


@macro
def _end(space, to, sums):
    for i in range(_ROWS):
        _put(space, to + i, sums.rows[i])
