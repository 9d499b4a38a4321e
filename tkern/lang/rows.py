"""Plan how the rows of a matrix are laid over programs and lanes.

An op keeps one :class:`RowSizes` per backend, its table of sizes. :func:`plan_rows` turns it and a shape into the
object whose attributes and methods are the words of the kernel's text: :class:`tkern.lang.rows_cpu.CpuRows` or
:class:`tkern.lang.rows_gpu.GpuRows`. The two have the same words:

``t.Array``                 annotation of a float32 array argument; ``t.Integers`` of an int32 one
``t.lanes``                 threads of one program, for ``ti.loop_config(block_dim=t.lanes)``
``t.threads(programs)``     the range of the kernel's outermost loop
``t.steps_unrolled``        columns of one unrolled step, for ``for k in ti.static(range(t.steps_unrolled))``
``p = t.program(i, programs)``   this lane's program
``p.steps(rows)``           how often the program's loop over rows runs: the same for all its lanes
``row = p.row(step, rows, cols)``
``row.steps``               unrolled steps of a row
``c = row.column(b, k)``    the k-th column of step b
``for part in ti.static(range(t.parts))``, ``for b in range(row.begin(part), row.end(part))``,
``row.column(b, k, part)``  the same columns, in loops without a branch for the end of a row: worth it in long bodies
``row.read(x)``             a row of x, read from memory once; ``.at(c)`` is its element at c
``p.shared_row(w, cols)``   the same for a vector that every row uses
``row.only(c, v, other)``   v where the row has such a column, ``other`` past its end
``row.store(dx, c, v)``     write an element
``s = t.total()``           a sum along a row, to begin with 0: ``s.add(c, v)``
``row.sum(s)``, ``row.sum2(s, q)``  the totals over the whole row, on every lane of it, in a fixed order
``m = t.largest()``, ``row.max(m)``  the same for the largest of a row, LOWEST to begin with; a NaN is passed over
``t.exp(v)``, ``t.zero()``  eᵛ of an element, and an element that is 0
``row.add_at(a, n, v)``     add a number to element n of a row, which this kernel has stored before
``row.load_scalar(a)``, ``row.store_scalar(a, v)``  one number a row
``sums = p.column_sums(partial, cols)``  one sum a column over all rows of the program: ``.add(c, v)``, ``.finish()``
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

# Elements of a CPU vector. 16 float32 are one cache line, one AVX-512 register, two of AVX2 and four of NEON.
VECTOR_WIDTH = 16
# Floats of private rows that a launch may take, 256 MiB: very long rows are given fewer programs.
_MOST_PARTIAL = 2**26


@dataclass(frozen=True)
class RowSizes:
    """How an op's rows are laid out on one backend.

    ``programs``  the most programs of one launch; each keeps a private row of column sums
    ``lanes``     threads of a program, the smallest that fits is taken; ``(1,)`` on a CPU
    ``held``      the most elements of one row that a lane keeps in registers, per array
    ``reason``    what was measured, or what the hardware allows, that chose these
    """

    programs: int
    lanes: tuple[int, ...] = (1,)
    held: int = 1
    reason: str = ""


@dataclass(frozen=True)
class RowPlan:
    """The words of the language for one launch (``words``), with the numbers the launch needs beside them.

    ``programs`` have rows; their private rows of column sums stand ``partial_stride`` floats apart in a workspace of
    ``partial_size`` floats.
    """

    words: Any
    programs: int
    partial_stride: int
    partial_size: int


def plan_rows(backend: str, sizes: RowSizes, rows: int, cols: int) -> RowPlan:
    """Plan ``rows`` × ``cols`` elements on ``backend``; both are at least 1."""
    if backend == "cpu":
        return _plan_cpu(sizes, rows, cols)
    return _plan_gpu(sizes, rows, cols)


def _plan_cpu(sizes: RowSizes, rows: int, cols: int) -> RowPlan:
    # Four rows a program at least, so that summing the private rows costs less than making them; but enough
    # programs for eight cores where the rows are few and long.
    stride = _round_up(cols, VECTOR_WIDTH)
    programs = min(sizes.programs, max(min(rows, 8), rows // 4), max(1, _MOST_PARTIAL // (2 * stride)))
    # Two private rows a program (see rows_cpu), of which the sums end in the first.
    return RowPlan(_cpu_words(cols % VECTOR_WIDTH == 0), programs, 2 * stride, 2 * programs * stride)


def _plan_gpu(sizes: RowSizes, rows: int, cols: int) -> RowPlan:
    lanes = next((n for n in sizes.lanes if n * sizes.held >= cols), sizes.lanes[-1])
    per_row = min(lanes, max(min(_power_of_two(cols), 32), _power_of_two(-(-cols // 4))))
    held = -(-cols // per_row)
    resident = held <= sizes.held
    groups = -(-rows // (lanes // per_row))
    # A launch's program count is compiled in (a run-time range is capped at 131072 threads on Vulkan and Metal), so
    # only a few counts are used; programs without a row of their own end at once.
    counts = [n for n in (1, 8, 64) if n < sizes.programs] + [sizes.programs]
    counts = [n for n in counts if n == 1 or n * cols <= _MOST_PARTIAL]
    launched = next((n for n in counts if groups <= n and n >= 8), counts[-1])
    words = _gpu_words(lanes, per_row, held if resident else min(8, sizes.held), resident, launched)
    return RowPlan(words, min(groups, launched), cols, launched * cols)


@lru_cache(maxsize=None)
def _cpu_words(exact: bool) -> Any:
    from tkern.lang.rows_cpu import CpuRows

    return CpuRows(exact)


@lru_cache(maxsize=None)
def _gpu_words(lanes: int, per_row: int, held: int, resident: bool, programs: int) -> Any:
    from tkern.lang.rows_gpu import GpuRows

    return GpuRows(lanes, per_row, held, resident, programs)


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
