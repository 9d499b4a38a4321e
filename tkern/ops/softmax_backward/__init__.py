"""The gradient of softmax over the last axis."""

from __future__ import annotations

import math
from typing import Any

from tkern import arrays, runtime
from tkern.errors import ShapeError
from tkern.lang.rows import RowSizes
from tkern.launch import Launch

__all__ = ["prepare", "softmax_backward"]

# What was measured, or what the hardware allows, that chose these; see docs/measurements.md.
SIZES = {
    "cpu": RowSizes(programs=64, reason="dynamic tasks of a few dozen rows keep any number of cores busy"),
    "cuda": RowSizes(
        programs=264,
        lanes=(256, 512, 1024),
        held=16,
        reason="two programs on each of the H200's 132 multiprocessors, as measured for RMSNorm; not measured itself",
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
        held=16,
        reason="estimated from the MSL (tkern msl): 256 lanes x 16 columns hold a row of 4096 in 37 registers, 61 with "
        "addresses, so that a core runs four groups of 256, its most. 3 programs for each of 40 cores",
    ),
}


def softmax_backward(y: Any, dy: Any) -> Any:
    """Return ``dx``, the gradient of softmax over the last axis, from its result y and the gradient dy of that.

    dx = y · (dy − s), s = Σ dy · y over the last axis, of length N.

    Parameters: y, dy float32 [..., N], N ≥ 1, the same shape. y is what softmax returned; that its rows sum to 1 is not
    checked, and the formula is that above for any y.
    Returns: dx of y's shape and kind, without autograd's history. No units. Two runs give the same bits. Kernels round
    subnormal numbers to 0.
    Raises: ShapeError, DTypeError, SizeLimitError, each naming the argument.
    Source: differentiating y_i = exp(x_i) / Σ exp(x_j): ∂y_j/∂x_i = y_j · (δ_ij − y_i).
    """
    with runtime.session() as backend:
        launch = prepare(y, dy, backend=backend)
        launch.run()
        return launch.results()[0]


def prepare(y: Any, dy: Any, *, out: tuple[Any] | None = None, backend: str) -> Launch:
    """Check the arguments of :func:`softmax_backward` and return the launch that fills dx.

    ``out`` is (dx,) to write into, for callers that keep their buffers: of y's shape, contiguous, writable, and apart
    in memory from the inputs.
    """
    ys = arrays.take("y", y, backend=backend)
    if not ys.shape or ys.shape[-1] == 0:
        raise ShapeError(argument="y", expected="shape [..., N] with N at least 1", got=arrays.shape_text(ys.shape))
    rows, cols = math.prod(ys.shape[:-1]), ys.shape[-1]
    dys = arrays.take("dy", dy, shape=ys.shape, backend=backend)
    if out is None:
        dx = arrays.make_output(ys.shape, ys, backend)
    else:
        (dx,) = arrays.take_outputs(("dx",), out, (ys.shape,), (ys, dys), backend)
    launch = Launch((dx,))
    if rows == 0:
        return launch

    from tkern.lang import compiled, plan_rows
    from tkern.ops.softmax_backward import kernel

    plan = plan_rows(backend, SIZES[backend], rows, cols)
    launch.add(
        compiled(kernel.backward, plan.words),
        ys.argument(backend),
        dys.argument(backend),
        dx.argument,
        rows,
        cols,
        plan.programs,
    )
    return launch
