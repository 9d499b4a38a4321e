"""Finds every op by its place: ``tkern/ops/<folder>/cases.py``, and a user's own module."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path

import tkern.ops
from tkern.errors import OptionError, TkernError
from tkern.spec import Op

__all__ = ["all_ops", "load_file", "select"]


def all_ops(files: Iterable[str] = ()) -> dict[str, Op]:
    """Return every op by its name: the built-in ones, then those of ``files``.

    A folder without OPS, an op named twice, or no op at all is an error, not a smaller registry.
    """
    found: dict[str, Op] = {}
    for folder in sorted(pkgutil.iter_modules(tkern.ops.__path__), key=lambda m: m.name):
        module = importlib.import_module(f"tkern.ops.{folder.name}.cases")
        _add(found, getattr(module, "OPS", None), f"tkern/ops/{folder.name}/cases.py")
    for file in files:
        _add(found, load_file(file), file)
    if not found:
        raise TkernError("no op was found under tkern/ops: the installation is broken")
    return found


def load_file(file: str) -> tuple[Op, ...]:
    """Return the ops that a user's Python file declares in ``OPS``. The file is executed."""
    path = Path(file).resolve()
    if not path.is_file():
        raise OptionError(argument="--kernels", expected="a Python file", got=str(file))
    name = f"tkern_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise OptionError(argument="--kernels", expected="a Python file (.py)", got=str(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        what = f"{file}, which raises {type(error).__name__}: {error}"
        raise OptionError(argument="--kernels", expected="a Python file that can be imported", got=what) from error
    ops = getattr(module, "OPS", None)
    if not isinstance(ops, (tuple, list)):
        what = f"{file} without it" if ops is None else f"{file} with OPS of {type(ops).__name__}"
        raise OptionError(argument="--kernels", expected="a module with OPS = (tkern.spec.Op(...),)", got=what)
    return tuple(ops)


def select(ops: dict[str, Op], names: Iterable[str]) -> list[Op]:
    """Return the named ops, or all where none is named; raise OptionError for a name that is not there."""
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in ops:
            raise OptionError(argument="OP", expected="one of " + ", ".join(ops), got=repr(name))
    return [ops[name] for name in names] if names else list(ops.values())


def _add(found: dict[str, Op], ops: tuple[Op, ...] | None, where: str) -> None:
    if not ops or not all(isinstance(op, Op) for op in ops):
        raise TkernError(f"{where} must define OPS, a tuple of tkern.spec.Op with at least one entry")
    for op in ops:
        if op.name in found:
            raise TkernError(f"{where} names an op {op.name!r} that exists already")
        found[op.name] = op
