"""A limit of Vulkan devices in software (Mesa's): they end a lane's loops, silently, after so many steps in all."""

from __future__ import annotations

from tkern import runtime
from tkern.errors import SizeLimitError

__all__ = ["refuse_long_loops"]

_MOST_STEPS = 65535
# Threads of a launch whose number of programs is known only at run time, on Vulkan and Metal: each takes several.
_VULKAN_THREADS = 131072


def refuse_long_loops(argument: str, backend: str, *, threads: int, steps: int, instead: str) -> None:
    """Raise SizeLimitError, naming ``argument``, where one of ``threads`` with ``steps`` each would end too early.

    ``instead`` is what to do, beside taking the cpu backend. On all other devices nothing is refused.
    """
    if backend == "cpu" or not runtime.backend(backend).in_software:
        return
    taken = -(-threads // _VULKAN_THREADS) * steps
    if taken > _MOST_STEPS:
        raise SizeLimitError(
            argument=argument,
            expected=f"at most {_MOST_STEPS} steps of a loop on a {backend} device in software",
            got=f"{taken}",
            hint=f"such a device ends longer loops in silence; use the cpu backend, or {instead}",
        )
