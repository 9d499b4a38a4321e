"""How many threads of a kernel an Apple GPU core can run at once, as far as its MSL tells.

Two things bound it: registers and threadgroup memory. Registers are the variables that are live in one line of the
MSL (:mod:`tkern.msl.liveness`), at most, without addresses that can be made anew. Apple's compiler orders and
recomputes as it likes, and needs a few for what has no name, so this is neither an upper nor a lower bound; it ranks
forms of one kernel.

Sources: the threads for a number of registers are those of Mesa's driver for Apple GPUs (src/asahi, agx_occupancy:
a file of 208 KiB a core, at most 256 half-registers a thread); 60 KiB of threadgroup memory a core were measured on M1
and M2 (github.com/philipturner/metal-benchmarks). A pipeline with more registers than its workgroup's threads allow is
refused by Metal, unless the compiler spills.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tkern.msl.liveness import live_words
from tkern.msl.rules import shared_bytes, threads_of

__all__ = ["Estimate", "estimate", "threads_for"]

# The most half-registers (16 bits) of a thread, and the threads that a core then runs at once.
_THREADS = (
    (104, 1024), (112, 896), (128, 832), (136, 768), (144, 704), (160, 640), (184, 576), (208, 512), (232, 448),
    (256, 384),
)  # fmt: skip
_CORE_SHARED = 60 * 1024


@dataclass(frozen=True)
class Estimate:
    """What one launch takes: ``threads`` of a workgroup, bytes of ``shared`` memory, ``registers`` of 32 bits.

    ``live`` counts integers that can be made anew, too. ``groups`` is how many workgroups a core runs at once, and
    ``bound`` what does not let it run more: "registers", "memory" or "threads" (the most that a core has).
    """

    threads: int
    shared: int
    registers: int
    live: int
    groups: int
    bound: str

    @property
    def resident(self) -> int:
        """Return the threads that a core runs at once."""
        return self.groups * self.threads

    @property
    def spills(self) -> bool:
        """Return whether more is live than a thread has registers."""
        return self.registers > _THREADS[-1][0] // 2

    @property
    def fits(self) -> bool:
        """Return whether a workgroup is no larger than its registers allow, if they are as many as that."""
        return self.threads <= threads_for(self.registers)


def estimate(msl: str) -> Estimate:
    """Estimate the occupancy of one kernel."""
    threads, shared = threads_of(msl) or 1, shared_bytes(msl) or 0
    kept, live = live_words(msl)
    registers = math.ceil(kept)
    most = threads_for(registers)
    by_registers = max(1, most // threads)
    by_memory = max(1, _CORE_SHARED // shared) if shared else by_registers
    bound = "threads" if most == _THREADS[0][1] else "registers"
    bound = "memory" if by_memory < by_registers else bound
    return Estimate(threads, shared, registers, math.ceil(live), min(by_registers, by_memory), bound)


def threads_for(registers: int) -> int:
    """Return the threads of a core where each has so many live registers; spilling leaves the least."""
    return next((threads for most, threads in _THREADS if 2 * registers <= most), _THREADS[-1][1])
