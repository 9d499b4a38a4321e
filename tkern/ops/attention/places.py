"""Where attention's tiles lie: which queries or keys each holds, where their rows begin, which tiles see each other."""

import taichi as ti

from tkern.lang.macros import handle, macro, value


@handle
class QueryTile:
    """The ``tile``-th tile of queries of head ``h`` in batch ``b``: ``rows`` of them, the first is query ``i``.

    ``q`` and ``o`` are where their rows of q (and dq) and of out (and dout) begin, ``row`` is where their lse is;
    ``kv`` is the head of keys that they look at.
    """

    def __init__(self, t, n, b, h, tile):
        self.b = b
        self.h = h
        self.kv = value(h // (n.heads // n.kv_heads))
        self.i = value(tile * t.queries)
        self.rows = value(ti.min(t.queries, n.queries - self.i))
        self.row = value((b * n.heads + h) * n.queries + self.i)
        self.q = value(b * n.q_b + h * n.q_h + self.i * n.q_r)
        self.o = value(b * n.o_b + h * n.o_h + self.i * n.o_r)


@handle
class KeyTile:
    """The ``tile``-th tile of keys of head ``kv`` in batch ``b``: ``count`` of them, the first is key ``j``.

    ``k`` and ``v`` are where their rows of k (and dk) and of v (and dv) begin.
    """

    def __init__(self, t, n, b, kv, tile):
        self.b = b
        self.j = value(tile * t.keys)
        self.count = value(ti.min(t.keys, n.keys - self.j))
        self.k = value(b * n.k_b + kv * n.k_h + self.j * n.k_r)
        self.v = value(b * n.v_b + kv * n.v_h + self.j * n.v_r)


@macro
def query_tile(t, n, program):
    """Return the tile of queries of a program, where each has one: tiles of a head side by side."""
    tiles = value((n.queries + (t.queries - 1)) // t.queries)
    head = value(program // tiles)
    return QueryTile(t, n, value(head // n.heads), value(head % n.heads), value(program % tiles))


@macro
def take_queries(qs, q, dos, dout, factor, n, at):
    """Load the rows of q and dout, 0 for a query that sees no key: whatever they hold, it has no gradient."""
    qs.load(q, at.q, n.q_r, 0, at.rows, n.dim)
    dos.load(dout, at.o, n.o_r, 0, at.rows, n.value_dim)
    qs.hide(factor, at.row, at.rows)
    dos.hide(factor, at.row, at.rows)


@ti.func
def take_keys(
    x: ti.template(),
    a: ti.template(),
    start,
    stride,
    cols,
    key_mask: ti.template(),
    n: ti.template(),
    at: ti.template(),
):
    """Load rows of k or v, 0 for a key that nothing sees: whatever they hold, it has no effect."""
    x.load(a, start, stride, n.skip - at.j, ti.min(at.count, n.stop - at.j), cols)
    if n.has_mask == 1:
        x.hide(key_mask, at.b * n.keys + at.j, at.count)


@ti.func
def first_key(n, i, step: ti.template()):
    """Return the first tile of keys that query ``i`` or a later one of its tile may see."""
    return ti.max(i + n.offset - n.left, 0) // step


@ti.func
def last_key(n, i, rows, step: ti.template()):
    """Return one past the last tile of keys that queries ``i`` to ``i + rows`` may see."""
    return (ti.max(ti.min(i + rows - 1 + n.offset + n.right, n.keys - 1), -1) + step) // step


@ti.func
def first_query(n, j, step: ti.template()):
    """Return the first tile of queries that may see key ``j`` or a later one of its tile."""
    return ti.max(j - n.offset - n.right, 0) // step


@ti.func
def last_query(n, j, keys, step: ti.template()):
    """Return one past the last tile of queries that may see keys ``j`` to ``j + keys``."""
    return (ti.max(ti.min(j + keys - 1 - n.offset + n.left, n.queries - 1), -1) + step) // step
