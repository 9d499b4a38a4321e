"""Words for kernels that sum products with patches of images (convolution and its gradients).

On a CPU (:mod:`tkern.lang.convs_cpu`) patches are gathered into the workspace of the running thread, a tile of 144 taps
at 192 cells at a time, so the matrix of all patches is never there; products are a micro-kernel. On a GPU a workgroup
makes a tile of sums in its lanes' registers (:mod:`tkern.lang.conv_images_gpu`, :mod:`tkern.lang.conv_weights_gpu`), or
with a single channel a lane one sum from a patch that it reads where it is (:mod:`tkern.lang.convs_gpu`).

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

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any


@dataclass(frozen=True)
class ConvTile:
    """A tile of ``rows`` × ``cols`` sums that a workgroup of ``lanes`` makes, all of them powers of two.

    Its memory takes 8·slice·(rows + cols + 8) + 12·max(lanes, rows) bytes, of which Metal allows 32 KiB.

    ``across``    lanes side by side along the columns of the tile; a lane's part has multiples of 4 rows and columns
    ``slice``     taps or cells that are summed at a time
    ``chain``     slices whose products are summed before that is added to the sums: a long chain rounds more; 0 for all
    ``unrolled``  those whose products stand one after the other in the kernel's text
    ``least``     channels from which on tiles are taken
    ``wanted``    workgroups that keep the device busy; a longer sum is divided for so many, but not into parts of less
                  than ``shortest`` terms
    ``launched``  numbers of workgroups that kernels are compiled for, since one known only at run time costs a launch
    ``reason``    what was measured that chose these
    """

    rows: int
    cols: int
    lanes: int
    across: int
    slice: int
    chain: int = 4
    unrolled: int = 4
    least: int = 1
    wanted: int = 1
    shortest: int = 128
    launched: tuple[int, ...] = (1024, 16384)
    reason: str = field(default="", compare=False)

    def launched_for(self, programs: int) -> int:
        """Return how many workgroups to launch for so many programs, 0 for a number known only at run time."""
        return next((n for n in self.launched if n >= programs), 0)

    def count(self, rows: int, cols: int) -> int:
        """Return how many tiles cover rows × cols sums."""
        return -(-rows // self.rows) * -(-cols // self.cols)


@lru_cache(maxsize=None)
def conv_words(backend: str) -> Any:
    """Return the words of ``backend``; on a GPU those for programs of one lane, which makes one sum."""
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


@lru_cache(maxsize=None)
def image_tile_words(tile: ConvTile, launched: int) -> Any:
    """Return the words for tiles of images on a GPU, ``launched`` workgroups (0: as many as there are programs)."""
    from tkern.lang.conv_images_gpu import GpuImageTiles

    return GpuImageTiles(tile, launched)


@lru_cache(maxsize=None)
def weight_tile_words(tile: ConvTile, launched: int) -> Any:
    """Return the words for tiles of gradients of weights on a GPU; see above."""
    from tkern.lang.conv_weights_gpu import GpuWeightTiles

    return GpuWeightTiles(tile, launched)
