"""Plan how the cells of images and the windows over them are laid over programs and lanes.

:func:`plan_cells` and :func:`plan_windows` return objects whose attributes and methods are the words of a kernel:
:class:`tkern.lang.windows_cpu.CpuWindows`, :class:`tkern.lang.window_bands_gpu.GpuBands` or one of
:mod:`tkern.lang.windows_one`. A group is what a lane works on at once: on a GPU one cell (or window) or a band of
cells, on a CPU 16 windows side by side, or the cells that are theirs. The words:

``t.Array``, ``t.Offsets``   annotations of float32 arrays, and of arrays of offsets in windows (bytes or int32)
``t.Numbers``                annotation of the geometry's numbers, one argument
``t.lanes``, ``t.threads(programs)``   for ``ti.loop_config(block_dim=…)`` and the outermost ``range``
``p = t.program(i, programs, n)``      this lane's program; ``p.steps(rows)``: how often its loop over rows runs
``row = p.cell_row(step)``   a row of cells: ``row.steps`` groups, under ``row.windows`` rows of windows
``cells = row.cells(b)``     a group of cells: in each row of windows under ``cells.windows`` columns of them
``total = cells.zero()``     a sum for each cell
``cells.sum(total, a, c, f, given)``   add ``f(window, given)`` for the windows of row ``a``, column ``c`` over them
``cells.put(dx, total)``     write the sums
``window.offset``            which cell of the window this cell is
``window.index(a)``, ``window.value(a)``   the window's offset, or its float, in an array of windows
``window.where(condition, v)``         v, or 0
``row = p.window_row(step)`` a row of windows: ``row.steps`` groups, with real cells in places ``row.first`` up to
                             ``row.last`` of their columns
``windows = row.windows(b)`` a group of windows, with real cells in places ``windows.first`` up to ``windows.last``
``windows.cell(i, j)``       the cells at that place: ``.offset``, ``.value(x)``, ``.order(v)`` of those values
``windows.least()``, ``.nothing()``, ``.nowhere()``   an order below every cell's, 0, and no offset
``windows.hand_out(dx, f, given)``     write ``f(cell, given)`` to the windows' cells, 0 to those that follow up to the
                             next window's or the border: see ``can_hand_out``
``windows.put(y, v)``, ``windows.put_offsets(a, v)``   write a float, or an offset, for each window

Words for ties, which only a plan with ``ties`` has: ``window.mine(x)``, ``window.its(x, a, moves)``, the order of this
cell and of the one that offset ``a`` names; ``windows.order_at(x, a, moves)``, likewise; ``window.number(a)``, an
integer as a float; ``t.Moves``, the annotation of how far each cell of a window is from its first.

The *order* of a float is an integer: equal numbers have the same, a larger number a larger one, NaN the largest. It is
what is compared, since Metal compiles comparisons of floats as if there were no NaN and no infinity.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tkern.lang.rows import VECTOR_WIDTH
from tkern.launch import Group

__all__ = ["AxisNumbers", "Images", "WindowPart", "WindowSizes", "can_hand_out", "plan_cells", "plan_windows"]


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


# Plans of the last sizes that were asked for: a training loop asks for the same few again and again.
_KEPT = 256

Fixed = tuple[tuple[int, int, int, int], ...]
NAMES = tuple(AxisNumbers.__dataclass_fields__)


@dataclass(frozen=True)
class WindowSizes:
    """How an op's rows are laid out on one backend.

    ``programs``  how many programs a launch may have, the least that suffices is taken
    ``lanes``     threads of a program
    ``rows``      of cells that a lane takes in one column, where the geometry is compiled in
    ``taps``      places of windows that such a lane may look at in all: fewer rows where windows overlap more
    ``fixed``     the widest kernel and the largest stride of an axis that is compiled in
    ``reason``    what was measured, or what the hardware allows, that chose these
    """

    programs: tuple[int, ...]
    lanes: int = 1
    rows: int = 1
    taps: int = 128
    fixed: tuple[int, int] = (0, 0)
    reason: str = ""


@dataclass(frozen=True)
class WindowPart:
    """The words of one launch, its number of programs, and the numbers as a kernel takes them.

    ``steps`` is the most that a lane's loops take in all, or 0 where nobody counts them: on a CPU.
    """

    words: Any
    programs: int
    numbers: Group
    steps: int = 0


@dataclass(frozen=True, eq=False)
class Images:
    """``planes`` images, their axes, and the type of offsets in their windows.

    Plans are remembered by this object itself, not by its numbers: whoever asks again hands over the same one.
    """

    planes: int
    h: AxisNumbers
    w: AxisNumbers
    dtype: str


@lru_cache(maxsize=_KEPT)
def plan_cells(backend: str, sizes: WindowSizes, images: Images, *, ties: bool = False) -> list[WindowPart]:
    """Plan launches that together have every row of cells once.

    With ``ties`` the words can tell which cells of a window are as large as the one that its offset names.
    """
    h, w = images.h, images.w
    rows = images.planes * h.size
    fixed = _fixed(sizes, h, w)
    if backend != "cpu" and fixed is not None and not ties:
        return [_bands(sizes, images, fixed)]
    if backend != "cpu" or ties:
        return [_one_by_one(backend, sizes, images, rows, w.size)]
    # Where windows reach as far as the image, no window's cell has the place of another row's (see windows_cpu).
    if fixed is not None and all(axis.windows * axis.stride >= axis.size for axis in (h, w)):
        return _plan_blocks(sizes, images, fixed)
    # How far vectors reach over the ends of a row of windows.
    before = after = VECTOR_WIDTH - 1
    if fixed is not None:
        low, high = _shifts(w)
        blocks = max(-(-w.size // w.stride), VECTOR_WIDTH)
        before, after = max(0, high), max(0, blocks - low - w.windows)
    first, last = -(-before // w.windows), images.planes * h.windows - -(-after // w.windows)
    # The cells that lie under other rows of windows than those from ``first`` up to ``last``.
    begin = end = 0
    if first < last:
        plane, row = divmod(first, h.windows)
        reach = (h.kernel - 1) * h.dilation + 1
        begin = plane * h.size + (max(0, min(h.size, (row - 1) * h.stride - h.pad + reach)) if row else 0)
        plane, row = divmod(last, h.windows)
        end = plane * h.size + (max(0, min(h.size, row * h.stride - h.pad)) if row else 0)
    return _cpu_parts(sizes, images, _cpu_words(fixed, False, False, images.dtype), rows, w.size, begin, end)


def _plan_blocks(sizes: WindowSizes, images: Images, fixed: Fixed) -> list[WindowPart]:
    h, w = images.h, images.w
    long = (h.stride, w.stride, h.windows, w.windows) == (1, 1, h.size, w.size)
    words = _cpu_words(fixed, True, long, images.dtype)
    # A row of blocks is as many rows of cells, begins at so many windows from the one before, is so many blocks long.
    cells, windows, length = (h.size, h.size * w.size, h.size * w.size) if long else (h.stride, w.windows, w.size)
    (low_h, high_h), (low_w, high_w) = _shifts(h), _shifts(w)
    before = high_h * w.windows + high_w
    after = max(-(-length // w.stride), VECTOR_WIDTH) - low_h * w.windows - low_w - windows
    # Rows of windows, then of blocks, from which no vector reaches past the ends.
    per_image = 1 if long else h.windows
    first, last = -(-max(0, before) // windows), images.planes * per_image - -(-max(0, after) // windows)
    blocks = -(-h.size // cells)

    def row_of_blocks(row: int) -> int:
        plane, row = divmod(row, per_image)
        return plane * blocks + min(row, blocks)

    def row_of_cells(row: int) -> int:
        plane, row = divmod(row, blocks)
        return plane * h.size + min(row * cells, h.size)

    rows = images.planes * h.size
    if first >= last:
        return [_one_by_one("cpu", sizes, images, rows, w.size)]
    low, high = row_of_blocks(first), row_of_blocks(last)
    if low >= high:
        return [_one_by_one("cpu", sizes, images, rows, w.size)]
    parts = [WindowPart(words, min(high - low, sizes.programs[-1]), _numbers(images, high - low, 0, low))]
    begin, end = row_of_cells(low), row_of_cells(high)
    if end - begin < rows:
        parts.append(_others(sizes, images, rows, begin, end))
    return parts


def _shifts(axis: AxisNumbers) -> tuple[int, int]:
    """Return the least and the greatest number of windows that a place in the window is shifted by."""
    return -axis.pad // axis.stride, ((axis.kernel - 1) * axis.dilation - axis.pad) // axis.stride


@lru_cache(maxsize=_KEPT)
def plan_windows(backend: str, sizes: WindowSizes, images: Images, *, ties: bool = False) -> list[WindowPart]:
    """Plan launches that together have every row of windows once; ``ties`` as in :func:`plan_cells`."""
    h, w = images.h, images.w
    rows = images.planes * h.windows
    if backend != "cpu" or ties:
        # Its cells are looked at, and where dx is handed out those up to the next window as well.
        return [_one_by_one(backend, sizes, images, rows, w.windows, (h.kernel + h.stride, w.kernel + w.stride))]
    # How far vectors reach over the ends of a row of cells.
    furthest = (max(w.windows, VECTOR_WIDTH) - 1) * w.stride + (w.kernel - 1) * w.dilation - w.pad
    before, after = -(-w.pad // w.size), -(-max(0, furthest + 1 - w.size) // w.size)
    # Rows of windows whose real cells lie ``before`` rows or more from the beginning, and ``after`` from the end.
    plane, row = divmod(before, h.size)
    low = plane * h.windows + (min(h.windows, -(-(row + h.pad) // h.stride)) if row else 0)
    plane, row = divmod(after, h.size)
    end = (h.size - row + h.pad - (h.kernel - 1) * h.dilation - 1) // h.stride + 1
    high = rows - plane * h.windows - (h.windows - max(0, min(h.windows, end)) if row else 0)
    return _cpu_parts(
        sizes, images, _cpu_words(_fixed(sizes, h, w), False, False, images.dtype), rows, w.windows, low, high
    )


def can_hand_out(backend: str, sizes: WindowSizes, images: Images) -> bool:
    """Return whether ``windows.hand_out`` works: windows lie apart, begin at 0, are not dilated and are compiled in."""
    axes = (images.h, images.w)
    apart = all(axis.kernel <= axis.stride and axis.pad == 0 and axis.dilation == 1 for axis in axes)
    return apart and (backend != "cpu" or _fixed(sizes, *axes) is not None)


def _cpu_parts(
    sizes: WindowSizes, images: Images, words: Any, rows: int, cols: int, low: int, high: int
) -> list[WindowPart]:
    """Return the rows from ``low`` up to ``high`` with ``words``, the others one by one."""
    if low >= high:
        return [_one_by_one("cpu", sizes, images, rows, cols)]
    inner = high - low
    parts = [WindowPart(words, min(inner, sizes.programs[-1]), _numbers(images, inner, 0, low))]
    if inner < rows:
        parts.append(_others(sizes, images, rows, low, high))
    return parts


def _others(sizes: WindowSizes, images: Images, rows: int, low: int, high: int) -> WindowPart:
    """Return the rows but those from ``low`` up to ``high``, one cell (or window) at a time."""
    count = rows - (high - low)
    words = _cpu_cells(_fixed(sizes, images.h, images.w), images.dtype)
    return WindowPart(words, min(count, sizes.programs[-1]), _numbers(images, count, low, high - low))


def _one_by_one(
    backend: str, sizes: WindowSizes, images: Images, rows: int, cols: int, inner: tuple[int, int] = (0, 0)
) -> WindowPart:
    """Return rows of ``cols`` cells (or windows) one at a time, each with two nested loops of ``inner`` steps."""
    fixed, numbers = _fixed(sizes, images.h, images.w), _numbers(images, rows, 0, 0)
    if backend == "cpu":
        return WindowPart(_cpu_cells(fixed, images.dtype), min(rows, sizes.programs[-1]), numbers)
    per_row = min(sizes.lanes, 1 << max(0, cols - 1).bit_length())
    groups = -(-rows // (sizes.lanes // per_row))
    launched = next((n for n in sizes.programs if n >= groups), sizes.programs[-1])
    words = _gpu_words(sizes.lanes, per_row, launched, fixed, images.dtype)
    programs = min(groups, launched)
    steps = -(-groups // programs) * (1 + -(-cols // per_row) * (1 + inner[0] * (1 + inner[1])))
    return WindowPart(words, programs, numbers, steps)


def _bands(sizes: WindowSizes, images: Images, fixed: Fixed) -> WindowPart:
    h, w = images.h, images.w
    # How many windows lie over a cell, on average over a block's rows, and at most over a column.
    taps = h.kernel * -(-w.kernel // w.step)
    blocks = max(1, min(sizes.rows // h.stride, sizes.taps // taps, -(-h.size // h.stride)))
    bands = images.planes * -(-h.size // (blocks * h.stride))
    programs = -(-bands * w.size // sizes.lanes)
    launched = next((n for n in sizes.programs if n >= programs), sizes.programs[-1])
    words = _gpu_bands(sizes.lanes, launched, blocks, fixed, images.dtype)
    # Each band has a row of one group, under one row of one window.
    return WindowPart(words, min(programs, launched), _few_numbers(images, bands), 4 * -(-programs // launched))


def _fixed(sizes: WindowSizes, h: AxisNumbers, w: AxisNumbers) -> Fixed | None:
    if max(h.kernel, w.kernel) > sizes.fixed[0] or max(h.stride, w.stride) > sizes.fixed[1]:
        return None
    return tuple((axis.kernel, axis.stride, axis.pad, axis.dilation) for axis in (h, w))


def _numbers(images: Images, rows: int, skip_at: int, skip: int) -> Group:
    from tkern.lang.window_numbers import Numbers

    values: Mapping[str, int] = {
        "rows": rows,
        "skip_at": skip_at,
        "skip": skip,
        "planes": images.planes,
        **{f"{name}_h": getattr(images.h, name) for name in NAMES},
        **{f"{name}_w": getattr(images.w, name) for name in NAMES},
    }
    return Group(Numbers, **values)


def _few_numbers(images: Images, rows: int) -> Group:
    from tkern.lang.window_numbers import FewNumbers

    h, w = images.h, images.w
    return Group(FewNumbers, rows=rows, size_h=h.size, windows_h=h.windows, size_w=w.size, windows_w=w.windows)


@lru_cache(maxsize=None)
def _cpu_words(fixed: Fixed | None, whole: bool, long: bool, dtype: str) -> Any:
    from tkern.lang.windows_cpu import CpuWindows

    return CpuWindows(fixed, whole, long, dtype)


@lru_cache(maxsize=None)
def _cpu_cells(fixed: Fixed | None, dtype: str) -> Any:
    from tkern.lang.windows_one import CpuCells

    return CpuCells(fixed, dtype)


@lru_cache(maxsize=None)
def _gpu_bands(lanes: int, launched: int, blocks: int, fixed: Fixed, dtype: str) -> Any:
    from tkern.lang.window_bands_gpu import GpuBands

    return GpuBands(lanes, launched, blocks, fixed, dtype)


@lru_cache(maxsize=None)
def _gpu_words(lanes: int, per_row: int, launched: int, fixed: Fixed | None, dtype: str) -> Any:
    from tkern.lang.windows_one import GpuWindows

    return GpuWindows(lanes, per_row, launched, fixed, dtype)
