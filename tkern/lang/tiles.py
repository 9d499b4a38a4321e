"""Words for kernels that work on tiles of a matrix of scores (attention), on each backend."""

from functools import lru_cache
from typing import Any


@lru_cache(maxsize=None)
def tile_words(backend: str) -> Any:
    """Return the words of ``backend``."""
    if backend == "cpu":
        from tkern.lang.tiles_cpu import CpuTiles

        return CpuTiles()
    from tkern.lang.tiles_gpu import GpuTiles

    return GpuTiles()
