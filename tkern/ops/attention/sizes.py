"""The sizes of attention's tiles on each kind of device: the one table of them."""

from __future__ import annotations

from tkern import runtime
from tkern.lang.tiles import TileSizes
from tkern.ops.attention.options import Inputs

__all__ = ["SIZES", "sizes_for"]

SIZES: dict[str, tuple[TileSizes, ...]] = {
    "software": (
        TileSizes(
            16, 16, 32, 16, 4, 4, 16, launched=(64,), fours=False, plain=False, resident=4, most_parts=2**22,
            reason="a device in software: the least work for a partial tile, and few kernels, for it compiles slowly",
        ),
    ),
    "vulkan": (
        TileSizes(
            64, 64, 64, 256, 16, 16, 16, resident=264, most_parts=2**27,
            reason="H200, 4×16×2048×64: 12.3 TFLOP/s; 128 lanes (8 × 4 fragments) 11.2",
        ),
        TileSizes(
            64, 64, 128, 256, 16, 32, 16, resident=264, most_parts=2**27,
            reason="H200, 1×32/8×2048×128 causal: 10.8 ms, with width 64 13.5; 1×8/2×2048×256: 9.1 and 14.7",
        ),
    ),
    "metal": (
        TileSizes(
            64, 64, 64, 256, 16, 16, 16, resident=32, most_parts=2**26,
            reason="estimated from the MSL (tkern msl), not measured: 26 of 32 KiB, so two groups a core, if registers "
            "allow: dk and dv want 150 (a thread has 128), dq 109, the forward 93. 128 lanes want 240, 183 and 151; "
            "64 × 32 with 128 lanes 160, 130 and 114; 32 × 32 with 64 lanes 200, 135 and 119. Groups of 256 threads "
            "run with any number of registers. 32 cores, a group of dk and dv on each",
        ),
    ),
    "cuda": (
        TileSizes(
            64, 64, 64, 128, 16, 16, 16, resident=264, most_parts=2**27,
            reason="H200, 4×16×2048×64: 21.9 TFLOP/s; 64 × 128 with 256 lanes 20.0, 128 × 64 18.6, 64 × 64 17.4, "
            "slices of 32 17.3; head sizes 128 and 256: 7.8 and 7.6 ms, with width 128 and 256 lanes 8.8 and 10.1",
        ),
    ),
}  # fmt: skip


def sizes_for(backend: str, inputs: Inputs) -> TileSizes | None:
    """Return the sizes for ``inputs`` on ``backend``, the narrowest that fit; None on a CPU, which has its own."""
    if backend == "cpu":
        return None
    kind = "software" if runtime.backend(backend).in_software else backend
    table = SIZES[kind]
    longest = max(inputs.dim, inputs.value_dim)
    return next((sizes for sizes in table if sizes.width >= longest), table[-1])
