"""The gradient of cross-entropy, softmax included, with respect to logits."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tkern import arrays, hollow, runtime
from tkern.errors import DTypeError, OptionError, ShapeError
from tkern.lang.rows import RowSizes
from tkern.launch import Launch

__all__ = ["cross_entropy_backward", "prepare"]

REDUCTIONS = ("mean", "sum", "none")

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
        reason="estimated from the MSL (tkern msl): 256 lanes x 16 columns hold a row of 4096 in 26 registers, 69 with "
        "addresses, so that a core runs four groups of 256, its most. 3 programs for each of 40 cores",
    ),
}


def cross_entropy_backward(
    logits: Any,
    labels: Any,
    dout: Any = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    in_place: bool = False,
) -> Any:
    """Return ``dlogits``, the gradient of cross-entropy with respect to its logits.

    The loss of row n is −Σ_v q_v · log p_v with p = softmax(logits[n]) and q_v = (1 − ε)·[v = label] + ε/V, ε being
    label_smoothing: dlogits[n] = s_n · (p − q). s_n is dout[n] for reduction "none", dout for "sum", and dout over the
    number of rows that are not ignored for "mean". A row whose label is ignore_index is ignored: its gradient is 0,
    whatever its logits are; so is that of all rows where each is ignored.

    Parameters: logits float32 [N, V], V ≥ 1, finite; labels int32 or int64 [N], each ignore_index or from 0 to V − 1;
    dout: the gradient of the loss, None for 1, else a number or a float32 array without axes, and for reduction "none"
    float32 [N]; ignore_index a whole number; label_smoothing from 0 to 1; reduction "mean", "sum" or "none"; in_place:
    write dlogits over the logits, which must then be contiguous and writable, and live where the backend runs.
    Returns: dlogits of logits' shape and kind, without autograd's history; ``logits`` itself where in_place. No units.
    Two runs give the same bits. Kernels round subnormal numbers to 0. Labels are looked at on the CPU, wherever they
    live.
    Raises: ShapeError, DTypeError, OptionError (also for a label that is none), SizeLimitError, and, only where
    in_place, AliasError and BackendUnavailable, each naming the argument.
    Source: differentiating the loss with ∂ log p_v/∂z_u = [u = v] − p_u; options as torch.nn.CrossEntropyLoss has them.
    """
    with runtime.session() as backend:
        launch = prepare(
            logits,
            labels,
            dout,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
            in_place=in_place,
            backend=backend,
        )
        launch.run()
        dlogits = launch.results()[0]
        torch = sys.modules.get("torch")
        if in_place and torch is not None and isinstance(dlogits, torch.Tensor):
            # So that autograd refuses to use the logits that it may have kept.
            torch.autograd.graph.increment_version(dlogits)
        return dlogits


def prepare(
    logits: Any,
    labels: Any,
    dout: Any = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    in_place: bool = False,
    out: tuple[Any] | None = None,
    backend: str,
) -> Launch:
    """Check the arguments of :func:`cross_entropy_backward` and return the launch that fills dlogits.

    ``out`` is (dlogits,) to write into, for callers that keep their buffers: of logits' shape, contiguous, writable,
    and apart in memory from the inputs. A launch with ``in_place`` is right once: it overwrites what it reads.
    """
    zs = arrays.take("logits", logits, backend=backend)
    if len(zs.shape) != 2 or zs.shape[1] == 0:
        raise ShapeError(argument="logits", expected="shape [N, V] with V at least 1", got=arrays.shape_text(zs.shape))
    rows, cols = zs.shape
    if reduction not in REDUCTIONS:
        raise OptionError(argument="reduction", expected="one of " + ", ".join(REDUCTIONS), got=repr(reduction))
    smoothing = arrays.number("label_smoothing", label_smoothing)
    if not 0 <= smoothing <= 1:
        raise OptionError(argument="label_smoothing", expected="a number from 0 to 1", got=label_smoothing)
    classes = _classes(labels, rows, cols, ignore_index, backend)
    factor, each = _gradient(dout, rows, reduction, backend)
    if reduction == "mean":
        factor /= max(1, int(np.count_nonzero(classes >= 0)))

    if type(in_place) is not bool or (in_place and out is not None):
        raise OptionError(argument="in_place", expected="True or False, and False where out is given", got=in_place)
    inputs = (zs,) if each is None else (zs, each)
    if in_place:
        dlogits = arrays.take_output("logits", logits, zs.shape, apart=inputs[1:], backend=backend)
    elif out is None:
        dlogits = arrays.make_output(zs.shape, zs, backend)
    else:
        (dlogits,) = arrays.take_outputs(("dlogits",), out, (zs.shape,), inputs, backend)
    launch = Launch((dlogits,))
    if rows == 0:
        return launch

    from tkern.lang import compiled, plan_rows
    from tkern.ops.cross_entropy_backward import kernel

    plan = plan_rows(backend, SIZES[backend], rows, cols)
    launch.add(
        compiled(kernel.backward, plan.words),
        dlogits.argument if in_place else zs.argument(backend),
        arrays.constants(classes, backend),
        each.argument(backend) if each is not None else arrays.workspace(1, backend),
        dlogits.argument,
        rows,
        cols,
        plan.programs,
        factor,
        int(each is not None),
        1.0 - smoothing,
        smoothing / cols,
    )
    return launch


def _classes(labels: Any, rows: int, cols: int, ignore_index: int, backend: str) -> np.ndarray:
    """Check the labels and return them as int32, −1 for a row to ignore."""
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, (int, np.integer)):
        raise OptionError(argument="ignore_index", expected="a whole number", got=repr(ignore_index))
    kind = str(getattr(labels, "dtype", "")).rpartition(".")[2]
    if hasattr(labels, "dtype") and kind not in ("int32", "int64", "i32", "i64"):
        raise DTypeError(
            argument="labels", expected="int32 or int64", got=kind, hint="convert it first: nothing is cast in silence"
        )
    dtype = "int64" if kind.endswith("64") else "int32"
    given = arrays.take("labels", labels, shape=(rows,), backend=backend, dtype=dtype)
    # What only has its kernels looked at has no labels in its arrays.
    host = np.zeros(rows, dtype) if given.kind == "taichi" and hollow.arrays_are_hollow() else given.host()
    ignored = host == ignore_index
    wrong = ~ignored & ((host < 0) | (host >= cols))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise OptionError(
            argument="labels",
            expected=f"{ignore_index} (ignored) or from 0 to {cols - 1}",
            got=f"{int(host[at])} at {at}, and {int(wrong.sum()) - 1} more such",
        )
    return np.where(ignored, -1, host).astype(np.int32)


def _gradient(dout: Any, rows: int, reduction: str, backend: str) -> tuple[float, arrays.Input | None]:
    """Return dout as a number and, where rows have one each, as an array."""
    if dout is None:
        return 1.0, None
    if reduction == "none":
        return 1.0, arrays.take("dout", dout, shape=(rows,), backend=backend)
    if hasattr(dout, "dtype") and not isinstance(dout, np.generic):
        return float(arrays.take("dout", dout, shape=(), backend=backend).host().reshape(-1)[0]), None
    return arrays.number("dout", dout), None
