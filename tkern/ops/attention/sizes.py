"""The sizes of attention's tiles on each kind of device: the one table of them."""

from __future__ import annotations

from tkern import runtime
from tkern.lang.tiles import TileSizes
from tkern.ops.attention.options import Inputs

__all__ = ["SIZES", "sizes_for"]

SIZES: dict[str, tuple[TileSizes, ...]] = {
    "software": (
        TileSizes(
            16, 16, 32, 16, 4, 4, 16, launched=(64,), resident=4, most_parts=2**22,
            reason="a device in software: the least work for a partial tile",
        ),
    ),
    "vulkan": (TileSizes(64, 64, 64, 128, 16, 16, 16, resident=264, most_parts=2**27),),
    "metal": (TileSizes(64, 64, 64, 128, 16, 16, 16, resident=64, most_parts=2**26),),
    "cuda": (TileSizes(64, 64, 64, 128, 16, 16, 16, vectors=True, resident=264, most_parts=2**27),),
}  # fmt: skip


def sizes_for(backend: str, inputs: Inputs) -> TileSizes | None:
    """Return the sizes for ``inputs`` on ``backend``, the narrowest that fit; None on a CPU, which has its own."""
    if backend == "cpu":
        return None
    kind = "software" if runtime.backend(backend).in_software else backend
    table = SIZES[kind]
    longest = max(inputs.dim, inputs.value_dim)
    return next((sizes for sizes in table if sizes.width >= longest), table[-1])
