"""Words for kernels that work on tiles of a matrix of scores, one row a query and one column a key (attention).

On a CPU (:mod:`tkern.lang.tiles_cpu`) a tile is 112 × 112 scores with their operands in the workspace of the running
thread, and products are a micro-kernel; operands that are read again and again are kept there, packed. On a GPU
(:mod:`tkern.lang.tiles_gpu`) a program is a workgroup, scores and sums lie in the registers of its lanes, and operands
pass through shared memory; an op gives the sizes of its tiles.

``t.queries``, ``t.keys``   rows and columns of a tile of scores
``t.Array``, ``t.Rows``     annotations of arrays of numbers, and of rows of operands and sums
``for i in range(t.threads(programs))``  the outermost loop; ``p = t.program(i, space, size, chunks)``, with ``size``
                            vectors of the workspace ``space`` for its thread, or one of ``chunks`` that share the
                            columns of sums; its number is ``p.id``, if it ``p.is_one_of(programs)``
``p.share(n)``, ``p.own(step)``  the steps of a loop over n that the lanes of a program share, and this lane's number
``x = p.tile(rows, cols)``  an operand; ``x.load(a, start, stride, skip, count, cols)`` fills it from rows of ``a``
``p.kept(rows, cols, places)``  operands that are read again and again: ``x.keep(place, …)`` fills one of ``places``
                            of the first ``p.keeps(places)``, ``x.take(place, …)`` makes it the operand; arguments of
                            both as of ``load`` and ``hide``. ``p.kept_sums(rows, cols, places, out)`` are sums likewise
``x.hide(seen, start, count)``      set rows to 0 where ``seen`` is 0, whatever is in them
``y = p.right(x, cols)``, ``y.turn(x)``  x as the right operand of ``s.along(q, y, cols, band)``: s = q·xᵀ;
                            ``band`` says what the position hides, which need not be computed
``s = p.scores(rows, cols)``  a tile of scores
``o = p.sums(rows, cols)``  a sum of products, ``o.clear`` (or ``o.resume``, from what was saved), ``o.save``:
                            ``o.add_down(s, x)`` adds s·x, ``o.add_across(s, x)`` adds sᵀ·x
``s.weigh(f, …)``, ``s.differentiate(ds, f, …)``  what the op's own ``f`` makes of each score (and its gradient), given
                            its row (``f.row(i)``) and columns
``r = p.running(rows)``     running maxima and sums of rows of scores: ``r.begin``, ``r.follow``, ``r.end``, ``r.total``
``g = p.folded(rows, cols)``  the sum of many tiles, whose rows or columns may be added up too
``t.some``, ``t.scalar``, ``t.all``, ``t.exp``, ``t.dot``  neighbouring floats, one float, a number for each of them
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any


@dataclass(frozen=True)
class TileSizes:
    """How an op's tiles are laid over the lanes of a workgroup; powers of two throughout.

    ``queries``, ``keys``  rows and columns of a tile of scores
    ``width``        columns of a sum that a program makes
    ``lanes``        threads of a workgroup
    ``across``       lanes side by side along the keys of a tile; a lane has keys/across columns, at least 4
    ``sums_across``  likewise along the columns of a sum
    ``slice``        columns of an operand, or rows of it, that are in shared memory at a time
    ``unrolled``     columns of a slice that are multiplied in one go, whose loads need not wait for each other
    ``launched``     workgroups of a launch, the smallest that suffices; they are compiled in, since a range that is
                     known only at run time makes a second launch, and always as many threads as there may be
    ``fours``        whether rows are read four floats at a time where they are whole vectors of 4
    ``plain``        whether kernels are compiled anew for calls without what an op can do to scores beside position
    ``resident``     programs that the device runs at once: with fewer key heads, a head's keys are divided
    ``most_parts``   floats that private dqs of parts of the keys may take, each of which is summed afterwards; where
                     they would take more, dq is made by a launch of its own, from scores that it makes anew
    ``reason``       what was measured that chose these
    """

    queries: int
    keys: int
    width: int
    lanes: int
    across: int
    sums_across: int
    slice: int
    unrolled: int = 4
    launched: tuple[int, ...] = (512, 8192)
    fours: bool = True
    plain: bool = True
    resident: int = 1
    most_parts: int = 0
    reason: str = field(default="", compare=False)

    def __str__(self) -> str:
        return (
            f"{self.queries}×{self.keys}, width {self.width}, {self.lanes} lanes, {self.across} and {self.sums_across} "
            f"across, slices of {self.slice}"
        )

    def launched_for(self, programs: int) -> int:
        """Return how many workgroups to launch for so many programs, 0 for a number known only at run time."""
        return next((n for n in self.launched if n >= programs), 0)

    @property
    def shared_fours(self) -> int:
        """Return the groups of four floats of shared memory that a kernel takes."""
        staged = self.queries * (self.keys // 4 + 1)
        streamed = self.slice * max(self.queries // 4 + self.keys // 4 + 2, self.width // 4)
        running = -(-2 * self.queries * self.across // 4)
        return max(staged + streamed, running)

    def parts_for(self, programs: int, tiles: int) -> int:
        """Return into how many parts to divide ``tiles``, where there are ``programs`` for each part.

        The device runs ``resident`` programs at a time: the fewest parts of those that need the least time.
        """
        return min(range(1, tiles + 1), key=lambda n: (-(-programs * n // self.resident) * -(-tiles // n), n))


@lru_cache(maxsize=None)
def tile_words(backend: str, sizes: TileSizes | None = None, launched: int = 0, fours: bool = False) -> Any:
    """Return the words of ``backend``, on a GPU for tiles of ``sizes``, so many workgroups, rows of whole fours."""
    if backend == "cpu":
        from tkern.lang.tiles_cpu import CpuTiles

        return CpuTiles()
    from tkern.lang.tiles_gpu import GpuTiles

    return GpuTiles(sizes, launched, fours)
