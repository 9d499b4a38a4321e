"""Attention, forward and backward, each product and the mask written once for every backend.

With S = scale·QKᵀ (softcapped, biased), P = exp(S − m)/l over the visible keys, m and l the maximum and the sum of a
row, and Δ = rowsum(out·dout) − dlse::

    O = P·V        dP = dO·Vᵀ     dS = P·(dP − Δ)
    dV = Pᵀ·dO     dK = scale·dSᵀ·Q     dQ = scale·dS·K     dbias = dS

No matrix of scores is stored: a tile of it is made, used and forgotten. The words (``t``, ``p``, tiles) are those of
:mod:`tkern.lang.tiles`; what happens to one score is in :mod:`tkern.ops.attention.scores`.
"""

import taichi as ti

from tkern.lang.safe import LOWEST
from tkern.ops.attention.places import (
    KeyTile,
    QueryTile,
    first_key,
    first_query,
    last_key,
    last_query,
    query_tile,
    take_keys,
    take_queries,
)
from tkern.ops.attention.scores import Numbers, Scores, Spread, named


def statistics(t, which):
    """Build m, 1/l and lse of every row of scores."""

    @ti.kernel
    def attention_statistics(
        q: t.Rows, k: t.Rows, key_mask: t.Array, bias: t.Array, shift: t.Array, factor: t.Array, lse: t.Array,
        space: t.Array, n: Numbers, programs: ti.i32,
    ):  # fmt: skip
        ti.loop_config(block_dim=t.lanes)
        for thread in range(t.threads(programs)):
            p = t.program(thread, space, n.size, n.chunks)
            if p.is_one_of(programs):
                at = query_tile(t, n, p.id)
                f = Scores(t, which, named(key_mask=key_mask, bias=bias), n, at.b, at.h)
                qs, ks = p.tile(t.queries, n.dim), p.tile(t.keys, n.dim)
                turned = p.right(ks, n.dim)
                s = p.scores(t.queries, t.keys)
                running = p.running(t.queries)
                qs.load(q, at.q, n.q_r, 0, at.rows, n.dim)
                running.begin(LOWEST)
                for tile in range(first_key(n, at.i, t.keys), last_key(n, at.i, at.rows, t.keys)):
                    key = KeyTile(t, n, at.b, at.kv, tile)
                    take_keys(ks, k, key.k, n.k_r, n.dim, key_mask, n, key)
                    turned.turn(ks)
                    band = f.band(at.i, key.j)
                    s.along(qs, turned, n.dim, band)
                    running.follow(s, f, at.i, at.rows, key.j)
                running.end()
                for step in range(p.share(at.rows)):
                    r = p.own(step)
                    m, total = running.total(r)
                    blind = total == 0.0
                    if r < at.rows:
                        t.put_scalar(shift, at.row + r, ti.select(blind, 0.0, m))
                        t.put_scalar(factor, at.row + r, ti.select(blind, 0.0, 1.0 / total))
                        t.put_scalar(lse, at.row + r, ti.select(blind, n.nothing, m + ti.log(total)))

    return attention_statistics


def output(t, which):
    """Build O = P·V."""

    @ti.kernel
    def attention_output(
        q: t.Rows, k: t.Rows, v: t.Rows, key_mask: t.Array, bias: t.Array, shift: t.Array, factor: t.Array,
        out: t.Rows, space: t.Array, n: Numbers, programs: ti.i32,
    ):  # fmt: skip
        ti.loop_config(block_dim=t.lanes)
        for thread in range(t.threads(programs)):
            p = t.program(thread, space, n.size, n.chunks)
            if p.is_one_of(programs):
                at = query_tile(t, n, p.id)
                f = Scores(t, which, named(key_mask=key_mask, bias=bias, shift=shift, factor=factor), n, at.b, at.h)
                qs, ks, vs = p.tile(t.queries, n.dim), p.tile(t.keys, n.dim), p.tile(t.keys, n.value_dim)
                turned = p.right(ks, n.dim)
                s = p.scores(t.queries, t.keys)
                o = p.sums(t.queries, n.value_dim)
                qs.load(q, at.q, n.q_r, 0, at.rows, n.dim)
                o.clear()
                for tile in range(first_key(n, at.i, t.keys), last_key(n, at.i, at.rows, t.keys)):
                    key = KeyTile(t, n, at.b, at.kv, tile)
                    take_keys(ks, k, key.k, n.k_r, n.dim, key_mask, n, key)
                    take_keys(vs, v, key.v, n.v_r, n.value_dim, key_mask, n, key)
                    turned.turn(ks)
                    band = f.band(at.i, key.j)
                    s.along(qs, turned, n.dim, band)
                    s.weigh(f, at.i, at.rows, key.j)
                    o.add_down(s, vs, at.o, n.o_r, at.rows, n.value_dim, band)
                o.save(out, at.o, n.o_r, at.rows, n.value_dim)

    return attention_output


def recall(t):
    """Build m and 1/l of every row from an lse that was saved: P = exp(S − lse)."""

    @ti.kernel
    def attention_recall(lse: t.Array, shift: t.Array, factor: t.Array, rows: ti.i32, programs: ti.i32):
        ti.loop_config(block_dim=t.lanes)
        for program in range(programs):
            for i in range(program * t.rows_each, ti.min((program + 1) * t.rows_each, rows)):
                saved = t.scalar(lse, i)
                blind = saved < 0.5 * LOWEST
                t.put_scalar(shift, i, ti.select(blind, 0.0, saved))
                t.put_scalar(factor, i, ti.select(blind, 0.0, 1.0))

    return attention_recall


def clear(t):
    """Build zeros."""

    @ti.kernel
    def attention_clear(a: t.Array, count: ti.i32, programs: ti.i32):
        ti.loop_config(block_dim=t.lanes)
        for thread in range(t.threads(programs)):
            t.fill(a, thread, count, 0.0)

    return attention_clear


def correction(t):
    """Build Δ = rowsum(out·dout) − dlse of every row."""

    @ti.kernel
    def attention_correction(
        out: t.Rows, dout: t.Rows, dlse: t.Array, delta: t.Array, n: Numbers, with_dlse: ti.i32, rows: ti.i32,
        programs: ti.i32,
    ):  # fmt: skip
        ti.loop_config(block_dim=t.lanes)
        for program in range(programs):
            for row in range(program * t.rows_each, ti.min((program + 1) * t.rows_each, rows)):
                i = row % n.queries
                h, b = row // n.queries % n.heads, row // n.queries // n.heads
                at = b * n.o_b + h * n.o_h + i * n.o_r
                d = t.dot(out, at, dout, at, n.value_dim)
                if with_dlse == 1:
                    d -= t.scalar(dlse, row)
                t.put_scalar(delta, row, d)

    return attention_correction


def backward_keys(t, which):
    """Build dK and dV, and if wanted a part of dQ for each part of the keys, which are summed afterwards.

    A program takes every parts-th tile of its head's keys, so that under a causal mask no part has all the long ones.
    It passes over them for one stretch of queries after another, of which it may keep the rows at hand.
    """

    @ti.kernel
    def attention_backward_keys(
        q: t.Rows, k: t.Rows, v: t.Rows, dout: t.Rows, key_mask: t.Array, bias: t.Array, shift: t.Array,
        factor: t.Array, delta: t.Array, dq: t.Rows, dk: t.Rows, dv: t.Rows, space: t.Array, n: Numbers,
        programs: ti.i32,
    ):  # fmt: skip
        ti.loop_config(block_dim=t.lanes)
        for thread in range(t.threads(programs)):
            p = t.program(thread, space, n.size, n.chunks)
            if p.is_one_of(programs):
                part = p.id % n.parts
                kv, b = p.id // n.parts % n.kv_heads, p.id // n.parts // n.kv_heads
                groups = n.heads // n.kv_heads
                own_q = part * n.batch * n.q_b
                known = named(key_mask=key_mask, bias=bias, shift=shift, factor=factor, delta=delta)
                places = groups * n.stretch
                qs, dos = p.kept(t.queries, n.dim, places), p.kept(t.queries, n.value_dim, places)
                ks, vs = p.tile(t.keys, n.dim), p.tile(t.keys, n.value_dim)
                turned_k, turned_v = p.right(ks, n.dim), p.right(vs, n.value_dim)
                s, ds = p.scores(t.queries, t.keys), p.scores(t.queries, t.keys)
                sum_k, sum_v = p.sums(t.keys, n.dim), p.sums(t.keys, n.value_dim)
                sum_q = p.kept_sums(t.queries, n.dim, places, dq)
                key_tiles = (n.keys + (t.keys - 1)) // t.keys
                query_tiles = (n.queries + (t.queries - 1)) // t.queries
                for turn in range((query_tiles + (n.stretch - 1)) // n.stretch):
                    begin, end = turn * n.stretch, ti.min((turn + 1) * n.stretch, query_tiles)
                    for place in range(p.keeps(groups * (end - begin))):
                        at = QueryTile(t, n, b, kv * groups + place // (end - begin), begin + place % (end - begin))
                        qs.keep(place, q, at.q, n.q_r, at.rows, n.dim, factor, at.row)
                        dos.keep(place, dout, at.o, n.o_r, at.rows, n.value_dim, factor, at.row)
                        sum_q.clear(place)
                    for step in range((key_tiles - part + (n.parts - 1)) // n.parts):
                        key = KeyTile(t, n, b, kv, part + step * n.parts)
                        first = ti.max(first_query(n, key.j, t.queries), begin)
                        last = ti.min(last_query(n, key.j, key.count, t.queries), end)
                        if turn == 0 or first < last:
                            take_keys(ks, k, key.k, n.k_r, n.dim, key_mask, n, key)
                            take_keys(vs, v, key.v, n.v_r, n.value_dim, key_mask, n, key)
                            turned_k.turn(ks)
                            turned_v.turn(vs)
                            again = ti.min(turn, 1)
                            if n.want_k == 1:
                                sum_k.resume(dk, key.k, n.k_r, key.count, n.dim, again)
                            if n.want_v == 1:
                                sum_v.resume(dv, key.v, n.v_r, key.count, n.value_dim, again)
                            for g in range(groups):
                                f = Scores(t, which, known, n, b, kv * groups + g)
                                for tile in range(first, last):
                                    at = QueryTile(t, n, b, kv * groups + g, tile)
                                    place = g * (end - begin) + tile - begin
                                    qs.take(place, q, at.q, n.q_r, at.rows, n.dim, factor, at.row)
                                    dos.take(place, dout, at.o, n.o_r, at.rows, n.value_dim, factor, at.row)
                                    band = f.band(at.i, key.j)
                                    s.along(qs, turned_k, n.dim, band)
                                    if n.want_k == 1 or n.want_q == 1:
                                        ds.along(dos, turned_v, n.value_dim, band)
                                    # Of dV alone P is needed alone: then what becomes of ds is not looked at.
                                    s.differentiate(ds, f, at.i, at.rows, key.j)
                                    if n.want_v == 1:
                                        sum_v.add_across(s, dos, key.v, n.v_r, key.count, n.value_dim, band)
                                    if n.want_k == 1:
                                        sum_k.add_across(ds, qs, key.k, n.k_r, key.count, n.dim, band)
                                    if n.want_q == 1:
                                        sum_q.add_down(place, ds, ks, own_q + at.q, n.q_r, at.rows, n.dim, band)
                            if n.want_k == 1:
                                sum_k.save(dk, key.k, n.k_r, key.count, n.dim)
                            if n.want_v == 1:
                                sum_v.save(dv, key.v, n.v_r, key.count, n.value_dim)
                    if n.want_q == 1:
                        for place in range(p.keeps(groups * (end - begin))):
                            at = QueryTile(t, n, b, kv * groups + place // (end - begin), begin + place % (end - begin))
                            sum_q.save(place, own_q + at.q, n.q_r, at.rows, n.dim)

    return attention_backward_keys


def backward_queries(t, which):
    """Build dQ."""

    @ti.kernel
    def attention_backward_queries(
        q: t.Rows, k: t.Rows, v: t.Rows, dout: t.Rows, key_mask: t.Array, bias: t.Array, shift: t.Array,
        factor: t.Array, delta: t.Array, dq: t.Rows, space: t.Array, n: Numbers, programs: ti.i32,
    ):  # fmt: skip
        ti.loop_config(block_dim=t.lanes)
        for thread in range(t.threads(programs)):
            p = t.program(thread, space, n.size, n.chunks)
            if p.is_one_of(programs):
                at = query_tile(t, n, p.id)
                known = named(key_mask=key_mask, bias=bias, shift=shift, factor=factor, delta=delta)
                f = Scores(t, which, known, n, at.b, at.h)
                qs, dos = p.tile(t.queries, n.dim), p.tile(t.queries, n.value_dim)
                ks, vs = p.tile(t.keys, n.dim), p.tile(t.keys, n.value_dim)
                turned_k, turned_v = p.right(ks, n.dim), p.right(vs, n.value_dim)
                s, ds = p.scores(t.queries, t.keys), p.scores(t.queries, t.keys)
                sum_q = p.sums(t.queries, n.dim)
                take_queries(qs, q, dos, dout, factor, n, at)
                sum_q.clear()
                for tile in range(first_key(n, at.i, t.keys), last_key(n, at.i, at.rows, t.keys)):
                    key = KeyTile(t, n, at.b, at.kv, tile)
                    take_keys(ks, k, key.k, n.k_r, n.dim, key_mask, n, key)
                    take_keys(vs, v, key.v, n.v_r, n.value_dim, key_mask, n, key)
                    turned_k.turn(ks)
                    turned_v.turn(vs)
                    band = f.band(at.i, key.j)
                    s.along(qs, turned_k, n.dim, band)
                    ds.along(dos, turned_v, n.value_dim, band)
                    s.differentiate(ds, f, at.i, at.rows, key.j)
                    sum_q.add_down(ds, ks, at.q, n.q_r, at.rows, n.dim, band)
                sum_q.save(dq, at.q, n.q_r, at.rows, n.dim)

    return attention_backward_queries


def backward_bias(t, which):
    """Build dbias, or parts of it for every (batch, head), which are summed afterwards.

    A program owns a tile of the bias's own rows and columns and passes over all scores that it was added to.
    """

    @ti.kernel
    def attention_backward_bias(
        q: t.Rows, k: t.Rows, v: t.Rows, dout: t.Rows, key_mask: t.Array, bias: t.Array, shift: t.Array,
        factor: t.Array, delta: t.Array, dbias: t.Array, space: t.Array, n: Numbers, spread: Spread, programs: ti.i32,
    ):  # fmt: skip
        ti.loop_config(block_dim=t.lanes)
        for thread in range(t.threads(programs)):
            p = t.program(thread, space, n.size, n.chunks)
            if p.is_one_of(programs):
                known = named(key_mask=key_mask, bias=bias, shift=shift, factor=factor, delta=delta)
                qs, dos = p.tile(t.queries, n.dim), p.tile(t.queries, n.value_dim)
                ks, vs = p.tile(t.keys, n.dim), p.tile(t.keys, n.value_dim)
                turned_k, turned_v = p.right(ks, n.dim), p.right(vs, n.value_dim)
                s, ds = p.scores(t.queries, t.keys), p.scores(t.queries, t.keys)
                sums = p.folded(t.queries, t.keys)
                column, line = p.id % spread.columns, p.id // spread.columns % spread.lines
                own_h = p.id // spread.columns // spread.lines % spread.heads
                own_b = p.id // spread.columns // spread.lines // spread.heads
                sums.begin()
                rows, count = 0, 0
                for b in range(own_b, own_b + spread.pass_b):
                    for h in range(own_h, own_h + spread.pass_h):
                        f = Scores(t, which, known, n, b, h)
                        for each in range(line, line + spread.pass_q):
                            at = QueryTile(t, n, b, h, each)
                            rows = at.rows
                            take_queries(qs, q, dos, dout, factor, n, at)
                            for tile in range(column, column + spread.pass_k):
                                key = KeyTile(t, n, b, at.kv, tile)
                                count = key.count
                                take_keys(ks, k, key.k, n.k_r, n.dim, key_mask, n, key)
                                take_keys(vs, v, key.v, n.v_r, n.value_dim, key_mask, n, key)
                                turned_k.turn(ks)
                                turned_v.turn(vs)
                                band = f.band(at.i, key.j)
                                s.along(qs, turned_k, n.dim, band)
                                ds.along(dos, turned_v, n.value_dim, band)
                                ds.bias_gradients(s, f, at.i, at.rows, key.j)
                                sums.fold(ds, spread.fold_q, spread.fold_k)
                to = own_b * spread.step_b + own_h * spread.step_h
                to += line * t.queries * spread.step_q + column * t.keys * spread.step_k
                rows, count = ti.select(spread.fold_q == 1, 1, rows), ti.select(spread.fold_k == 1, 1, count)
                sums.write(dbias, to, spread.step_q, rows, count)

    return attention_backward_bias
