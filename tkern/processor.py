"""What the processor of this machine has, as far as kernels for it are written differently."""

from __future__ import annotations

import contextlib
import re
from functools import lru_cache
from pathlib import Path

__all__ = ["has_wide_registers"]


@lru_cache(maxsize=1)
def has_wide_registers() -> bool:
    """Return whether there are 32 registers of 16 floats (AVX-512), as Linux tells; False where it does not."""
    flags = ""
    with contextlib.suppress(OSError):
        found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        flags = found.group(1) if found else ""
    return "avx512f" in flags.split()
