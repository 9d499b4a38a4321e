"""The gradients of layer norm over the last axis."""

from __future__ import annotations

import math
from typing import Any

from tkern import arrays, runtime
from tkern.errors import OptionError, ShapeError
from tkern.lang.rows import RowSizes
from tkern.launch import Launch

__all__ = ["layer_norm_backward", "prepare"]

WRT = ("x", "weight", "bias")

# What was measured, or what the hardware allows, that chose these; see docs/measurements.md.
SIZES = {
    "cpu": RowSizes(
        programs=64,
        reason="dynamic tasks of a few dozen rows keep any number of cores busy; private rows of dweight and dbias are "
        "2% of the traffic at 8192x4096",
    ),
    "cuda": RowSizes(
        programs=264,
        lanes=(256, 512, 1024),
        held=12,
        reason="two programs on each of the H200's 132 multiprocessors, as measured for RMSNorm; seven numbers a "
        "column in registers; not measured itself",
    ),
    "vulkan": RowSizes(
        programs=264,
        lanes=(256, 512, 1024),
        held=12,
        reason="as cuda: the same device through another driver",
    ),
    "metal": RowSizes(
        programs=128,
        lanes=(256, 512),
        held=6,
        reason="estimated from the MSL (tkern msl): 256 lanes x 4 columns take 73 registers, 512 x 5 take 89, 102 with "
        "addresses, and up to 104 a core runs a group of 512. 3 programs for each of 40 cores",
    ),
}


def layer_norm_backward(
    x: Any,
    weight: Any,
    dy: Any,
    *,
    eps: float = 1e-5,
    wrt: tuple[str, ...] = WRT,
    mean: Any = None,
    rstd: Any = None,
) -> tuple[Any, Any, Any]:
    """Return ``(dx, dweight, dbias)``: the gradients of layer norm over the last axis, None where not asked for.

    The forward is y = n · weight + bias, n = (x − m) · r, m = mean(x), r = 1 / √(mean((x − m)²) + eps), the means over
    the last axis, of length D. With g = dy · weight: dx = r · (g − mean(g) − n · mean(g · n)), dweight = Σ dy · n and
    dbias = Σ dy over all rows.

    Parameters: x, dy float32 [..., D], D ≥ 1, the same shape; weight float32 [D] or None (then y = n + bias, and
    dweight is None); eps ≥ 0 inside the root; wrt: which gradients to make, of "x", "weight", "bias". The bias itself
    is not needed. mean and rstd, m and r as the forward pass had them (``torch.native_layer_norm`` returns both), both
    of x's shape without its last axis, or with a last axis of one, save making them anew; eps is then not used.
    Returns: dx of x's shape, dweight and dbias [D], all of x's kind, without autograd's history. No units. With no rows
    (an empty batch) dweight and dbias are 0. Two runs give the same bits. Where m and r are made anew, the squares are
    from the differences to m, so that nothing is lost where m is large. A row of one value with eps = 0 has no
    gradient: its results are not finite. Kernels round subnormal numbers to 0.
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError, each naming the argument.
    Source: Ba, Kiros and Hinton, Layer Normalization, 2016; differentiating y with
    ∂n_j/∂x_i = r·(δ_ij − 1/D − n_i·n_j/D).
    """
    with runtime.session() as backend:
        launch = prepare(x, weight, dy, eps=eps, wrt=wrt, mean=mean, rstd=rstd, backend=backend)
        launch.run()
        dx, dweight, dbias = launch.results()
        return dx, dweight, dbias


def prepare(
    x: Any,
    weight: Any,
    dy: Any,
    *,
    eps: float = 1e-5,
    wrt: tuple[str, ...] = WRT,
    mean: Any = None,
    rstd: Any = None,
    out: tuple[Any, Any, Any] | None = None,
    backend: str,
) -> Launch:
    """Check the arguments of :func:`layer_norm_backward` and return the launch that fills its outputs.

    ``out`` is (dx, dweight, dbias) to write into, for callers that keep their buffers; all three, of exactly the
    shapes of the results, contiguous, writable, and apart in memory from the inputs and each other. What ``wrt`` does
    not name is then left undefined.
    """
    xs = arrays.take("x", x, backend=backend)
    if not xs.shape or xs.shape[-1] == 0:
        raise ShapeError(argument="x", expected="shape [..., D] with D at least 1", got=arrays.shape_text(xs.shape))
    rows, cols = math.prod(xs.shape[:-1]), xs.shape[-1]
    w = None if weight is None else arrays.take("weight", weight, shape=(cols,), backend=backend)
    dys = arrays.take("dy", dy, shape=xs.shape, backend=backend)
    eps = arrays.number("eps", eps)
    if eps < 0:
        raise OptionError(argument="eps", expected="a number of at least 0", got=eps)
    asked = _asked(wrt)
    saved = _saved(mean, rstd, xs.shape, backend)

    wants_x, wants_sums = "x" in asked, bool(asked & {"weight", "bias"})
    if out is None:
        # What is not asked for is not written, and needs no memory.
        shapes = (xs.shape if wants_x else (1,), (cols,), (cols,))
        dx, dweight, dbias = (arrays.make_output(shape, xs, backend) for shape in shapes)
    else:
        shapes, inputs = (xs.shape, (cols,), (cols,)), tuple(a for a in (xs, w, dys, *saved) if a is not None)
        dx, dweight, dbias = arrays.take_outputs(("dx", "dweight", "dbias"), out, shapes, inputs, backend)
    has_dweight = "weight" in asked and w is not None
    launch = Launch((dx if wants_x else None, dweight if has_dweight else None, dbias if "bias" in asked else None))
    if rows == 0:
        dweight.fill(0.0)
        dbias.fill(0.0)
        return launch

    from tkern.lang import columns, compiled, plan_rows
    from tkern.ops.layer_norm_backward import kernel

    plan = plan_rows(backend, SIZES[backend], rows, cols)
    # The size of one more, so that it is not the other's memory.
    dw_rows, db_rows = (arrays.workspace(plan.partial_size + more, backend) for more in (0, 1))
    launch.add(
        compiled(kernel.backward, plan.words),
        xs.argument(backend),
        # Without a weight the scale is 1 = 1 + 0, so that one kernel serves both.
        w.argument(backend) if w is not None else arrays.zeros(cols, backend),
        dys.argument(backend),
        *(a.argument(backend) if a is not None else arrays.zeros(1, backend) for a in saved),
        dx.argument,
        dw_rows,
        db_rows,
        rows,
        cols,
        plan.programs,
        eps,
        0.0 if w is not None else 1.0,
        int(saved[0] is not None),
        int(wants_x),
        int(wants_sums),
    )
    for partial, total, wanted in ((dw_rows, dweight, has_dweight), (db_rows, dbias, "bias" in asked)):
        if wanted:
            launch.add(
                columns.sum_kernel(backend, cols), partial, total.argument, plan.programs, plan.partial_stride, cols
            )
    return launch


def _asked(wrt: Any) -> set[str]:
    names = tuple(wrt) if isinstance(wrt, (tuple, list, set, frozenset)) else ()
    if not names or any(name not in WRT for name in names):
        raise OptionError(argument="wrt", expected="a tuple of " + ", ".join(map(repr, WRT)), got=repr(wrt))
    return set(names)


def _saved(
    mean: Any, rstd: Any, shape: tuple[int, ...], backend: str
) -> tuple[arrays.Input, arrays.Input] | tuple[None, None]:
    if mean is None and rstd is None:
        return None, None
    if mean is None or rstd is None:
        missing, there = ("mean", "rstd") if mean is None else ("rstd", "mean")
        raise OptionError(argument=missing, expected=f"an array, as {there} is one", got=None)
    shapes = [(*shape[:-1], 1) if len(getattr(a, "shape", ())) == len(shape) else shape[:-1] for a in (mean, rstd)]
    return (
        arrays.take("mean", mean, shape=shapes[0], backend=backend),
        arrays.take("rstd", rstd, shape=shapes[1], backend=backend),
    )
