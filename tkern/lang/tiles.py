"""Words for kernels that work on tiles of a matrix of scores, one row a query and one column a key (attention).

On a CPU (:mod:`tkern.lang.tiles_cpu`) a tile is 112 × 112 scores with their operands in the workspace of the running
thread, and products are a micro-kernel; operands that are read again and again are packed first. On a GPU
(:mod:`tkern.lang.tiles_gpu`) a lane is a program with tiles of one query and one key: right, and without barriers or
atomics, but every operand is read through the caches.

``t.queries``, ``t.keys``   rows and columns of a tile of scores
``t.one_pass``              whether sums over keys and over queries are made by one launch
``p = t.program(i, space, size)``   a program, with ``size`` vectors of the workspace ``space`` for its thread
``x = p.tile(rows, cols)``  room for a tile; ``x.load(a, start, stride, skip, count, cols)`` fills it from rows of ``a``
``p.packed(rows, cols)``    an operand that a launch before has packed, by ``t.packed(a, start, rows, cols)``;
                            ``p.packed_sums(rows, cols, out)`` are sums in that form, and ``x.gather`` adds up several
``x.hide(seen, start, count)``      set rows to 0 where ``seen`` is 0, whatever is in them
``y = p.right(x, cols)``, ``y.turn(x)``  x as the right operand of ``s.along(q, y, cols, band)``: s = q·xᵀ;
                            ``band`` says what the position hides, which need not be computed
``o = p.sums(rows, cols, out)``     a sum of products, ``o.clear``, ``o.save``: ``o.add_down(s, x)`` adds s·x,
                            ``o.add_across(s, x)`` adds sᵀ·x
``s.weigh(f, …)``, ``s.differentiate(ds, f, …)``  what the op's own ``f`` makes of each score (and its gradient), given
                            its row (``f.row(i)``) and columns
``r = p.running(rows)``     running maxima and sums of rows of scores: ``r.begin``, ``r.follow``, ``r.total``
``g = p.folded(rows, cols)``  the sum of many tiles, whose rows or columns may be added up too
``t.some``, ``t.scalar``, ``t.all``, ``t.exp``, ``t.dot``  neighbouring floats, one float, a number for each of them
"""

from functools import lru_cache
from typing import Any


@lru_cache(maxsize=None)
def tile_words(backend: str) -> Any:
    """Return the words of ``backend``."""
    if backend == "cpu":
        from tkern.lang.tiles_cpu import CpuTiles

        return CpuTiles()
    from tkern.lang.tiles_gpu import GpuTiles

    return GpuTiles()
