"""Plan how the cells of images and the windows over them are laid over programs and lanes.

:func:`plan_windows` returns the object whose attributes and methods are the words of a kernel's text:
:class:`tkern.lang.windows_cpu.CpuWindows` or one of :mod:`tkern.lang.windows_one`. A group is what a lane works on at
once: on a GPU one cell (or window), on a CPU 16 windows side by side, or the cells that are theirs. The words:

``t.Array``, ``t.Offsets``          annotations of float32 arrays, and of arrays of offsets in windows (bytes or int32)
``t.Numbers``                       annotation of the geometry's numbers, one argument
``t.lanes``, ``t.threads(programs)``   for ``ti.loop_config(block_dim=…)`` and the outermost ``range``
``p = t.program(i, programs, n)``   this lane's program
``p.steps(rows)``                   how often its loop over rows runs
``row = p.cell_row(step)``          a row of cells: ``row.steps`` groups, under ``row.windows`` rows of windows
``cells = row.cells(b)``            a group of cells: in each row of windows under ``cells.windows`` columns of them
``total = cells.zero()``            a sum for each cell
``cells.sum(total, a, c, f, given)``   add ``f(window, given)`` for the windows of row ``a`` and column ``c`` over each cell
``cells.put(dx, total)``            write the sums
``window.offset``                   which cell of the window this cell is; ``window.index(a)``, ``window.value(a)``: the
                                    window's offset, or float, in an array of windows
``window.mine(x)``, ``window.its(x, a, moves)``, ``window.number(a)``, ``windows.order_at(x, a, moves)``   words for ties,
                                    which only ``ties=True`` of the plan has: see there
``row = p.window_row(step)``        a row of windows: ``row.steps`` groups, with real cells in places ``row.first`` up to
                                    ``row.last`` of their columns
``windows = row.windows(b)``        a group of windows, with real cells in places ``windows.first`` to ``windows.last``
``windows.cell(i, j)``              the cells at that place: ``.offset``, ``.value(x)``, ``.order(v)`` of those values
``windows.least()``, ``.nothing()``, ``.nowhere()``   an order below every cell's, 0, and no offset
``windows.put(y, v)``, ``windows.put_offsets(a, v)``   write a float, or an offset, for each window

The *order* of a float is an integer: equal numbers have the same, a larger number a larger one, NaN the largest. It is
what is compared, since Metal compiles comparisons of floats as if there were no NaN and no infinity.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tkern.launch import Group

__all__ = ["AxisNumbers", "WindowPlan", "WindowSizes", "plan_windows"]


@dataclass(frozen=True)
class AxisNumbers:
    """One axis in the numbers that words compute with.

    Window o covers cells o·stride − pad + i·dilation, i < kernel, of ``size``. ``common`` is the greatest common
    divisor of stride and dilation; the windows over a cell are ``back`` = dilation/common apart, and the cell's places
    in them ``step`` = stride/common; ``inverse``·back ≡ 1 modulo step.
    """

    size: int
    windows: int
    kernel: int
    stride: int
    pad: int
    dilation: int
    common: int
    step: int
    back: int
    inverse: int


NAMES = tuple(AxisNumbers.__dataclass_fields__)


@dataclass(frozen=True)
class WindowSizes:
    """How an op's rows are laid out on one backend.

    ``programs``  how many programs a launch may have, the least that suffices is taken
    ``lanes``     threads of a program
    ``fixed``     the widest kernel and the largest stride of an axis that is compiled in
    ``reason``    what was measured, or what the hardware allows, that chose these
    """

    programs: tuple[int, ...]
    lanes: int = 1
    fixed: tuple[int, int] = (0, 0)
    reason: str = ""


@dataclass(frozen=True)
class WindowPlan:
    """The words for one launch, its number of programs, and the numbers as a kernel takes them."""

    words: Any
    programs: int
    numbers: Group


def plan_windows(
    backend: str,
    sizes: WindowSizes,
    h: AxisNumbers,
    w: AxisNumbers,
    rows: int,
    cols: int,
    planes: int,
    dtype: str,
    ties: bool = False,
) -> WindowPlan:
    """Plan ``rows`` rows of ``cols`` cells (or windows) on ``backend``; ``dtype`` is that of offsets.

    With ``ties`` the words can tell which cells of a window are as large as the one that its offset names.
    """
    fixed = None
    if w.kernel <= sizes.fixed[0] and w.stride <= sizes.fixed[1]:
        fixed = (w.kernel, w.stride, w.pad, w.dilation)
    if backend == "cpu":
        # Where windows reach as far as the image, no window's cell has the place of another row's (see windows_cpu).
        whole = fixed is not None and w.windows * w.stride >= w.size
        words = _cpu_cells(fixed, dtype) if ties else _cpu_words(fixed, whole, dtype)
        programs = min(rows, sizes.programs[-1])
    else:
        per_row = min(sizes.lanes, 1 << max(0, cols - 1).bit_length())
        groups = -(-rows // (sizes.lanes // per_row))
        launched = next((n for n in sizes.programs if n >= groups), sizes.programs[-1])
        words = _gpu_words(sizes.lanes, per_row, launched, fixed, dtype)
        programs = min(groups, launched)
    from tkern.lang.window_numbers import Numbers

    values: Mapping[str, int] = {
        "rows": rows,
        "planes": planes,
        **{f"{name}_h": getattr(h, name) for name in NAMES},
        **{f"{name}_w": getattr(w, name) for name in NAMES},
    }
    return WindowPlan(words, programs, Group(Numbers, **values))


@lru_cache(maxsize=None)
def _cpu_words(fixed: tuple[int, int, int, int] | None, whole: bool, dtype: str) -> Any:
    from tkern.lang.windows_cpu import CpuWindows

    return CpuWindows(fixed, whole, dtype)


@lru_cache(maxsize=None)
def _cpu_cells(fixed: tuple[int, int, int, int] | None, dtype: str) -> Any:
    from tkern.lang.windows_one import CpuCells

    return CpuCells(fixed, dtype)


@lru_cache(maxsize=None)
def _gpu_words(lanes: int, per_row: int, launched: int, fixed: tuple[int, int, int, int] | None, dtype: str) -> Any:
    from tkern.lang.windows_one import GpuWindows

    return GpuWindows(lanes, per_row, launched, fixed, dtype)
