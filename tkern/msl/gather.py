"""Find every kernel at every compile-time configuration that Metal would use.

Nothing is listed by hand: the launches of every parity case and of every shape to time are prepared for Metal, with
arrays that have no memory (:mod:`tkern.hollow`), and their kernels are taken. A kernel is compiled once for each set of
words and for each form of its arrays, so a configuration is both.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tkern import hollow
from tkern.arrays import DTYPES
from tkern.launch import Group, Launch
from tkern.spec import Case, Inputs, Op, Shape

__all__ = ["Configured", "Unprepared", "gather"]

BACKEND = "metal"


@dataclass(frozen=True)
class Configured:
    """A kernel with arguments that stand for a configuration, and where it was met first.

    ``file`` and ``line`` are where its text begins; ``words`` says in what way it is compiled.
    """

    op: str
    used_by: str
    kernel: Any
    arguments: tuple[Any, ...]
    number: int
    words: str
    file: Path
    line: int

    @property
    def name(self) -> str:
        """Return the kernel's name as its author gave it."""
        return str(self.kernel.__name__)


@dataclass(frozen=True)
class Unprepared:
    """A case or shape whose launch could not be prepared for Metal, or not with such arrays, and why."""

    op: str
    used_by: str
    error: str


def gather(ops: Iterable[Op], *, roof: bool, once: bool = False) -> tuple[list[Configured], list[Unprepared]]:
    """Return the kernels of ``ops`` (and of the copy that ``tkern bench`` takes for a roof, if ``roof``).

    ``once`` takes one configuration of each, the last one met, and leaves out the shapes that are large to make.
    Taichi must be imported: types are its own.
    """
    found: dict[tuple[Any, ...], Configured] = {}
    numbers: dict[tuple[str, str], int] = {}
    uses = [(op.name, *use) for op in ops for use in _uses(op, ("quick",) if once else ("quick", "standard"))]
    if roof:
        uses.append(("copy", "the roof of tkern bench", _copy))
    with hollow.only():
        tried = [_try(op, used_by, prepare, found, numbers) for op, used_by, prepare in uses]
    failed = [one for one in tried if one is not None]
    kernels = list(found.values())
    if once:
        kernels = list({(one.op, one.name): one for one in kernels}.values())
    return kernels, failed


def _uses(op: Op, shapes: tuple[str, ...]) -> Iterator[tuple[str, Callable[[], Launch]]]:
    """Yield what is run of an op on Metal: NumPy's arrays in a parity case, device arrays where it is timed."""
    for case in op.cases:
        if case.runs_on(BACKEND):
            yield f"case {case.name}", partial(_prepare_case, op, case)
    for which in shapes:
        for shape in op.shapes(which):
            yield f"{which} shape {shape.name}", partial(_prepare_shape, op, shape)


def _prepare_case(op: Op, case: Case) -> Launch:
    launch: Launch = op.prepare(**case.inputs(), backend=BACKEND)
    return launch


def _prepare_shape(op: Op, shape: Shape) -> Launch:
    # Which numbers they are makes no difference.
    inputs = _on_device(op.make(np.random.default_rng(0), shape.dims))
    launch: Launch = op.prepare(**inputs, backend=BACKEND)
    return launch


def _on_device(inputs: Inputs) -> Inputs:
    ti = sys.modules["taichi"]

    def move(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return hollow.array(getattr(ti, DTYPES[value.dtype.name]), value.shape)

    return {name: move(value) for name, value in inputs.items()}


def _copy() -> Launch:
    from tkern import bench, roof

    return roof.copy_launch(BACKEND, roof.rows_of(bench.ROOF_SIZES[BACKEND]))


def _try(
    op: str,
    used_by: str,
    prepare: Callable[[], Launch],
    found: dict[tuple[Any, ...], Configured],
    numbers: dict[tuple[str, str], int],
) -> Unprepared | None:
    """Take the kernels of one launch, or return why that cannot be."""
    try:
        _take(prepare(), op, used_by, found, numbers)
    except Exception as error:
        return Unprepared(op, used_by, f"{type(error).__name__}: {error}")
    return None


def _take(
    launch: Launch,
    op: str,
    used_by: str,
    found: dict[tuple[Any, ...], Configured],
    numbers: dict[tuple[str, str], int],
) -> None:
    for kernel, arguments in launch.steps:
        given = tuple(value.kind(**value.values) if isinstance(value, Group) else value for value in arguments)
        key = (kernel, kernel._primal.mapper.lookup(given)[0])
        if key in found:
            continue
        numbers[op, kernel.__name__] = number = numbers.get((op, kernel.__name__), 0) + 1
        function = kernel._primal.func
        found[key] = Configured(
            op=op,
            used_by=used_by,
            kernel=kernel,
            arguments=given,
            number=number,
            words=_words_of(function, arguments),
            file=Path(inspect.getsourcefile(function) or "?"),
            line=function.__code__.co_firstlineno,
        )


def _words_of(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """Say what a kernel is compiled with: what its text takes from around it, and how many axes its arrays have."""
    parts = []
    for name, held in inspect.getclosurevars(function).nonlocals.items():
        text = _plain(held)
        if text:
            parts.append(f"{name}={text}" if isinstance(held, (bool, int, float, str)) else text)
    axes = [len(value.shape) for value in arguments if hasattr(value, "shape")]
    if any(n != 1 for n in axes):
        parts.append("axes " + "·".join(str(n) for n in axes))
    return ", ".join(parts)


def _plain(held: Any) -> str:
    """Return the numbers and names in ``held`` as a short text, nothing of what has no such text."""
    if hasattr(held, "key"):
        return _key(held)
    if isinstance(held, bool):
        return "yes" if held else "no"
    if isinstance(held, (int, float, str)):
        return str(held)
    if held is None:
        return "-"
    if isinstance(held, (tuple, list)):
        return " ".join(text for text in map(_plain, held) if text)
    if dataclasses.is_dataclass(held) and not isinstance(held, type):
        if "__str__" in vars(type(held)):
            return str(held)
        named = [(f.name, getattr(held, f.name)) for f in dataclasses.fields(held) if f.compare]
        return " ".join(f"{name}={_plain(value)}" for name, value in named)
    kept = {name: value for name, value in getattr(held, "__dict__", {}).items() if not name.startswith("_")}
    if kept and all(isinstance(value, (bool, int, float, str)) for value in kept.values()):
        return " ".join(f"{name}={_plain(value)}" for name, value in kept.items())
    return ""


def _key(words: Any) -> str:
    """Return the key of words, its parts by the names that their class takes them under where those are as many."""
    name, *parts = words.key
    names = list(inspect.signature(type(words).__init__).parameters)[1:]
    if len(names) != len(parts):
        return _plain(words.key)
    return " ".join([str(name), *(f"{name}={_plain(part)}" for name, part in zip(names, parts, strict=True))])
