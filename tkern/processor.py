"""What the processor of this machine is and has, as far as kernels for it are planned or written differently."""

from __future__ import annotations

import contextlib
import os
import re
from functools import lru_cache
from pathlib import Path

__all__ = ["cores", "has_wide_registers", "said_of"]


@lru_cache(maxsize=1)
def cores() -> int:
    """Return how many cores there are, at least 1; asked of the system once, for that takes as long as a launch."""
    return os.cpu_count() or 1


@lru_cache(maxsize=1)
def has_wide_registers() -> bool:
    """Return whether there are 32 registers of 16 floats (AVX-512), as Linux tells; False where it does not."""
    return "avx512f" in said_of("flags").split()


def said_of(what: str) -> str:
    """Return what Linux says of the first core, such as its "model name"; "" where it says nothing."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        found = re.search(rf"^{what}\s*:\s*(.+)$", text, re.MULTILINE)
        return found.group(1) if found else ""
    return ""
