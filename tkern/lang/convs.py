"""Words for kernels that sum products with patches of images (convolution and its gradients).

On a CPU (:mod:`tkern.lang.convs_cpu`) patches are gathered into the workspace of the running thread, a tile of 144 taps
at 192 cells at a time, so the matrix of all patches is never there; products are a micro-kernel. On a GPU
(:mod:`tkern.lang.convs_gpu`) a lane makes one sum, and reads a patch where it is.

``t.cells``, ``t.span``     the cells that a program makes, and those that it sums over at a time
``t.depth``                 the taps of a tile
``for i in range(t.threads(programs))``  the outermost loop; ``p = t.program(i, space, size)``, with ``size`` vectors of
                            the workspace ``space`` for its thread; its number is ``p.id``, if it
                            ``p.is_one_of(programs)``
``x = p.patches()``         taps at cells; ``x.gather(images, rows, columns, cells, first, count)`` takes ``count`` taps
                            from ``first`` on of a window over images (:mod:`tkern.lang.taps`)
``w = p.weights(rows)``     weights, an output a row; ``w.load(a, start, term, stride, total, rows, count)``
``y = p.turned(cols)``      channels at cells; ``y.load(images, channels, cells)``
``s = p.sums(rows)``        sums of rows at the cells of a tile, ``s.begin``; ``s.add(0, w, x, rows, cells, taps)``
                            adds w·x
``d = p.totals(rows, cols)``  sums of taps and channels over cells, ``d.clear``; ``d.add(row, x, y, taps, cols, cells)``
                            adds x·yᵀ from ``row`` on
``s.save(images, lattice, rows, cells)``  write sums to channels of images
``d.save_turned(a, start, stride, rows, cols)``  write the transpose of sums, or of patches
``t.scalar``, ``t.put_scalar``  one float
"""

from functools import lru_cache
from typing import Any


@lru_cache(maxsize=None)
def conv_words(backend: str) -> Any:
    """Return the words of ``backend``."""
    if backend == "cpu":
        from tkern.lang.convs_cpu import CpuConvs

        return CpuConvs()
    from tkern.lang.convs_gpu import GpuConvs

    return GpuConvs()


@lru_cache(maxsize=None)
def thin_words() -> Any:
    """Return the words of a CPU for few channels."""
    from tkern.lang.thin_cpu import ThinConvs

    return ThinConvs()


@lru_cache(maxsize=None)
def image_words() -> Any:
    """Return the words of a CPU where the lanes of a vector are images."""
    from tkern.lang.convs_images_cpu import CpuImageConvs

    return CpuImageConvs()
