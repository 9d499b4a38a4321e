"""How attention is laid over launches: which kernels run, over how many programs, with what memory.

dq, dk and dv come from one pass of five products: a program takes a key head, or a part of its keys, and adds to dq as
it goes, to a private dq for each part. A CPU's program takes the queries a stretch at a time, which it keeps packed in
its thread's workspace. A GPU wants many more programs: where a private dq for each would take too much memory, dq has a
launch of its own there.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from tkern import arrays
from tkern.fours import as_fours
from tkern.launch import Group, Launch
from tkern.loops import refuse_long_loops
from tkern.ops.attention.options import Inputs, Options
from tkern.ops.attention.sizes import sizes_for
from tkern.processor import cores

__all__ = ["Work"]

# Private dqs of a CPU launch take at most this much beside the first.
_MOST_PARTS_BYTES = 32 * 2**20
# What the programs of a CPU keep of q, dout and dq at one time takes at most this much, if one tile each is not more.
_KEPT_BYTES = 32 * 2**20


class Work:
    """The launches of one call, in order; memory that they share is made once."""

    def __init__(self, inputs: Inputs, options: Options, backend: str) -> None:
        from tkern.lang.tiles import tile_words

        self._inputs = inputs
        self._options = options
        self._backend = backend
        self._sizes = sizes_for(backend, inputs)
        # Whether rows are read four floats at a time.
        self._fours = self._sizes is not None and self._sizes.fours and inputs.dim % 4 == inputs.value_dim % 4 == 0
        # Whether kernels are compiled without what they could do to scores beside position: worth it where it is slow.
        plain = options.bias is None and options.key_mask is None and not options.softcap
        self._plain = self._sizes is not None and self._sizes.plain and plain
        self._words = tile_words(backend, self._sizes)
        _refuse_long_loops(inputs, options, backend, self._words)
        self._q, self._k, self._v = (self._rows_of(one.argument(backend)) for one in (inputs.q, inputs.k, inputs.v))
        nothing = arrays.zeros(1, backend)
        self._bias = nothing if options.bias is None else options.bias.argument(backend)
        mask = options.key_mask
        taken = None if mask is None else arrays.take("key_mask", mask, backend=backend)
        self._mask = nothing if taken is None else taken.argument(backend)
        rows = math.prod(inputs.row_shape)
        self._rows = rows
        self._shift, self._factor, self._delta = (_own(rows, backend) for _ in range(3))
        # Whether a program keeps tiles in a workspace of its thread: on a CPU.
        self._keeps = self._sizes is None
        size = self._space_vectors()
        self._space = self._space_of(size)
        self._base = self._numbers(size)
        self._dout: Any = None

    def add_statistics(self, launch: Launch, lse: Any) -> None:
        """Add what makes m, 1/l and lse."""
        programs = self._query_programs()
        launch.add(
            self._kernel("statistics", programs, stats=False, delta=False),
            self._q, self._k, self._mask, self._bias, self._shift, self._factor, lse, self._space,
            self._pack(), programs,
        )  # fmt: skip

    def add_recall(self, launch: Launch, lse: arrays.Input) -> None:
        """Add what makes m and 1/l of a saved lse."""
        launch.add(
            self._kernel("recall"), lse.argument(self._backend), self._shift, self._factor, self._rows,
            self._row_programs(),
        )  # fmt: skip

    def add_output(self, launch: Launch, out: Any) -> None:
        """Add what makes out."""
        chunks = self._chunks(self._inputs.value_dim)
        programs = self._query_programs() * chunks
        launch.add(
            self._kernel("output", programs, stats=True, delta=False),
            self._q, self._k, self._v, self._mask, self._bias, self._shift, self._factor,
            self._rows_of(out), self._space, self._pack(chunks=chunks), programs,
        )  # fmt: skip

    def add_correction(self, launch: Launch, out: Any, dout: arrays.Input, dlse: arrays.Input | None) -> None:
        """Add what makes Δ."""
        self._dout = self._rows_of(dout.argument(self._backend))
        given = arrays.zeros(1, self._backend) if dlse is None else dlse.argument(self._backend)
        launch.add(
            self._kernel("correction"),
            self._rows_of(out),
            self._dout,
            given,
            self._delta,
            self._pack(),
            int(dlse is not None),
            self._rows,
            self._row_programs(),
        )

    def add_gradients(self, launch: Launch, wanted: dict[str, Any]) -> None:
        """Add what makes the gradients in ``wanted``, by name."""
        together = False
        if "k" in wanted or "v" in wanted:
            together = self._add_keys(launch, wanted)
        if "q" in wanted and not together:
            chunks = self._chunks(self._inputs.dim)
            programs = self._query_programs() * chunks
            launch.add(
                self._kernel("backward_queries", programs, stats=True, delta=True),
                *self._arguments(), self._rows_of(wanted["q"]), self._space, self._pack(chunks=chunks), programs,
            )  # fmt: skip
        if "bias" in wanted:
            self._add_bias(launch, wanted["bias"])

    def _add_keys(self, launch: Launch, wanted: dict[str, Any]) -> bool:
        """Add what makes dk and dv, and dq too where private ones of it fit into memory; return whether they do."""
        from tkern.lang import columns

        size = self._inputs
        parts, count = self._parts(wanted), math.prod(size.q.shape)
        together = "q" in wanted and parts > 0
        if not together:
            parts = -(-size.keys // self._words.keys)
        widest = [size.dim] * (together or "k" in wanted) + [size.value_dim] * (together or "v" in wanted)
        chunks = self._chunks(max(widest))
        dq = nothing = arrays.zeros(4, self._backend)
        if together:
            dq = wanted["q"] if parts == 1 else _own(parts * count, self._backend)
        if together and not self._keeps:
            programs = -(-parts * count // 4096)
            launch.add(self._kernel("clear", programs), dq, parts * count, programs)
        programs = size.batch * size.kv_heads * parts * chunks
        stretch = self._stretch()
        vectors = self._space_vectors(stretch * size.heads // size.kv_heads if self._keeps else 0)
        launch.add(
            self._kernel("backward_keys", programs, stats=True, delta=True),
            *self._arguments(), self._rows_of(dq), *(self._rows_of(wanted.get(name, nothing)) for name in "kv"),
            self._space_of(vectors),
            self._pack(chunks=chunks, parts=parts, stretch=stretch, size=vectors, **_wants(wanted, together)), programs,
        )  # fmt: skip
        if together and parts > 1:
            launch.add(columns.sum_kernel(self._backend, count), dq, wanted["q"], parts, count, count)
        return together

    def _parts(self, wanted: dict[str, Any]) -> int:
        """Return into how many parts the keys of a head are divided for dq's sake; 0 for a launch of its own for dq."""
        size, sizes = self._inputs, self._sizes
        heads, count = size.batch * size.kv_heads, math.prod(size.q.shape)
        tiles: int = -(-size.keys // self._words.keys)
        if sizes is None:
            return _even_parts(heads, min(tiles, 1 + _MOST_PARTS_BYTES // (4 * count)))
        chunks = self._chunks(max(size.dim if "k" in wanted else 1, size.value_dim if "v" in wanted else 1))
        parts: int = sizes.parts_for(heads * chunks, tiles)
        return parts if parts * count <= sizes.most_parts else 0

    def _stretch(self) -> int:
        """Return how many tiles of queries a program of keys takes at a time; each costs another look at its keys."""
        size = self._inputs
        tiles: int = -(-size.queries // self._words.queries)
        if not self._keeps:
            return tiles
        each: int = 4 * size.heads // size.kv_heads * self._words.queries * (2 * size.dim + size.value_dim)
        return max(1, min(tiles, _KEPT_BYTES // (each * cores())))

    def _add_bias(self, launch: Launch, dbias: Any) -> None:
        from tkern.lang import columns
        from tkern.ops.attention import scores

        size, words = self._inputs, self._words
        b, h, rows, cols = self._options.bias_sizes
        # Where the bias is a whole matrix, private ones for every head would take the memory of all scores.
        whole = rows == size.queries and cols == size.keys
        pass_b = size.batch if b == 1 and whole else 1
        pass_h = size.heads if h == 1 and (whole or b == size.batch) else 1
        own_b, own_h = size.batch // pass_b, size.heads // pass_h
        query_tiles, key_tiles = -(-size.queries // words.queries), -(-size.keys // words.keys)
        fold_q, fold_k = int(rows != size.queries), int(cols != size.keys)
        lines, pass_q = (1, query_tiles) if fold_q else (query_tiles, 1)
        across, pass_k = (1, key_tiles) if fold_k else (key_tiles, 1)
        total, made = b * h * rows * cols, own_b * own_h * rows * cols
        target = dbias if total == made else _own(made, self._backend)
        spread = Group(
            scores.Spread,
            heads=own_h, lines=lines, columns=across, pass_b=pass_b, pass_h=pass_h, pass_q=pass_q, pass_k=pass_k,
            fold_q=fold_q, fold_k=fold_k, step_b=own_h * rows * cols, step_h=rows * cols, step_q=cols, step_k=1,
        )  # fmt: skip
        programs = own_b * own_h * lines * across
        launch.add(
            self._kernel("backward_bias", programs, stats=True, delta=True),
            *self._arguments(), target, self._space, self._pack(), spread, programs,
        )  # fmt: skip
        if total != made:
            launch.add(columns.sum_kernel(self._backend, total), target, dbias, made // total, total, total)

    def _arguments(self) -> tuple[Any, ...]:
        return (self._q, self._k, self._v, self._dout, *self._others())

    def _others(self) -> tuple[Any, ...]:
        return self._mask, self._bias, self._shift, self._factor, self._delta

    def _query_programs(self) -> int:
        tiles: int = -(-self._inputs.queries // self._words.queries)
        return self._inputs.batch * self._inputs.heads * tiles

    def _row_programs(self) -> int:
        programs: int = -(-self._rows // self._words.rows_each)
        return programs

    def _rows_of(self, argument: Any) -> Any:
        """Return an argument of rows as the kernels take it."""
        return as_fours(argument) if self._fours else argument

    def _chunks(self, columns: int) -> int:
        """Return how many programs share the ``columns`` of a sum."""
        chunks: int = -(-columns // self._words.width)
        return chunks

    def _kernel(self, name: str, programs: int = 0, **which: bool) -> Any:
        from tkern.lang import compiled
        from tkern.lang.tiles import tile_words
        from tkern.ops.attention import kernel

        launched = 0 if self._sizes is None else self._sizes.launched_for(programs)
        words = tile_words(self._backend, self._sizes, launched, self._fours)
        if not which:
            return compiled(getattr(kernel, name), words)
        which["plain"] = self._plain
        return compiled(_with(getattr(kernel, name), tuple(which.items())), words)

    def _pack(self, **changes: int) -> Any:
        from tkern.ops.attention import scores

        return Group(scores.Numbers, **{**self._base, **changes})

    def _numbers(self, size: int) -> dict[str, Any]:
        n, o = self._inputs, self._options
        steps = {
            "q": n.steps(n.heads, n.queries, n.dim),
            "k": n.steps(n.kv_heads, n.keys, n.dim),
            "v": n.steps(n.kv_heads, n.keys, n.value_dim),
            "o": n.steps(n.heads, n.queries, n.value_dim),
        }
        numbers: dict[str, Any] = {
            f"{name}_{axis}": step for name, three in steps.items() for axis, step in zip("bhr", three, strict=True)
        }
        bias = dict.fromkeys(("bias_b", "bias_h", "bias_q", "bias_k"), 0)
        if o.bias is not None:
            b, h, rows, cols = o.bias_sizes
            bias = {
                "bias_b": h * rows * cols if b > 1 else 0,
                "bias_h": rows * cols if h > 1 else 0,
                "bias_q": cols if rows > 1 else 0,
                "bias_k": int(cols == n.keys),
            }
        return {
            **numbers, **bias,
            "batch": n.batch, "heads": n.heads, "kv_heads": n.kv_heads, "queries": n.queries, "keys": n.keys,
            "dim": n.dim, "value_dim": n.value_dim,
            "skip": max(0, o.offset - o.left), "stop": max(0, min(n.keys, n.queries + o.offset + o.right)),
            "offset": o.offset, "left": o.left, "right": o.right,
            "has_bias": int(o.bias is not None), "has_mask": int(o.key_mask is not None),
            "want_q": 0, "want_k": 0, "want_v": 0, "parts": 1, "stretch": 1, "size": size, "chunks": 1,
            "scale": o.scale, "softcap": o.softcap, "nothing": -math.inf,
        }  # fmt: skip

    def _space_vectors(self, places: int = 0) -> int:
        """Return the vectors of 16 floats that the tiles of one thread take, as the kernels ask for them."""
        queries, keys = self._words.queries, self._words.keys
        d, dv = -(-self._inputs.dim // 16), -(-self._inputs.value_dim // 16)
        operands: int = 2 * (queries + keys) * (d + dv)
        total: int = operands + keys * (d + dv) + 3 * queries * -(-keys // 16) + 2 * queries
        kept: int = places * (queries * (2 * d + dv) + 2)
        return total + kept

    def _space_of(self, vectors: int) -> Any:
        """Return the workspace of all threads."""
        return _own(16 * vectors * cores() if self._keeps else 16, self._backend)


def _even_parts(heads: int, most: int) -> int:
    """Return into how many parts a CPU divides the keys of each head, so that its cores end together.

    ``heads`` programs of equal length on c cores take ⌈heads/c⌉ turns; a part more costs a hundredth, for its own dq.
    """
    threads = cores()

    def time(parts: int) -> float:
        return -(-heads * parts // threads) / parts * (0.99 + 0.01 * parts)

    return min(range(1, max(1, min(most, 2 * threads)) + 1), key=time)


def _wants(wanted: dict[str, Any], together: bool) -> dict[str, int]:
    return {"want_q": int(together), "want_k": int("k" in wanted), "want_v": int("v" in wanted)}


def _refuse_long_loops(inputs: Inputs, options: Options, backend: str, words: Any) -> None:
    """Refuse sizes at which a Vulkan device in software would end a lane's loops before they are done."""
    if backend == "cpu":
        return
    query_tiles, key_tiles = -(-inputs.queries // words.queries), -(-inputs.keys // words.keys)
    group = inputs.heads // inputs.kv_heads
    pairs = max(key_tiles, group * query_tiles)
    if options.bias is not None:
        b, h, rows, cols = options.bias_sizes
        across = (1 if rows == inputs.queries else query_tiles) * (1 if cols == inputs.keys else key_tiles)
        pairs = max(pairs, across * (inputs.batch if b == 1 else 1) * (inputs.heads if h == 1 else 1))
    slices = -(-inputs.dim // words.slice) - (-inputs.value_dim // words.slice)
    streamed = slices * (1 + words.slice // 4)
    added = 2 * (max(words.queries, words.keys) // words.slice) * (1 + words.slice)
    # A workgroup takes several programs where there are more than a launch has threads.
    tiles = group * query_tiles if query_tiles > key_tiles else key_tiles
    chunks = -(-max(inputs.dim, inputs.value_dim) // words.width)
    threads = inputs.batch * inputs.heads * tiles * chunks * words.lanes
    steps = pairs * (streamed + added + 4)
    refuse_long_loops("q", backend, threads=threads, steps=steps, instead="shorter sequences")


def _own(count: int, backend: str) -> Any:
    """Return memory that nothing else has while the launch lives (a workspace may be shared)."""
    return arrays.workspace(count, backend) if backend == "cpu" else arrays.zeros(count, backend)


_built: dict[tuple[Any, ...], Any] = {}


def _with(build: Any, which: tuple[tuple[str, bool], ...]) -> Any:
    """Return ``build`` with its compile-time options given, the same function for the same options."""
    key = (build, which)
    if key not in _built:
        known = SimpleNamespace(_data_oriented=True, **dict(which))
        _built[key] = lambda words: build(words, known)
    return _built[key]
