"""Convolution over images, the matrix of its patches, and its gradients."""

from __future__ import annotations

import math
from typing import Any

from tkern import arrays, runtime
from tkern.errors import ShapeError
from tkern.lang.rows import RowSizes
from tkern.launch import Launch
from tkern.ops.conv2d import plan
from tkern.ops.conv2d.geometry import Geometry, Options, check, check_kernel_size, check_shape, options_of, refuse_large

__all__ = [
    "conv2d",
    "conv2d_backward_bias",
    "conv2d_backward_input",
    "conv2d_backward_weight",
    "im2col",
    "prepare_bias",
    "prepare_forward",
    "prepare_im2col",
    "prepare_input",
    "prepare_weight",
]

# The bias's gradient is a sum of rows, one a channel of an image; see tkern.ops.rms_norm for what chose such sizes.
SIZES = {
    "cpu": RowSizes(programs=64, reason="as RMSNorm's"),
    "cuda": RowSizes(programs=264, lanes=(256,), held=16, reason="as RMSNorm's"),
    "vulkan": RowSizes(programs=264, lanes=(256,), held=16, reason="as RMSNorm's"),
    "metal": RowSizes(
        programs=128,
        lanes=(256,),
        held=16,
        reason="one array is held: up to 16 columns a lane in 18 registers, 37 with addresses (tkern msl), so that a "
        "core runs four groups of 256; 3 programs for each of 40 cores",
    ),
}


def im2col(x: Any, kernel_size: Any, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Any:
    """Return the matrix of patches of x, [N·Ho·Wo, C·kh·kw].

    Row (n, ho, wo), column (c, r, s) is x[n, c, ho·stride + r·dilation − padding, …], 0 outside of the image;
    Ho = ⌊(H + padding − dilation·(kh − 1) − 1)/stride⌋ + 1, padding on both sides together, and Wo likewise.

    Parameters: x float32 [N, C, H, W]; kernel_size, stride, dilation an integer or (vertical, horizontal); padding an
    integer, (vertical, horizontal) or ((top, bottom), (left, right)).
    Returns: the matrix, exactly, of x's kind, without autograd's history. No units.
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError, each naming the argument.
    Source: Chellapilla, Puri and Simard, High Performance Convolutional Neural Networks, 2006.
    """
    with runtime.session() as backend:
        launch = prepare_im2col(x, kernel_size, stride=stride, padding=padding, dilation=dilation, backend=backend)
        launch.run()
        return launch.results()[0]


def conv2d(
    x: Any, weight: Any, bias: Any = None, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Return y = x ∗ weight + bias, the convolution as networks have it (a correlation).

    y[n, k, ho, wo] = bias[k] + Σ over c, r, s of weight[k, c, r, s] · x[n, g·C/groups + c, ho·stride + r·dilation −
    padding, …], g = k // (Cout/groups) being the group of output k; x is 0 outside of the image.

    Parameters: x float32 [N, C, H, W]; weight float32 [Cout, C/groups, kh, kw]; bias float32 [Cout] or None; options as
    in :func:`im2col`; groups divides C and Cout.
    Returns: y [N, Cout, Ho, Wo], of x's kind, without autograd's history. Two runs give the same bits. No units.
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError, each naming the argument.
    Source: the definition; Dumoulin and Visin, A guide to convolution arithmetic for deep learning, 2016.
    """
    with runtime.session() as backend:
        launch = prepare_forward(
            x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups, backend=backend
        )
        launch.run()
        return launch.results()[0]


def conv2d_backward_weight(
    x: Any,
    dy: Any,
    weight_shape: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Return the gradient of the weight of :func:`conv2d`.

    dweight[k, c, r, s] = Σ over n, ho, wo of dy[n, k, ho, wo] · x[n, g·C/groups + c, ho·stride + r·dilation − padding,
    …].

    Parameters: x float32 [N, C, H, W]; dy float32 [N, Cout, Ho, Wo], of exactly the size that follows; weight_shape
    (Cout, C/groups, kh, kw); options as in :func:`conv2d`.
    Returns: dweight of weight_shape, of x's kind; 0 for an empty batch. Two runs give the same bits. No units.
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError, each naming the argument.
    Source: differentiating the definition.
    """
    with runtime.session() as backend:
        launch = prepare_weight(
            x, dy, weight_shape, stride=stride, padding=padding, dilation=dilation, groups=groups, backend=backend
        )
        launch.run()
        return launch.results()[0]


def conv2d_backward_input(
    dy: Any,
    weight: Any,
    input_shape: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Return the gradient of the input of :func:`conv2d`, the transposed convolution of dy.

    dx[n, g·C/groups + c, h, w] = Σ over r, s and the outputs k of group g of weight[k, c, r, s] · dy[n, k, ho, wo], for
    the taps that read it: ho·stride + r·dilation − padding = h, and likewise w. A cell that no output read is 0,
    exactly.

    Parameters: dy float32 [N, Cout, Ho, Wo], of exactly the size that follows; weight float32 [Cout, C/groups, kh, kw];
    input_shape (N, C, H, W); options as in :func:`conv2d`.
    Returns: dx of input_shape, of dy's kind. Two runs give the same bits. No units.
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError, each naming the argument.
    Source: differentiating the definition; Dumoulin and Visin, A guide to convolution arithmetic, 2016.
    """
    with runtime.session() as backend:
        launch = prepare_input(
            dy, weight, input_shape, stride=stride, padding=padding, dilation=dilation, groups=groups, backend=backend
        )
        launch.run()
        return launch.results()[0]


def conv2d_backward_bias(dy: Any) -> Any:
    """Return the gradient of the bias of :func:`conv2d`: dbias[k] = Σ over n, ho, wo of dy[n, k, ho, wo].

    Parameters: dy float32 [N, Cout, Ho, Wo].
    Returns: dbias [Cout], of dy's kind; 0 for an empty batch. Two runs give the same bits. No units.
    Raises: ShapeError, DTypeError, SizeLimitError, naming the argument.
    Source: differentiating the definition.
    """
    with runtime.session() as backend:
        launch = prepare_bias(dy, backend=backend)
        launch.run()
        return launch.results()[0]


def prepare_im2col(
    x: Any, kernel_size: Any, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, backend: str
) -> Launch:
    """Check the arguments of :func:`im2col` and return the launch that fills its output."""
    options = options_of(stride, padding, dilation)
    kernel = check_kernel_size(kernel_size)
    xs = arrays.take("x", x, backend=backend)
    channels = xs.shape[1] if len(xs.shape) == 4 else 1
    g = check(xs.shape, (1, channels, *kernel), options, ("x", "kernel_size"))
    shape = (g.cells, g.taps)
    refuse_large("kernel_size", shape, backend)
    cols = arrays.make_output(shape, xs, backend)
    launch = Launch((cols,))
    if g.batch:
        plan.add_im2col(launch, g, xs.argument(backend), cols.argument, backend)
    return launch


def prepare_forward(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    backend: str,
) -> Launch:
    """Check the arguments of :func:`conv2d` and return the launch that fills its output."""
    options = options_of(stride, padding, dilation, groups)
    xs, ws = arrays.take("x", x, backend=backend), arrays.take("weight", weight, backend=backend)
    g = check(xs.shape, ws.shape, options, ("x", "weight"))
    bs = None if bias is None else arrays.take("bias", bias, shape=ws.shape[:1], backend=backend)
    refuse_large("x", g.y_shape, backend)
    y = arrays.make_output(g.y_shape, xs, backend)
    launch = Launch((y,))
    if g.batch:
        given = None if bs is None else bs.argument(backend)
        arguments = xs.argument(backend), ws.argument(backend), given, y.argument
        plan.add_image(launch, plan.simplified(g), *arguments, backend)
    return launch


def prepare_weight(
    x: Any,
    dy: Any,
    weight_shape: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    backend: str,
) -> Launch:
    """Check the arguments of :func:`conv2d_backward_weight` and return the launch that fills its output."""
    options = options_of(stride, padding, dilation, groups)
    xs, dys = arrays.take("x", x, backend=backend), arrays.take("dy", dy, backend=backend)
    shape = check_shape("weight_shape", weight_shape)
    g = _checked(xs.shape, shape, options, ("x", "weight_shape"), dys)
    refuse_large("weight_shape", shape, backend)
    dweight = arrays.make_output(shape, xs, backend)
    launch = Launch((dweight,))
    if g.batch:
        arguments = xs.argument(backend), dys.argument(backend), dweight.argument
        plan.add_weight(launch, plan.simplified(g), *arguments, backend)
    else:
        dweight.fill(0.0)
    return launch


def prepare_input(
    dy: Any,
    weight: Any,
    input_shape: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    backend: str,
) -> Launch:
    """Check the arguments of :func:`conv2d_backward_input` and return the launch that fills its output."""
    options = options_of(stride, padding, dilation, groups)
    dys, ws = arrays.take("dy", dy, backend=backend), arrays.take("weight", weight, backend=backend)
    shape = check_shape("input_shape", input_shape)
    g = _checked(shape, ws.shape, options, ("input_shape", "weight"), dys)
    refuse_large("input_shape", shape, backend)
    dx = arrays.make_output(shape, dys, backend)
    launch = Launch((dx,))
    if g.batch:
        arguments = dys.argument(backend), ws.argument(backend), dx.argument
        plan.add_input(launch, plan.simplified(g), *arguments, backend)
    return launch


def prepare_bias(dy: Any, *, backend: str) -> Launch:
    """Check the argument of :func:`conv2d_backward_bias` and return the launch that fills its output."""
    dys = arrays.take("dy", dy, backend=backend)
    if len(dys.shape) != 4:
        got = f"{len(dys.shape)}, {arrays.shape_text(dys.shape)}"
        raise ShapeError(argument="dy", expected="4 axes, [N, Cout, Ho, Wo]", got=got)
    batch, outs, height, width = dys.shape
    dbias = arrays.make_output((outs,), dys, backend)
    launch = Launch((dbias,))
    if not math.prod(dys.shape):
        dbias.fill(0.0)
        return launch

    from tkern.lang import columns, compiled, plan_rows
    from tkern.ops.conv2d import kernel

    rows, cols = batch * outs, height * width
    laid = plan_rows(backend, SIZES[backend], rows, cols)
    sums = arrays.workspace(rows, backend)
    launch.add(compiled(kernel.sum_channels, laid.words), dys.argument(backend), sums, rows, cols, laid.programs)
    launch.add(columns.sum_kernel(backend, outs), sums, dbias.argument, batch, outs, outs)
    return launch


def _checked(
    x: tuple[int, ...], weight: tuple[int, ...], options: Options, names: tuple[str, str], dy: arrays.Input
) -> Geometry:
    """Check the shapes of a backward; dy must have exactly the size that follows from the others."""
    g = check(x, weight, options, names)
    if dy.shape != g.y_shape:
        expected = f"shape {arrays.shape_text(g.y_shape)}, [N, Cout, Ho, Wo] as it follows from {names[0]}, {names[1]}"
        raise ShapeError(argument="dy", expected=expected + " and the options", got=arrays.shape_text(dy.shape))
    return g
