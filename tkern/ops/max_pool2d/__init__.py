"""Max pooling over images and its backward."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from tkern import arrays, runtime
from tkern.errors import OptionError
from tkern.lang.windows import (
    AxisNumbers,
    Images,
    WindowPart,
    WindowSizes,
    can_hand_out,
    plan_cells,
    plan_windows,
)
from tkern.launch import Launch
from tkern.loops import refuse_long_loops
from tkern.ops.max_pool2d.geometry import Axis, Geometry, geometry_of
from tkern.ops.max_pool2d.indices import max_pool2d_indices_from_flat, max_pool2d_indices_to_flat

__all__ = [
    "check_ties",
    "max_pool2d",
    "max_pool2d_backward",
    "max_pool2d_indices_from_flat",
    "max_pool2d_indices_to_flat",
    "prepare_backward",
    "prepare_forward",
]

TIES = ("first", "split", "all")

# What was measured, or what the hardware allows, that chose these; see docs/measurements.md.
_GPU = WindowSizes(
    programs=(8, 64, 512, 1024, 2048, 4096, 8192, 16384),
    lanes=256,
    rows=8,
    fixed=(7, 4),
    reason="8 rows: 4 are a third slower on an H200, 16 no faster and spill at 5×5; 128 or 512 lanes are slower where "
    "images are small; as many programs as the input needs, 65535 being the most that Vulkan grants everywhere",
)
SIZES = {
    "cpu": WindowSizes(
        programs=(512,),
        fixed=(5, 3),
        reason="tasks of a few dozen rows keep any number of cores busy; compiling strides beyond 3 takes 20 s, 5×5 "
        "places 5 s",
    ),
    "cuda": _GPU,
    "vulkan": _GPU,
    "metal": WindowSizes(
        programs=(8, 64, 512, 4096),
        lanes=256,
        fixed=(7, 4),
        reason="no shared memory, 20 to 28 registers, up to 35 with addresses (tkern msl), so that a core runs four "
        "groups of 256, its most; a lane for each cell of a row, so that a simdgroup of 32 reads neighbours",
    ),
}


def max_pool2d(
    x: Any, kernel_size: Any, *, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Any, Any]:
    """Return ``(y, indices)``: the largest cell of each window, and which of its cells that is.

    Window (ho, wo) holds the cells (ho·sh − ph + i·dh, wo·sw − pw + j·dw), 0 ≤ i < kh, 0 ≤ j < kw, that lie in the
    image; padding never wins. y is the largest of them, indices the offset i·kw + j of the first, in row-major order,
    that is so large. NaN is larger than every number, −∞ a number as any other, −0 equal to 0.

    Parameters: x float32 [..., H, W]; kernel_size, stride (None: kernel_size), padding, dilation: a whole number, or
    one for each axis; ceil_mode: count a last window that is only partly there, if it begins inside the image or its
    left padding, as PyTorch does.
    Returns: y of x's kind, [..., Ho, Wo]; indices of the same shape and kind, uint8 where kh·kw ≤ 256, else int32: the
    smallest type that holds them. :func:`tkern.max_pool2d_indices_to_flat` makes PyTorch's flat int64 of them.
    No units.
    Raises: ShapeError, DTypeError, OptionError (also for a window without a real cell), SizeLimitError, each naming
    the argument.
    Source: the definition; sizes as torch.nn.MaxPool2d counts them.
    """
    with runtime.session() as backend:
        launch = prepare_forward(
            x,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            ceil_mode=ceil_mode,
            backend=backend,
        )
        launch.run()
        y, indices = launch.results()
        return y, indices


def max_pool2d_backward(
    x: Any,
    dy: Any,
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    ties: str = "first",
    indices: Any = None,
) -> Any:
    """Return ``dx``, the gradient of max pooling: each window's dy goes to its largest cell, and cells add them up.

    dx(c) = Σ dy(o) over the windows o whose largest cell is c. Of cells that are equally large, ``ties`` says which
    takes dy: ``"first"`` the first in row-major order; ``"split"`` each an equal part; ``"all"`` each the whole of it,
    so that then Σ dx is not Σ dy (it is the rule of rlx for windows that do not overlap). A NaN equals nothing: the
    first NaN of a window takes all of its dy by every rule. A cell that no window covers has gradient 0.

    Parameters: x float32 [..., H, W]; dy float32 [..., Ho, Wo]; kernel_size to ceil_mode as for
    :func:`tkern.max_pool2d`; indices as it returned them for the same x and options save looking for them (x's values
    then matter only to ``"split"`` and ``"all"``). Indices that were not made so give an undefined result.
    Returns: dx of x's shape and kind, without autograd's history. Two runs give the same bits. Kernels round subnormal
    numbers to 0. Beside the arrays it takes memory for the indices where they are not given and, for ties other than
    "first" where windows overlap, as much again. No units.
    Raises: ShapeError, DTypeError, OptionError (also for a window without a real cell), SizeLimitError, each naming
    the argument.
    Source: differentiating y = max of the window; a subgradient where cells are equally large.
    """
    with runtime.session() as backend:
        launch = prepare_backward(
            x,
            dy,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            ceil_mode=ceil_mode,
            ties=ties,
            indices=indices,
            backend=backend,
        )
        launch.run()
        return launch.results()[0]


def prepare_forward(x: Any, kernel_size: Any, *, backend: str, **options: Any) -> Launch:
    """Check the arguments of :func:`max_pool2d`, make its outputs, and return the launch that fills them."""
    xs = arrays.take("x", x, backend=backend)
    geometry = _geometry(xs.shape, kernel_size, **options)
    shape = (*xs.shape[:-2], geometry.h.windows, geometry.w.windows)
    _check_count(shape, backend)
    y = arrays.make_output(shape, xs, backend)
    indices = arrays.make_output(shape, xs, backend, geometry.index_dtype)
    launch = Launch((y, indices))
    planes = math.prod(xs.shape[:-2])
    images = _images(geometry, planes)
    if planes == 0:
        return launch

    from tkern.ops.max_pool2d import kernel

    arguments = (xs.argument(backend), y.argument, indices.argument)
    _add(launch, backend, kernel.forward, plan_windows(backend, SIZES[backend], images), arguments)
    return launch


def prepare_backward(
    x: Any,
    dy: Any,
    kernel_size: Any,
    *,
    ties: str = "first",
    indices: Any = None,
    out: tuple[Any] | None = None,
    backend: str,
    **options: Any,
) -> Launch:
    """Check the arguments of :func:`max_pool2d_backward` and return the launch that fills dx.

    ``out`` is (dx,) to write into, for callers that keep their buffers: of x's shape, contiguous, writable, and apart
    in memory from the inputs.
    """
    xs = arrays.take("x", x, backend=backend)
    geometry = _geometry(xs.shape, kernel_size, **options)
    check_ties(ties)
    shape = (*xs.shape[:-2], geometry.h.windows, geometry.w.windows)
    dys = arrays.take("dy", dy, shape=shape, backend=backend)
    saved = None
    if indices is not None:
        saved = arrays.take("indices", indices, shape=shape, backend=backend, dtype=geometry.index_dtype)
    if out is None:
        dx = arrays.make_output(xs.shape, xs, backend)
    else:
        inputs = tuple(a for a in (xs, dys, saved) if a is not None)
        (dx,) = arrays.take_outputs(("dx",), out, (xs.shape,), inputs, backend)
    launch = Launch((dx,))
    planes = math.prod(xs.shape[:-2])
    images = _images(geometry, planes)
    if planes == 0:
        return launch

    from tkern.ops.max_pool2d import kernel

    windows, dtype, sizes = math.prod(shape), geometry.index_dtype, SIZES[backend]
    if saved is None and can_hand_out(backend, sizes, images):
        builds = {"first": "backward_apart", "split": "backward_apart_split", "all": "backward_apart_all"}
        given = (xs.argument(backend), dys.argument(backend), dx.argument)
        _add(launch, backend, getattr(kernel, builds[ties]), plan_windows(backend, sizes, images), given)
        return launch
    # What is not read need not be brought to the device.
    cells = xs.argument(backend) if saved is None or ties != "first" else None
    if saved is None:
        found = arrays.workspace(windows, backend, dtype)
        _add(launch, backend, kernel.find, plan_windows(backend, sizes, images), (cells, found))
    else:
        found = saved.argument(backend)
    dy_in = dys.argument(backend)
    if ties == "first":
        _add(launch, backend, kernel.backward, plan_cells(backend, sizes, images), (found, dy_in, dx.argument))
        return launch
    moves = arrays.constants(_moves(geometry), backend)
    # The size of one more, so that it is not the workspace of the indices.
    counts = arrays.workspace(windows + 1 if ties == "split" else 1, backend, dtype)
    if ties == "split":
        parts = plan_windows(backend, sizes, images, ties=True)
        _add(launch, backend, kernel.count, parts, (cells, found, moves, counts))
    build = kernel.backward_split if ties == "split" else kernel.backward_all
    arguments = (cells, found, moves, counts, dy_in, dx.argument)
    _add(launch, backend, build, plan_cells(backend, sizes, images, ties=True), arguments)
    return launch


def _add(launch: Launch, backend: str, build: Any, parts: list[WindowPart], arguments: tuple[Any, ...]) -> None:
    """Add a kernel's launches, one for each part of a plan. Raises SizeLimitError where a lane's loops are too long."""
    from tkern.lang import compiled

    for part in parts:
        refuse_long_loops("x", backend, threads=1, steps=part.steps, instead="smaller parts")
        launch.add(compiled(build, part.words), *arguments, part.numbers, part.programs)


def check_ties(ties: Any) -> None:
    """Raise OptionError where ``ties`` is no rule of :func:`max_pool2d_backward`."""
    if ties not in TIES:
        raise OptionError(argument="ties", expected="one of " + ", ".join(TIES), got=repr(ties))


def _geometry(
    size: tuple[int, ...],
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Geometry:
    return geometry_of(size, kernel_size, stride, padding, dilation, ceil_mode)


def _check_count(shape: tuple[int, ...], backend: str) -> None:
    """Refuse a y with more elements than an index reaches: with much padding it may be larger than x."""
    arrays.take("x", np.broadcast_to(np.float32(0), shape), backend=backend)


@functools.lru_cache(maxsize=256)
def _images(geometry: Geometry, planes: int) -> Images:
    return Images(planes, _numbers("h", geometry.h), _numbers("w", geometry.w), geometry.index_dtype)


def _numbers(name: str, axis: Axis) -> AxisNumbers:
    common = math.gcd(axis.stride, axis.dilation)
    step, back = axis.stride // common, axis.dilation // common
    inverse = pow(back, -1, step)
    if inverse > 1 and step > 46340:
        raise OptionError(
            argument="stride",
            expected="at most 46340 where dilation is not 1 (products of 32 bits)",
            got=f"{axis.stride} along {name} with dilation {axis.dilation}",
        )
    return AxisNumbers(
        size=axis.size,
        windows=axis.windows,
        kernel=axis.kernel,
        stride=axis.stride,
        pad=axis.padding,
        dilation=axis.dilation,
        common=common,
        step=step,
        back=back,
        inverse=inverse,
    )


def _moves(geometry: Geometry) -> np.ndarray:
    """Return how far each cell of a window lies from its first, in memory."""
    rows = np.arange(geometry.h.kernel)[:, None] * (geometry.h.dilation * geometry.w.size)
    return (rows + np.arange(geometry.w.kernel) * geometry.w.dilation).astype(np.int32).reshape(-1)
