"""What a caller may pass: NumPy arrays, torch tensors and ti.ndarrays; checks; the way in and out of a kernel.

A caller's array is looked at here, in Python, before Taichi sees it, because Taichi does not notice a short array,
writes to a read-only one, and aborts on much else. What is taken is copied only where it must be: an array that is not
contiguous, or one that lives on another device than the kernel.

=====================  =====================  ============================================
array                  on cpu                 on a GPU backend
=====================  =====================  ============================================
NumPy, torch on CPU    in place               copied to the device, results copied back
torch on CUDA          through the CPU        in place on cuda (device 0), else through the CPU
torch on MPS           through the CPU        through the CPU: torch and Taichi share no buffers
ti.ndarray             in place               in place
=====================  =====================  ============================================

Results are of the kind of the op's first array. Through the CPU means two copies for each array, each way, and a wait
for what the other side has queued: see docs/metal.md for torch on MPS.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from tkern import hollow, pool, runtime
from tkern.errors import AliasError, BackendUnavailable, DTypeError, OptionError, ShapeError, SizeLimitError
from tkern.memory import memory_of, refuse_shared

__all__ = [
    "DTYPES",
    "Input",
    "Output",
    "as_vectors",
    "constants",
    "make_output",
    "number",
    "shape_text",
    "take",
    "take_output",
    "take_outputs",
    "workspace",
    "zeros",
]

_WIDTH = 16
# Elements that an index can reach: 31 bits, less what a kernel may add to the last one before it masks it. SPIR-V
# addresses bytes by 32 bits, so floats by 30.
_SLACK = 2**15
LIMITS = {"cpu": 2**31 - _SLACK, "cuda": 2**31 - _SLACK, "vulkan": 2**30 - _SLACK, "metal": 2**30 - _SLACK}

# Device arrays kept by size and type, the one used last at the end.
_workspaces: dict[tuple[int, str], Any] = {}
_MOST_WORKSPACES = 8


# The element types that there are, with Taichi's names for them. Offsets in windows and labels are integers, all else
# float32.
DTYPES = {"float32": "f32", "int32": "i32", "int64": "i64", "uint8": "u8"}


@dataclass(frozen=True)
class Input:
    """An array that a caller passed, checked: its ``name``, ``shape``, ``kind``, its data and its ``dtype``."""

    name: str
    shape: tuple[int, ...]
    kind: str  # "numpy", "torch" or "taichi"
    data: Any
    dtype: str = "float32"

    def argument(self, backend: str) -> Any:
        """Return what a kernel of ``backend`` takes for this array: flat, contiguous, read only by agreement."""
        if self.kind == "taichi":
            return self.data if backend != "cpu" else as_vectors(memory_of(self.data))
        if self.kind == "torch" and _shares_cuda(self.data, backend):
            # Taichi launches on the default stream; what another stream still writes must be there first.
            stream = sys.modules["torch"].cuda.current_stream(0)
            if stream.cuda_stream != 0:
                stream.synchronize()
            return self.data.detach().resolve_neg().contiguous().view(-1)
        host = self.host()
        return as_vectors(host) if backend == "cpu" else _upload(host)

    def host(self) -> np.ndarray:
        """Return the data as a contiguous NumPy array, without a copy where it is one already."""
        if self.kind == "numpy":
            return _contiguous(self.data)
        if self.kind == "torch":
            try:
                return _contiguous(self.data.detach().resolve_neg().cpu().numpy())
            except (RuntimeError, NotImplementedError, TypeError) as error:
                raise DTypeError(
                    argument=self.name, expected="a tensor whose data can be read", got=f"one that cannot: {error}"
                ) from error
        return np.asarray(self.data.to_numpy())


@dataclass
class Output:
    """An array that a kernel writes: ``argument`` for the kernel, ``result()`` for the caller."""

    shape: tuple[int, ...]
    like: Input
    backend: str
    argument: Any
    value: Any = None  # the caller's own array, or the one the kernel writes into in place

    def fill(self, number: float) -> None:
        """Set every element to ``number``, for an output that no kernel will write."""
        if isinstance(self.argument, np.ndarray):
            self.argument.reshape(-1)[: math.prod(self.shape)] = number
        elif hasattr(self.argument, "fill_"):
            self.argument.fill_(number)
        else:
            self.argument.fill(number)

    def is_ordered(self) -> bool:
        """Return whether whoever reads the result waits for the kernel by itself: on the stream it was launched on."""
        if self.like.kind != "torch" or self.value is None or not _shares_cuda(self.value, self.backend):
            return False
        return bool(sys.modules["torch"].cuda.current_stream(0).cuda_stream == 0)

    def result(self) -> Any:
        """Return the array in the caller's kind, after the kernel has been launched."""
        if self.value is not None:
            return self.value
        if isinstance(self.argument, np.ndarray):
            return _in_kind_of(self.like, self.argument.reshape(-1)[: math.prod(self.shape)].reshape(self.shape))
        # An empty output still has a buffer of one float: Taichi has no empty arrays.
        return _in_kind_of(self.like, self.argument.to_numpy()[: math.prod(self.shape)].reshape(self.shape))


def take(name: str, value: Any, *, shape: tuple[int, ...] | None = None, backend: str, dtype: str = "float32") -> Input:
    """Check an array that a caller passed as argument ``name`` and return it as an :class:`Input`.

    It must be of ``dtype`` and, where ``shape`` is given, have that shape. Raises DTypeError, ShapeError,
    SizeLimitError or BackendUnavailable (a ti.ndarray of a backend that was switched off).
    """
    kind, got_shape = _kind_of(name, value, dtype)
    if kind == "taichi" and shape == () and got_shape == (1,):
        got_shape = ()  # as make_output returns it
    if shape is not None and got_shape != shape:
        raise ShapeError(argument=name, expected=f"shape {shape_text(shape)}", got=shape_text(got_shape))
    count = math.prod(got_shape)
    if count > LIMITS[backend]:
        raise SizeLimitError(
            argument=name,
            expected=f"at most {LIMITS[backend]} elements on {backend} (32-bit indices)",
            got=f"{count} elements, shape {shape_text(got_shape)}",
            hint="call it on parts",
        )
    return Input(name, got_shape, kind, value, dtype)


def make_output(shape: tuple[int, ...], like: Input, backend: str, dtype: str = "float32") -> Output:
    """Make an array of ``shape`` for a kernel to write every element of, of the kind of ``like``."""
    count = math.prod(shape)
    if like.kind == "taichi":
        # One number has an axis here: Taichi's own array without axes cannot be indexed in a kernel.
        array = _device_array(shape or (1,), dtype)
        return Output(shape, like, backend, as_vectors(memory_of(array)) if backend == "cpu" else array, array)
    if like.kind == "torch" and _shares_cuda(like.data, backend):
        torch = sys.modules["torch"]
        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=like.data.device)
        return Output(shape, like, backend, tensor.view(-1), tensor)
    if backend == "cpu":
        return Output(shape, like, backend, pool.empty(_padded(count), dtype).reshape(-1, _WIDTH))
    return Output(shape, like, backend, _device_array(count, dtype))


def take_outputs(
    names: tuple[str, ...],
    values: tuple[Any, ...],
    shapes: tuple[tuple[int, ...], ...],
    apart: tuple[Input, ...],
    backend: str,
) -> list[Output]:
    """Check the arrays that a caller wants written, each apart from the inputs ``apart`` and from the others.

    Errors as :func:`take_output`.
    """
    outputs: list[Output] = []
    for name, value, shape in zip(names, values, shapes, strict=True):
        outputs.append(take_output(name, value, shape, apart=apart, backend=backend))
        apart = (*apart, Input(name, shape, outputs[-1].like.kind, value))
    return outputs


def take_output(name: str, value: Any, shape: tuple[int, ...], *, apart: tuple[Input, ...], backend: str) -> Output:
    """Check an array that a caller wants written, and return it as an :class:`Output`.

    It must be float32, of exactly ``shape``, contiguous, writable, and share no memory with the inputs ``apart``.
    Raises DTypeError, ShapeError or AliasError; on a GPU backend it must live on that device.
    """
    given = take(name, value, shape=shape, backend=backend)
    if given.kind == "taichi":
        refuse_shared(name, value, apart)
        return Output(shape, given, backend, given.argument(backend), value)
    if given.kind == "torch" and _shares_cuda(value, backend) and value.is_contiguous():
        refuse_shared(name, value, apart)
        return Output(shape, given, backend, value.detach().view(-1), value)
    if backend != "cpu" or (given.kind == "torch" and value.device.type != "cpu"):
        raise BackendUnavailable(
            f"{name}: an array to be written on {backend} must live there (a ti.ndarray, or a CUDA tensor on cuda)",
            argument=name,
        )
    host = value if given.kind == "numpy" else value.detach().numpy()
    if not host.flags.c_contiguous or not host.flags.aligned:
        raise ShapeError(
            argument=name, expected="a contiguous array, since it is written", got=f"strides {host.strides}"
        )
    if not host.flags.writeable:
        raise AliasError(argument=name, expected="an array that may be written", got="a read-only one")
    refuse_shared(name, value, apart)
    return Output(shape, given, backend, as_vectors(host), value)


def workspace(count: int, backend: str, dtype: str = "float32") -> Any:
    """Return a kernel argument of ``count`` numbers that no caller sees; what is in it is undefined.

    On a GPU the last few are kept and handed out again, also while another launch still holds one: launches run one
    after another, and each writes its workspace before it reads it.
    """
    if backend == "cpu":
        return pool.empty(_padded(count), dtype).reshape(-1, _WIDTH)
    if hollow.arrays_are_hollow():
        return _device_array(count, dtype)
    kept = _workspaces.pop((count, dtype), None)
    if kept is None or runtime.is_ended(kept):
        kept = _device_array(count, dtype)
    _workspaces[count, dtype] = kept
    while len(_workspaces) > _MOST_WORKSPACES:
        del _workspaces[next(iter(_workspaces))]
    return kept


def zeros(count: int, backend: str) -> Any:
    """Return a kernel argument of ``count`` zeros that no caller sees."""
    if backend == "cpu":
        return np.zeros((_padded(count) // _WIDTH, _WIDTH), np.float32)
    return _device_array(count, zeros=True)


def constants(host: np.ndarray, backend: str) -> Any:
    """Return a kernel argument with the numbers of a contiguous array that no caller sees."""
    if backend != "cpu":
        return _upload(host)
    padded = np.zeros(_padded(host.size), host.dtype)
    padded[: host.size] = host.reshape(-1)
    return padded.reshape(-1, _WIDTH)


def number(name: str, value: Any) -> float:
    """Return an option that is a finite real number as a float; raise OptionError naming it otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise OptionError(argument=name, expected="a finite number", got=f"{type(value).__name__} {value!r}")
    # It becomes a float32 in the kernel.
    least, most = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
    size: Any = abs(value)
    if not size <= most or 0 < size < least:
        held = f"a finite number that float32 holds (0, or {least:.3g} to {most:.3g})"
        raise OptionError(argument=name, expected=held, got=value)
    return float(value)


def as_vectors(host: np.ndarray) -> np.ndarray:
    """Return a contiguous array as one of 16-vectors, the form that CPU kernels take.

    The last vector may reach past the end; kernels mask what lies there.
    """
    if host.size % _WIDTH == 0 and host.size:
        return host.reshape(-1, _WIDTH)
    count = max(1, _padded(host.size) // _WIDTH)
    return np.lib.stride_tricks.as_strided(host.reshape(-1), (count, _WIDTH), (host.itemsize * _WIDTH, host.itemsize))


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as it is written in an error: ``(2, 3)``."""
    return "(" + ", ".join(str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"


def _kind_of(name: str, value: Any, dtype: str) -> tuple[str, tuple[int, ...]]:
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise DTypeError(
                argument=name, expected="a plain NumPy array", got="a masked one, whose mask would be lost"
            )
        if value.dtype != np.dtype(dtype) or not value.dtype.isnative:
            _refuse_dtype(name, value.dtype, dtype)
        return "numpy", value.shape
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise DTypeError(argument=name, expected="a dense (strided) tensor", got=str(value.layout))
        if value.dtype != getattr(torch, dtype):
            _refuse_dtype(name, value.dtype, dtype)
        return "torch", tuple(value.shape)
    ti = sys.modules.get("taichi")
    if ti is not None and isinstance(value, ti.Ndarray):
        if runtime.is_ended(value):
            raise BackendUnavailable(
                f"{name}: this ti.ndarray belongs to a backend that was switched off", argument=name
            )
        if not isinstance(value, ti.ScalarNdarray) or value.dtype != getattr(ti, DTYPES[dtype]):
            _refuse_dtype(name, value.element_type, dtype)
        return "taichi", tuple(value.shape)
    raise DTypeError(
        argument=name,
        expected=f"a NumPy array, torch tensor or ti.ndarray of {dtype}"
        if dtype != "float32"
        else "a float32 NumPy array, torch tensor or ti.ndarray",
        got=f"{type(value).__module__}.{type(value).__qualname__}",
    )


def _refuse_dtype(name: str, got: object, dtype: str) -> None:
    raise DTypeError(argument=name, expected=dtype, got=str(got), hint="convert it first: nothing is cast in silence")


def _contiguous(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.array(array, order="C", subok=False)


def _padded(count: int) -> int:
    return max(_WIDTH, -(-count // _WIDTH) * _WIDTH)


def _device_array(shape: int | tuple[int, ...], dtype: str = "float32", zeros: bool = False) -> Any:
    shape = (max(1, shape),) if isinstance(shape, int) else shape
    try:
        return _ndarray(shape, dtype, zeros)
    except RuntimeError as error:
        size, why = math.prod(shape) * np.dtype(dtype).itemsize, str(error).strip().splitlines()[0]
        raise SizeLimitError(f"the device could not give {size} bytes for an array: {why}") from error


def _ndarray(shape: tuple[int, ...], dtype: str, zeros: bool) -> Any:
    """Return a new ti.ndarray, with undefined values or zeros: Taichi's own word writes zeros always, a pass more."""
    ti = sys.modules["taichi"]
    kind = getattr(ti, DTYPES[dtype])
    if hollow.arrays_are_hollow():
        return hollow.array(kind, shape)
    if math.prod(shape) == 0:
        return ti.ndarray(kind, shape)
    array = ti.ScalarNdarray.__new__(ti.ScalarNdarray)
    ti.Ndarray.__init__(array)
    array.arr = ti.lang.impl.get_runtime().prog.create_ndarray(
        kind, shape, layout=ti.Layout.NULL, zero_fill=zeros, dbg_info=ti._lib.core.DebugInfo("")
    )
    array.dtype = array.element_type = kind
    array.shape = tuple(array.arr.shape)
    return array


def _upload(host: np.ndarray) -> Any:
    array = _device_array(host.size, host.dtype.name)
    array.from_numpy(host.reshape(-1))
    return array


def _shares_cuda(tensor: Any, backend: str) -> bool:
    return backend == "cuda" and tensor.device.type == "cuda" and tensor.device.index in (None, 0)


def _in_kind_of(like: Input, host: np.ndarray) -> Any:
    if like.kind == "torch":
        return sys.modules["torch"].from_numpy(host).to(like.data.device)
    return host
