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
from tkern.ops.attention.scores import (
    Numbers,
    Scores,
    Spread,
    Steps,
    first_key,
    first_query,
    last_key,
    last_query,
    named,
)


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
                program = p.id
                tiles = (n.queries + (t.queries - 1)) // t.queries
                h, b = program // tiles % n.heads, program // tiles // n.heads
                i = program % tiles * t.queries
                rows = ti.min(t.queries, n.queries - i)
                f = Scores(t, which, named(key_mask=key_mask, bias=bias), n, b, h)
                qs, ks = p.tile(t.queries, n.dim), p.tile(t.keys, n.dim)
                turned = p.right(ks, n.dim)
                s = p.scores(t.queries, t.keys)
                running = p.running(t.queries)
                qs.load(q, b * n.q_b + h * n.q_h + i * n.q_r, n.q_r, 0, rows, n.dim)
                running.begin(LOWEST)
                kv = h // (n.heads // n.kv_heads)
                for tile in range(first_key(n, i, t.keys), last_key(n, i, rows, t.keys)):
                    j = tile * t.keys
                    count = ti.min(t.keys, n.stop - j)
                    ks.load(k, b * n.k_b + kv * n.k_h + j * n.k_r, n.k_r, n.skip - j, count, n.dim)
                    if n.has_mask == 1:
                        ks.hide(key_mask, b * n.keys + j, count)
                    turned.turn(ks)
                    band = f.band(i, j)
                    s.along(qs, turned, n.dim, band)
                    running.follow(s, f, i, rows, j)
                running.end()
                for step in range(p.share(rows)):
                    r = p.own(step)
                    m, total = running.total(r)
                    at = (b * n.heads + h) * n.queries + i + r
                    blind = total == 0.0
                    if r < rows:
                        t.put_scalar(shift, at, ti.select(blind, 0.0, m))
                        t.put_scalar(factor, at, ti.select(blind, 0.0, 1.0 / total))
                        t.put_scalar(lse, at, ti.select(blind, n.nothing, m + ti.log(total)))

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
                program = p.id
                tiles = (n.queries + (t.queries - 1)) // t.queries
                h, b = program // tiles % n.heads, program // tiles // n.heads
                i = program % tiles * t.queries
                rows = ti.min(t.queries, n.queries - i)
                f = Scores(t, which, named(key_mask=key_mask, bias=bias, shift=shift, factor=factor), n, b, h)
                qs, ks, vs = p.tile(t.queries, n.dim), p.tile(t.keys, n.dim), p.tile(t.keys, n.value_dim)
                turned = p.right(ks, n.dim)
                s = p.scores(t.queries, t.keys)
                o = p.sums(t.queries, n.value_dim)
                to = b * n.o_b + h * n.o_h + i * n.o_r
                qs.load(q, b * n.q_b + h * n.q_h + i * n.q_r, n.q_r, 0, rows, n.dim)
                o.clear(to, n.o_r, rows, n.value_dim)
                kv = h // (n.heads // n.kv_heads)
                for tile in range(first_key(n, i, t.keys), last_key(n, i, rows, t.keys)):
                    j = tile * t.keys
                    count = ti.min(t.keys, n.stop - j)
                    ks.load(k, b * n.k_b + kv * n.k_h + j * n.k_r, n.k_r, n.skip - j, count, n.dim)
                    vs.load(v, b * n.v_b + kv * n.v_h + j * n.v_r, n.v_r, n.skip - j, count, n.value_dim)
                    if n.has_mask == 1:
                        ks.hide(key_mask, b * n.keys + j, count)
                        vs.hide(key_mask, b * n.keys + j, count)
                    turned.turn(ks)
                    band = f.band(i, j)
                    s.along(qs, turned, n.dim, band)
                    s.weigh(f, i, rows, j)
                    o.add_down(s, vs, to, n.o_r, rows, n.value_dim, band)
                o.save(out, to, n.o_r, rows, n.value_dim)

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


def pack(t):
    """Build packed tiles of the rows of q or dout, 0 where a query sees no key: on a CPU, for backward_keys."""

    @ti.kernel
    def attention_pack(a: t.Array, factor: t.Array, packed: t.Array, n: Numbers, steps: Steps, programs: ti.i32):
        ti.loop_config(block_dim=t.lanes)
        for program in range(t.threads(programs)):
            tiles = (n.queries + (t.queries - 1)) // t.queries
            h, b = program // tiles % n.heads, program // tiles // n.heads
            i = program % tiles * t.queries
            rows = ti.min(t.queries, n.queries - i)
            x = t.packed(packed, program * steps.tile, t.queries, steps.cols)
            x.load(a, b * steps.batch + h * steps.head + i * steps.row, steps.row, 0, rows, steps.cols)
            x.hide(factor, (b * n.heads + h) * n.queries + i, rows)
            x.mark()

    return attention_pack


def collect(t):
    """Build dQ of packed parts."""

    @ti.kernel
    def attention_collect(
        packed: t.Array, dq: t.Rows, space: t.Array, n: Numbers, steps: Steps, size: ti.i32, programs: ti.i32
    ):
        ti.loop_config(block_dim=t.lanes)
        for thread in range(t.threads(programs)):
            p = t.program(thread, space, size, 1)
            if p.is_one_of(programs):
                program = p.id
                tiles = (n.queries + (t.queries - 1)) // t.queries
                h, b = program // tiles % n.heads, program // tiles // n.heads
                i = program % tiles * t.queries
                x = p.tile(t.queries, n.dim)
                x.gather(packed, program * steps.tile, programs * steps.tile, n.parts)
                rows = ti.min(t.queries, n.queries - i)
                x.save(dq, b * steps.batch + h * steps.head + i * steps.row, steps.row, rows, n.dim)

    return attention_collect


def backward_keys(t, which):
    """Build dK and dV, and if wanted a part of dQ for each part of the keys, which are summed afterwards.

    On a CPU q, dout and the parts of dQ are packed.
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
                program = p.id
                part = program % n.parts
                kv, b = program // n.parts % n.kv_heads, program // n.parts // n.kv_heads
                groups = n.heads // n.kv_heads
                qs, dos = p.packed(t.queries, n.dim), p.packed(t.queries, n.value_dim)
                ks, vs = p.tile(t.keys, n.dim), p.tile(t.keys, n.value_dim)
                turned_k, turned_v = p.right(ks, n.dim), p.right(vs, n.value_dim)
                s, ds = p.scores(t.queries, t.keys), p.scores(t.queries, t.keys)
                sum_k, sum_v = p.sums(t.keys, n.dim), p.sums(t.keys, n.value_dim)
                sum_q = p.packed_sums(t.queries, n.dim, dq)
                key_tiles = (n.keys + (t.keys - 1)) // t.keys
                for step in range((key_tiles - part + (n.parts - 1)) // n.parts):
                    # Every parts-th tile, so that under a causal mask no part has all the long ones.
                    tile = part + step * n.parts
                    j = tile * t.keys
                    count = ti.min(t.keys, n.keys - j)
                    k_at, v_at = b * n.k_b + kv * n.k_h + j * n.k_r, b * n.v_b + kv * n.v_h + j * n.v_r
                    ks.load(k, k_at, n.k_r, n.skip - j, ti.min(count, n.stop - j), n.dim)
                    vs.load(v, v_at, n.v_r, n.skip - j, ti.min(count, n.stop - j), n.value_dim)
                    if n.has_mask == 1:
                        ks.hide(key_mask, b * n.keys + j, count)
                        vs.hide(key_mask, b * n.keys + j, count)
                    turned_k.turn(ks)
                    turned_v.turn(vs)
                    if n.want_k == 1:
                        sum_k.clear(k_at, n.k_r, count, n.dim)
                    if n.want_v == 1:
                        sum_v.clear(v_at, n.v_r, count, n.value_dim)
                    for g in range(groups):
                        h = kv * groups + g
                        f = Scores(
                            t,
                            which,
                            named(key_mask=key_mask, bias=bias, shift=shift, factor=factor, delta=delta),
                            n,
                            b,
                            h,
                        )
                        for query_tile in range(first_query(n, j, t.queries), last_query(n, j, count, t.queries)):
                            i = query_tile * t.queries
                            rows = ti.min(t.queries, n.queries - i)
                            q_at = b * n.q_b + h * n.q_h + query_tile * n.q_t
                            o_at = b * n.o_b + h * n.o_h + query_tile * n.o_t
                            qs.load(q, q_at, n.q_r, 0, rows, n.dim)
                            dos.load(dout, o_at, n.o_r, 0, rows, n.value_dim)
                            qs.hide(factor, f.rows + i, rows)
                            dos.hide(factor, f.rows + i, rows)
                            band = f.band(i, j)
                            s.along(qs, turned_k, n.dim, band)
                            if n.want_k == 1 or n.want_q == 1:
                                ds.along(dos, turned_v, n.value_dim, band)
                                s.differentiate(ds, f, i, rows, j)
                            else:
                                s.weigh(f, i, rows, j)
                            if n.want_v == 1:
                                sum_v.add_across(s, dos, v_at, n.v_r, count, n.value_dim, band)
                            if n.want_k == 1:
                                sum_k.add_across(ds, qs, k_at, n.k_r, count, n.dim, band)
                            if n.want_q == 1:
                                sum_q.add_down(ds, ks, part * n.batch * n.q_b + q_at, n.q_r, rows, n.dim, band)
                    if n.want_k == 1:
                        sum_k.save(dk, k_at, n.k_r, count, n.dim)
                    if n.want_v == 1:
                        sum_v.save(dv, v_at, n.v_r, count, n.value_dim)

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
                program = p.id
                tiles = (n.queries + (t.queries - 1)) // t.queries
                h, b = program // tiles % n.heads, program // tiles // n.heads
                i = program % tiles * t.queries
                rows = ti.min(t.queries, n.queries - i)
                f = Scores(
                    t, which, named(key_mask=key_mask, bias=bias, shift=shift, factor=factor, delta=delta), n, b, h
                )
                qs, dos = p.tile(t.queries, n.dim), p.tile(t.queries, n.value_dim)
                ks, vs = p.tile(t.keys, n.dim), p.tile(t.keys, n.value_dim)
                turned_k, turned_v = p.right(ks, n.dim), p.right(vs, n.value_dim)
                s, ds = p.scores(t.queries, t.keys), p.scores(t.queries, t.keys)
                sum_q = p.sums(t.queries, n.dim)
                q_at = b * n.q_b + h * n.q_h + i * n.q_r
                qs.load(q, q_at, n.q_r, 0, rows, n.dim)
                dos.load(dout, b * n.o_b + h * n.o_h + i * n.o_r, n.o_r, 0, rows, n.value_dim)
                qs.hide(factor, f.rows + i, rows)
                dos.hide(factor, f.rows + i, rows)
                sum_q.clear(q_at, n.q_r, rows, n.dim)
                kv = h // (n.heads // n.kv_heads)
                for tile in range(first_key(n, i, t.keys), last_key(n, i, rows, t.keys)):
                    j = tile * t.keys
                    count = ti.min(t.keys, n.stop - j)
                    ks.load(k, b * n.k_b + kv * n.k_h + j * n.k_r, n.k_r, n.skip - j, count, n.dim)
                    vs.load(v, b * n.v_b + kv * n.v_h + j * n.v_r, n.v_r, n.skip - j, count, n.value_dim)
                    if n.has_mask == 1:
                        ks.hide(key_mask, b * n.keys + j, count)
                        vs.hide(key_mask, b * n.keys + j, count)
                    turned_k.turn(ks)
                    turned_v.turn(vs)
                    band = f.band(i, j)
                    s.along(qs, turned_k, n.dim, band)
                    ds.along(dos, turned_v, n.value_dim, band)
                    s.differentiate(ds, f, i, rows, j)
                    sum_q.add_down(ds, ks, q_at, n.q_r, rows, n.dim, band)
                sum_q.save(dq, q_at, n.q_r, rows, n.dim)

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
                program = p.id
                qs, dos = p.tile(t.queries, n.dim), p.tile(t.queries, n.value_dim)
                ks, vs = p.tile(t.keys, n.dim), p.tile(t.keys, n.value_dim)
                turned_k, turned_v = p.right(ks, n.dim), p.right(vs, n.value_dim)
                s, ds = p.scores(t.queries, t.keys), p.scores(t.queries, t.keys)
                sums = p.folded(t.queries, t.keys)
                column, line = program % spread.columns, program // spread.columns % spread.lines
                own_h = program // spread.columns // spread.lines % spread.heads
                own_b = program // spread.columns // spread.lines // spread.heads
                sums.begin()
                rows, count = 0, 0
                for b in range(own_b, own_b + spread.pass_b):
                    for h in range(own_h, own_h + spread.pass_h):
                        kv = h // (n.heads // n.kv_heads)
                        f = Scores(
                            t,
                            which,
                            named(key_mask=key_mask, bias=bias, shift=shift, factor=factor, delta=delta),
                            n,
                            b,
                            h,
                        )
                        for query_tile in range(line, line + spread.pass_q):
                            i = query_tile * t.queries
                            rows = ti.min(t.queries, n.queries - i)
                            qs.load(q, b * n.q_b + h * n.q_h + i * n.q_r, n.q_r, 0, rows, n.dim)
                            dos.load(dout, b * n.o_b + h * n.o_h + i * n.o_r, n.o_r, 0, rows, n.value_dim)
                            qs.hide(factor, f.rows + i, rows)
                            dos.hide(factor, f.rows + i, rows)
                            for key_tile in range(column, column + spread.pass_k):
                                j = key_tile * t.keys
                                count = ti.min(t.keys, n.keys - j)
                                seen = ti.min(count, n.stop - j)
                                ks.load(k, b * n.k_b + kv * n.k_h + j * n.k_r, n.k_r, n.skip - j, seen, n.dim)
                                vs.load(v, b * n.v_b + kv * n.v_h + j * n.v_r, n.v_r, n.skip - j, seen, n.value_dim)
                                if n.has_mask == 1:
                                    ks.hide(key_mask, b * n.keys + j, count)
                                    vs.hide(key_mask, b * n.keys + j, count)
                                turned_k.turn(ks)
                                turned_v.turn(vs)
                                band = f.band(i, j)
                                s.along(qs, turned_k, n.dim, band)
                                ds.along(dos, turned_v, n.value_dim, band)
                                ds.bias_gradients(s, f, i, rows, j)
                                sums.fold(ds, spread.fold_q, spread.fold_k)
                at = own_b * spread.step_b + own_h * spread.step_h
                at += line * t.queries * spread.step_q + column * t.keys * spread.step_k
                sums.write(
                    dbias,
                    at,
                    spread.step_q,
                    ti.select(spread.fold_q == 1, 1, rows),
                    ti.select(spread.fold_k == 1, 1, count),
                )

    return attention_backward_bias
