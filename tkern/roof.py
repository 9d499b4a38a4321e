"""The machine's roof: how fast it copies memory, and how fast it multiplies matrices, measured beside the kernels.

The roof of a copy is the best of several ways to do it (tkern's own language, NumPy, PyTorch), since any one of them
may be slow; bytes read and bytes written both count. The matrix product is the best that a library here reaches in
float32 on that device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tkern import arrays, runtime
from tkern.lang import compiled, plan_rows
from tkern.lang.rows import RowSizes
from tkern.launch import Launch
from tkern.timing import measure

__all__ = ["Roof", "copy_launch", "measure_roof", "rows_of"]

# One row of the copy; the sizes are those of an op that streams, on each backend.
_COLS = 4096
_SIZES = {
    "cpu": RowSizes(programs=64),
    "cuda": RowSizes(programs=1056, lanes=(256,), held=16),
    "vulkan": RowSizes(programs=1056, lanes=(256,), held=16),
    "metal": RowSizes(
        programs=512,
        lanes=(256,),
        held=16,
        reason="16 loads of a lane before its first store; 20 registers, 43 with addresses, so that a core runs four "
        "groups of 256 (tkern msl)",
    ),
}


@dataclass(frozen=True)
class Roof:
    """GB/s of a copy (read and written bytes) and GFLOP/s of a float32 matrix product, with who reached them.

    ``product`` is None where no library on that device was there to measure.
    """

    copy: float
    copy_by: str
    product: float | None
    product_by: str | None

    def better(self, other: Roof) -> Roof:
        """Return the better of two measurements, copy and product apart."""
        copies = max((self.copy, self.copy_by), (other.copy, other.copy_by))
        products = max((self.product or 0.0, self.product_by or ""), (other.product or 0.0, other.product_by or ""))
        return Roof(*copies, products[0] or None, products[1] or None)

    def fraction(self, milliseconds: float, moved: float, flops: float) -> float:
        """Return the share of the roof that a call reaches: its least possible time over its time."""
        least = moved / (self.copy * 1e9)
        if self.product is not None:
            least = max(least, flops / (self.product * 1e9))
        return least / (milliseconds * 1e-3)


def measure_roof(backend: str, megabytes: int) -> Roof:
    """Measure the roof of ``backend``, which must be on, copying ``megabytes`` MiB (well beyond any cache)."""
    rows = rows_of(megabytes)
    moved = 2 * rows * _COLS * 4
    copies = {"tkern": copy_launch(backend, rows).run}
    products: dict[str, Callable[[], Any]] = {}
    torch = _torch()
    if backend == "cpu":
        a, b = np.ones(rows * _COLS, np.float32), np.ones(rows * _COLS, np.float32)
        copies["numpy"] = lambda: np.copyto(b, a)
        m, n = _square(2048), _square(2048)
        products["numpy"] = lambda: m @ n
        if torch is not None:
            ta, tb = torch.from_numpy(a), torch.from_numpy(b)
            copies["torch"] = lambda: tb.copy_(ta)
            tm, tn = torch.from_numpy(m), torch.from_numpy(n)
            products["torch"] = lambda: tm @ tn
    elif backend == "cuda" and torch is not None and torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = False
        ta = torch.ones(rows * _COLS, device="cuda")
        tb = torch.empty_like(ta)
        copies["torch"] = lambda: tb.copy_(ta)
        tm, tn = (torch.from_numpy(_square(4096)).cuda() for _ in range(2))
        products["torch"] = lambda: tm @ tn
    size = 4096 if backend == "cuda" else 2048

    def milliseconds(name: str, function: Callable[[], Any]) -> float:
        wait = synchronize_torch if name == "torch" else runtime.synchronize
        return measure(function, wait, seconds=0.3, device=backend != "cpu").median

    copied = {name: moved / 1e6 / milliseconds(name, copy) for name, copy in copies.items()}
    made = {name: 2 * size**3 / 1e6 / milliseconds(name, product) for name, product in products.items()}
    copy_by = max(copied, key=copied.__getitem__)
    product_by = max(made, key=made.__getitem__) if made else None
    return Roof(copied[copy_by], copy_by, made[product_by] if product_by else None, product_by)


def synchronize_torch() -> None:
    """Wait for the device that torch uses."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch is not None and torch.backends.mps.is_available():
        torch.mps.synchronize()


def rows_of(megabytes: int) -> int:
    """Return how many rows are copied to copy so many MiB."""
    return megabytes * 2**20 // (4 * _COLS)


def copy_launch(backend: str, rows: int) -> Launch:
    """Return the launch that copies so many rows of 4096 floats in tkern's own language."""
    from tkern.lang.copying import copy_rows

    source, target = (arrays.zeros(rows * _COLS, backend) for _ in range(2))
    # Memory that was never written reads from one page of zeros, at the speed of the cache.
    source.fill(1.0)
    target.fill(1.0)
    plan = plan_rows(backend, _SIZES[backend], rows, _COLS)
    launch = Launch(())
    launch.add(compiled(copy_rows, plan.words), source, target, rows, _COLS, plan.programs)
    return launch


def _square(size: int) -> np.ndarray:
    return np.random.default_rng(size).standard_normal((size, size), dtype=np.float32)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch
