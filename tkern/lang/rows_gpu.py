"""The words of :mod:`tkern.lang.rows` on a GPU (Metal, Vulkan, CUDA): a program is a workgroup of ``lanes`` threads.

``per_row`` neighbouring lanes share a row, so a program works on ``lanes / per_row`` rows at once. A lane owns every
``per_row``-th column. Where the row is short enough (``resident``), a lane keeps its columns of every array it reads
in registers; a longer row is read again, from the cache.

The lane is the low bits of the loop's index, which holds on every backend as long as the range is a multiple of
``lanes``; every barrier stands where all lanes of the workgroup pass.
"""

import taichi as ti
from taichi.lang import impl

from tkern.lang.macros import builder, handle, macro, value, variable
from tkern.lang.safe import LOWEST


@macro
def element(a, at):
    """Return float ``at`` of an array of any rank: its last index may run past its axis, nothing checks it there."""
    axes = len(a.shape)
    return impl.subscript(builder(), a, *(0,) * (axes - 1), at)


@macro
def put(a, at, v):
    """Write float ``at`` of an array of any rank."""
    element(a, at)._assign(v)


@handle
class GpuRows:
    """Words for workgroups. All sizes are powers of two but ``held``, the columns of a lane in one unrolled step."""

    Array = ti.types.ndarray(dtype=ti.f32)
    Integers = ti.types.ndarray(dtype=ti.i32)
    parts = 1

    def __init__(self, lanes: int, per_row: int, held: int, resident: bool, programs: int):
        self.lanes = lanes
        self.per_row = per_row
        self.steps_unrolled = held
        self.resident = resident
        self.programs = programs
        self.groups = lanes // per_row
        self.lane_bits = lanes.bit_length() - 1
        self.row_bits = per_row.bit_length() - 1
        self.key = ("gpu", lanes, per_row, held, resident, programs)

    @macro
    def threads(self, programs):
        return self.programs * self.lanes

    @macro
    def total(self):
        return _Total()

    @macro
    def largest(self):
        return _Largest()

    @macro
    def exp(self, x):
        return ti.exp(x)

    @macro
    def zero(self):
        return 0.0

    @macro
    def program(self, i, programs):
        return _Program(self, i, programs)


@handle
class _Program:
    def __init__(self, rows, i, programs):
        self.rows = rows
        self.programs = programs
        self.id = value(i >> rows.lane_bits)
        self.lane = value(i & (rows.lanes - 1))
        self.group = value(self.lane >> rows.row_bits)
        self.place = value(self.lane & (rows.per_row - 1))
        self.sums = []
        # Two arrays in one, for sums of two values that share their barriers.
        self.scratch = ti.simt.block.SharedArray((2 * rows.lanes,), ti.f32)

    @ti.func
    def steps(self, rows):
        at_once = self.programs * self.rows.groups
        return ti.select(self.id < self.programs, (rows + (at_once - 1)) // at_once, 0)

    @macro
    def row(self, step, rows, cols):
        for sums in self.sums:
            sums.set_aside(step)
        return _Row(self, value((step * self.programs + self.id) * self.rows.groups + self.group), rows, cols)

    @macro
    def shared_row(self, a, cols):
        return _line(self, a, 0, cols)

    @macro
    def column_sums(self, partial, cols):
        sums = _ColumnSums(self, partial, cols)
        self.sums.append(sums)
        return sums


@handle
class _Column:
    """Column ``index`` of a row, the lane's k-th of this step; ``inside`` where the row has such a column."""

    def __init__(self, index, k, inside):
        self.index = index
        self.k = k
        self.inside = inside


@handle
class _Total:
    """A sum along a row, this lane's part."""

    def __init__(self):
        self.value = variable(0.0)

    @ti.func
    def add(self, column, v):
        self.value += v


@handle
class _Largest:
    """The largest of a row so far, of this lane's columns."""

    def __init__(self):
        self.value = variable(LOWEST)

    @ti.func
    def add(self, column, v):
        self.value = ti.select(v > self.value, v, self.value)


@macro
def _index(program, b, k):
    rows = program.rows
    return value((b * rows.steps_unrolled + k) * rows.per_row + program.place)


@handle
class _Row:
    def __init__(self, program, index, rows, cols):
        self.program = program
        self.index = index
        self.inside = value(index < rows)
        # A row past the end has no columns, and starts where reading is safe.
        self.cols = value(ti.select(self.inside, cols, 0))
        self.start = value(ti.select(self.inside, index * cols, 0))
        step = program.rows.steps_unrolled * program.rows.per_row
        # The same for every lane, whatever its row: barriers may stand in a loop over the steps.
        self.steps = 1 if program.rows.resident else value((cols + (step - 1)) // step)

    @macro
    def begin(self, part):
        return 0

    @macro
    def end(self, part):
        return self.steps

    @macro
    def column(self, b, k, part=None):
        index = _index(self.program, b, k)
        return _Column(index, k, value(index < self.cols))

    @macro
    def read(self, a):
        return _line(self.program, a, self.start, self.cols)

    @ti.func
    def store(self, a: ti.template(), column, v):
        if column.inside:
            put(a, self.start + column.index, v)

    @ti.func
    def sum(self, total):
        a, _ = tree_sums(self.program, total.value, 0.0, False)
        return a

    @ti.func
    def sum2(self, one, other):
        return tree_sums(self.program, one.value, other.value, True)

    @ti.func
    def max(self, largest):
        return tree_max(self.program, largest.value)

    @ti.func
    def only(self, column, v, otherwise):
        return ti.select(column.inside, v, otherwise)

    @ti.func
    def add_at(self, a: ti.template(), index, v):
        # By the lane that wrote the element, which sees what it wrote without a barrier.
        if self.inside and self.program.place == (index & (self.program.rows.per_row - 1)):
            put(a, self.start + index, element(a, self.start + index) + v)

    @ti.func
    def load_scalar(self, a: ti.template()):
        return element(a, ti.select(self.inside, self.index, 0))

    @ti.func
    def store_scalar(self, a: ti.template(), v):
        if self.inside and self.program.place == 0:
            put(a, self.index, v)


@ti.func
def tree_sums(program: ti.template(), u, v, both: ti.template()):
    """Return, to every lane of a row, the sums of ``u`` (and ``v``) over the row's lanes, as halving trees."""
    lanes = ti.static(program.rows.lanes)
    shared = program.scratch
    lane, place = program.lane, program.place
    a, b = u, v
    if ti.static(program.rows.per_row > 1):
        shared[lane] = u
        if ti.static(both):
            shared[lanes + lane] = v
        ti.simt.block.sync()
        for bit in ti.static(range(program.rows.row_bits - 1, -1, -1)):
            if place < (1 << bit):
                # Not +=, which would be an atomic, and a broken one in SPIR-V.
                shared[lane] = shared[lane] + shared[lane + (1 << bit)]
                if ti.static(both):
                    shared[lanes + lane] = shared[lanes + lane] + shared[lanes + lane + (1 << bit)]
            ti.simt.block.sync()
        a = shared[lane - place]
        if ti.static(both):
            b = shared[lanes + lane - place]
        # The next sum writes the same places.
        ti.simt.block.sync()
    return a, b


@ti.func
def tree_max(program: ti.template(), u):
    """Return, to every lane of a row, the largest ``u`` of the row's lanes; a NaN is passed over."""
    shared = program.scratch
    lane, place = program.lane, program.place
    a = u
    if ti.static(program.rows.per_row > 1):
        shared[lane] = u
        ti.simt.block.sync()
        for bit in ti.static(range(program.rows.row_bits - 1, -1, -1)):
            if place < (1 << bit):
                other = shared[lane + (1 << bit)]
                shared[lane] = ti.select(other > shared[lane], other, shared[lane])
            ti.simt.block.sync()
        a = shared[lane - place]
        # The next tree writes the same places.
        ti.simt.block.sync()
    return a


@handle
class _Line:
    """``cols`` floats of ``a`` from ``start`` on; ``held`` are this lane's, where the row fits into registers."""

    def __init__(self, a, start, cols, held):
        self.a = a
        self.start = start
        self.cols = cols
        self.held = held
        self.resident = held is not None

    @ti.func
    def at(self, column):
        v = ti.cast(0.0, ti.f32)
        if ti.static(self.resident):
            v = self.held[column.k]
        else:
            v = _load(self.a, self.start, self.cols, column.index)
        return v


@macro
def _line(program, a, start, cols):
    held = None
    if program.rows.resident:
        held = _hold(program, a, start, cols)
    return _Line(a, start, cols, held)


@ti.func
def _hold(program: ti.template(), a: ti.template(), start, cols):
    held = ti.Vector([0.0 for _ in range(program.rows.steps_unrolled)], dt=ti.f32)
    for k in ti.static(range(program.rows.steps_unrolled)):
        held[k] = _load(a, start, cols, _index(program, 0, k))
    return held


@ti.func
def _load(a: ti.template(), start, cols, index):
    """Return float ``index`` of a line, 0 past its end. The load itself is never conditional, so many are in flight."""
    return ti.select(index < cols, element(a, start + ti.max(ti.min(index, cols - 1), 0)), 0.0)


@handle
class _ColumnSums:
    """Sums over the program's rows: in registers where the row is resident, else in its private row of ``partial``."""

    def __init__(self, program, partial, cols):
        self.program = program
        self.partial = partial
        self.cols = cols
        self.start = value(program.id * cols)
        self.resident = program.rows.resident
        if program.rows.resident:
            self.early = variable(_zeros(program.rows.steps_unrolled))
            self.late = variable(_zeros(program.rows.steps_unrolled))
        else:
            self.clear()

    @ti.func
    def clear(self):
        step = ti.static(self.program.rows.lanes)
        for b in range((self.cols + (step - 1)) // step):
            c = b * step + self.program.lane
            if c < self.cols:
                self.partial[self.start + c] = 0.0

    @ti.func
    def set_aside(self, step):
        """Every 64 rows add what was summed to what was before: rounding grows with the length of a chain."""
        if ti.static(self.resident):
            if step & 63 == 0:
                for k in ti.static(range(self.program.rows.steps_unrolled)):
                    self.early[k] = self.early[k] + self.late[k]
                    self.late[k] = 0.0

    @ti.func
    def add(self, column, v):
        # What stands past the end of the rows or of a row need not be 0: it may have been divided by 0.
        if ti.static(self.resident):
            self.late[column.k] = self.late[column.k] + ti.select(column.inside, v, 0.0)
        else:
            # A row longer than all registers has every lane to itself, so this lane owns the column.
            if column.inside:
                at = self.start + column.index
                self.partial[at] = self.partial[at] + v

    @ti.func
    def finish(self):
        """Write the sums of the program's groups of lanes, summed as a halving tree, to its private row."""
        if ti.static(self.resident):
            shared = self.program.scratch
            lane, group = self.program.lane, self.program.group
            for k in ti.static(range(self.program.rows.steps_unrolled)):
                total = self.early[k] + self.late[k]
                if ti.static(self.program.rows.groups > 1):
                    shared[lane] = total
                    ti.simt.block.sync()
                    for bit in ti.static(range(self.program.rows.lane_bits - self.program.rows.row_bits - 1, -1, -1)):
                        if group < (1 << bit):
                            shared[lane] = shared[lane] + shared[lane + (self.program.rows.per_row << bit)]
                        ti.simt.block.sync()
                    total = shared[lane]
                    ti.simt.block.sync()
                c = _index(self.program, 0, k)
                if group == 0 and c < self.cols:
                    self.partial[self.start + c] = total


@ti.func
def _zeros(n: ti.template()):
    return ti.Vector([0.0 for _ in range(n)], dt=ti.f32)
