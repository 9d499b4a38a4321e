"""RMSNorm and its backward."""

from __future__ import annotations

import math
from typing import Any

from tkern import arrays, runtime
from tkern.errors import OptionError, ShapeError
from tkern.lang.rows import RowSizes
from tkern.launch import Launch

__all__ = ["prepare_backward", "prepare_forward", "rms_norm", "rms_norm_backward"]

# What was measured, or what the hardware allows, that chose these; see docs/measurements.md.
SIZES = {
    "cpu": RowSizes(
        programs=64,
        reason="dynamic tasks of a few dozen rows keep any number of cores busy; 64 private rows of dw cost less "
        "than 1% of the traffic at 8192x4096",
    ),
    "cuda": RowSizes(
        programs=264,
        lanes=(256, 512, 1024),
        held=16,
        reason="two programs on each of the H200's 132 multiprocessors; 256 lanes x 16 columns hold a row of 4096",
    ),
    "vulkan": RowSizes(
        programs=264,
        lanes=(256, 512, 1024),
        held=16,
        reason="as cuda: the same device through another driver",
    ),
    "metal": RowSizes(
        programs=128,
        lanes=(256, 512),
        held=8,
        reason="estimated from the MSL (tkern msl): 512 lanes x 8 columns hold a row of 4096 in 79 registers, 98 with "
        "addresses, and up to 104 a core runs a group of 512; 16 columns want 151 of the 128 that there are. No group "
        "of 1024 is promised to more than 52. 3 programs for each of 40 cores",
    ),
}


def rms_norm(x: Any, weight: Any = None, *, eps: float = 1e-6, offset: float = 0.0) -> tuple[Any, Any]:
    """Return ``(y, rstd)`` of RMSNorm over the last axis.

    y = x · rstd · (offset + weight), rstd = 1 / √(mean(x²) + eps), the mean over the last axis, of length D.

    Parameters: x float32 [..., D], D ≥ 1; weight float32 [D], or None for y = x · rstd; eps ≥ 0, added inside the
    root; offset added to every weight (1 for weights stored around 0, as Gemma does).
    Returns: y of x's shape; rstd of x's shape without its last axis. Both of x's kind, without autograd's history.
    No units. Kernels round subnormal numbers to 0, so an x whose square is below 1e-38 counts as 0.
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError, each naming the argument.
    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    with runtime.session() as backend:
        launch = prepare_forward(x, weight, eps=eps, offset=offset, backend=backend)
        launch.run()
        y, rstd = launch.results()
        return y, rstd


def rms_norm_backward(
    x: Any, weight: Any, dy: Any, *, eps: float = 1e-6, offset: float = 0.0, rstd: Any = None
) -> tuple[Any, Any, Any]:
    """Return ``(dx, dweight, rstd)``: the gradients of RMSNorm over the last axis, and rstd.

    With r = rstd, D the length of a row, g = dy · (offset + weight) and s = Σ g · x over the row:
    dx = r · (g − x · r² · s / D) and dweight = Σ dy · x · r over all rows.

    Parameters: x, dy float32 [..., D], D ≥ 1, the same shape; weight float32 [D] or None (then y = x · rstd, and
    dweight is None); eps ≥ 0 inside the root; offset as in :func:`rms_norm`; rstd as :func:`rms_norm` returned it
    saves recomputing it (eps is then not used).
    Returns: dx of x's shape, dweight [D] or None, rstd of x's shape without its last axis, all of x's kind, without
    autograd's history. With no rows (an empty batch) dweight is 0. Two runs give the same bits. A row of zeros with
    eps = 0 has no gradient: its results are not finite. Kernels round subnormal numbers to 0. No units.
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError, each naming the argument.
    Source: differentiating y = x · r · (offset + weight) with ∂r/∂x_i = −r³ · x_i / D.
    """
    with runtime.session() as backend:
        launch = prepare_backward(x, weight, dy, eps=eps, offset=offset, rstd=rstd, backend=backend)
        launch.run()
        dx, dweight, got_rstd = launch.results()
        return dx, dweight, got_rstd


def prepare_forward(x: Any, weight: Any = None, *, eps: float = 1e-6, offset: float = 0.0, backend: str) -> Launch:
    """Check the arguments of :func:`rms_norm`, make its outputs, and return the launch that fills them."""
    xs = arrays.take("x", x, backend=backend)
    rows, cols = _rows_and_cols(xs)
    w = None if weight is None else arrays.take("weight", weight, shape=(cols,), backend=backend)
    eps, offset = _check_options(eps, offset, w)
    y = arrays.make_output(xs.shape, xs, backend)
    rstd = arrays.make_output(xs.shape[:-1], xs, backend)
    if rows == 0:
        return Launch((y, rstd))

    from tkern.lang import compiled, plan_rows
    from tkern.ops.rms_norm import kernel

    plan = plan_rows(backend, SIZES[backend], rows, cols)
    launch = Launch((y, rstd))
    launch.add(
        compiled(kernel.forward, plan.words),
        xs.argument(backend),
        _weight_argument(w, cols, backend),
        y.argument,
        rstd.argument,
        rows,
        cols,
        plan.programs,
        eps,
        offset if w is not None else 1.0,
    )
    return launch


def prepare_backward(
    x: Any,
    weight: Any,
    dy: Any,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    rstd: Any = None,
    out: tuple[Any, Any, Any] | None = None,
    backend: str,
) -> Launch:
    """Check the arguments of :func:`rms_norm_backward` and return the launch that fills its outputs.

    ``out`` is (dx, dweight, rstd) to write into, for callers that keep their buffers; they must have exactly the
    shapes of the results, be contiguous and writable, and share no memory with the inputs or with each other.
    """
    xs = arrays.take("x", x, backend=backend)
    rows, cols = _rows_and_cols(xs)
    w = None if weight is None else arrays.take("weight", weight, shape=(cols,), backend=backend)
    dys = arrays.take("dy", dy, shape=xs.shape, backend=backend)
    saved = None if rstd is None else arrays.take("rstd", rstd, shape=xs.shape[:-1], backend=backend)
    eps, offset = _check_options(eps, offset, w)

    inputs = tuple(a for a in (xs, w, dys, saved) if a is not None)
    shapes = (xs.shape, (cols,), xs.shape[:-1])
    if out is None:
        dx, dweight, got_rstd = (arrays.make_output(shape, xs, backend) for shape in shapes)
    else:
        dx, dweight, got_rstd = arrays.take_outputs(("dx", "dweight", "rstd"), out, shapes, inputs, backend)
    launch = Launch((dx, dweight if w is not None else None, got_rstd))
    if rows == 0:
        dweight.fill(0.0)
        return launch

    from tkern.lang import columns, compiled, plan_rows
    from tkern.ops.rms_norm import kernel

    plan = plan_rows(backend, SIZES[backend], rows, cols)
    dw_rows = arrays.workspace(plan.partial_size, backend)
    launch.add(
        compiled(kernel.backward, plan.words),
        xs.argument(backend),
        _weight_argument(w, cols, backend),
        dys.argument(backend),
        saved.argument(backend) if saved is not None else arrays.workspace(1, backend),
        dx.argument,
        dw_rows,
        got_rstd.argument,
        rows,
        cols,
        plan.programs,
        eps,
        offset if w is not None else 1.0,
        int(saved is not None),
    )
    if w is not None:
        launch.add(
            columns.sum_kernel(backend, cols), dw_rows, dweight.argument, plan.programs, plan.partial_stride, cols
        )
    return launch


def _rows_and_cols(x: arrays.Input) -> tuple[int, int]:
    if not x.shape or x.shape[-1] == 0:
        raise ShapeError(argument="x", expected="shape [..., D] with D at least 1", got=arrays.shape_text(x.shape))
    return math.prod(x.shape[:-1]), x.shape[-1]


def _check_options(eps: float, offset: float, weight: arrays.Input | None) -> tuple[float, float]:
    eps, offset = arrays.number("eps", eps), arrays.number("offset", offset)
    if eps < 0:
        raise OptionError(argument="eps", expected="a number of at least 0", got=eps)
    if weight is None and offset != 0:
        raise OptionError(
            argument="offset", expected="0 where weight is None", got=offset, hint="it is added to a weight"
        )
    return eps, offset


def _weight_argument(weight: arrays.Input | None, cols: int, backend: str) -> Any:
    # Without a weight the scale is 1 = offset + 0, so that one kernel serves both.
    return weight.argument(backend) if weight is not None else arrays.zeros(cols, backend)
