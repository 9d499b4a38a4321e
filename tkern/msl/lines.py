"""Which line of the author's Python file a finding comes from, where that can be known.

SPIR-V and MSL carry no lines of Python, but Taichi's own intermediate text does. A kernel with a finding is compiled
once more with that text printed, and searched for what broke the rule.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tkern.msl.gather import Configured

__all__ = ["Place", "places_of"]

Place = tuple[str, int]  # a file and a line

# What stands for a breach of each rule in Taichi's text: a statement, its type before it.
_STATEMENTS = {
    "float atomics": r"<[*]?f(16|32|64)> \$\d+ = atomic ",
    "device barrier": r"<[iu]\d+> \$\d+ = atomic |internal call \w*[mM]emory\w*Barrier",
    "64-bit floats": r"<[^>]*f64[^>]*> \$\d+",
    "infinities": r"= const -?(inf|nan)|\bisnan\b|\bisinf\b",
    "valid SPIR-V": r"<u1> \$\d+ = bit_(and|or|xor) ",
}
# What names it in the kernel's own text, for what Taichi's text has no line of.
_WORDS = {"threadgroup memory": "SharedArray", "threads": "block_dim"}
_AT = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in ')
_MOST_LINES = 8


def places_of(configured: Configured, rules: set[str]) -> dict[str, list[Place]]:
    """Return for each of the ``rules`` where in the author's file it is broken; nothing where that is not known."""
    found: dict[str, list[Place]] = {}
    rules = rules - {"compiles"}
    wanted = {rule: re.compile(_STATEMENTS[rule]) for rule in rules if rule in _STATEMENTS}
    if wanted:
        lines = _intermediate_text(configured).splitlines()
        for rule, pattern in wanted.items():
            places = _places(lines, pattern)
            if places:
                found[rule] = places
    for rule in rules & _WORDS.keys():
        place = _named(configured, _WORDS[rule])
        if place is not None:
            found[rule] = [place]
    return found


def _places(lines: list[str], pattern: re.Pattern[str]) -> list[Place]:
    places: list[Place] = []
    for number, line in enumerate(lines):
        if not pattern.search(line):
            continue
        # The line below says where: in the innermost function that was called.
        at = _AT.match(lines[number + 1]) if number + 1 < len(lines) else None
        if at and (at["file"], int(at["line"])) not in places:
            places.append((at["file"], int(at["line"])))
    return places[:_MOST_LINES]


def _named(configured: Configured, word: str) -> Place | None:
    source, first = inspect.getsourcelines(configured.kernel._primal.func)
    for offset, line in enumerate(source):
        if word in line:
            return str(configured.file), first + offset
    return None


def _intermediate_text(configured: Configured) -> str:
    """Return what Taichi prints of a kernel while it compiles it, which may end in an error that is known already."""
    ti: Any = sys.modules["taichi"]
    runtime = ti.lang.impl.get_runtime()
    config = runtime.prog.config()
    primal = configured.kernel._primal
    before = config.print_ir, config.print_ir_dbg_info
    with _printed() as file:
        try:
            config.print_ir = config.print_ir_dbg_info = True
            # Another one of the same text: Taichi does not compile one that it has compiled.
            key = primal.ensure_compiled(*configured.arguments)
            del primal.compiled_kernels[key]
            kernel = primal.compiled_kernels[primal.ensure_compiled(*configured.arguments)]
            with contextlib.suppress(RuntimeError):
                runtime.prog.compile_kernel(config, runtime.prog.get_device_caps(), kernel)
        finally:
            config.print_ir, config.print_ir_dbg_info = before
    text = file.read_text(encoding="utf-8", errors="replace")
    file.unlink()
    return text


@contextlib.contextmanager
def _printed() -> Iterator[Path]:
    """Send what this process prints, from C++ too, into a file that can be read afterwards."""
    sys.stdout.flush()
    kept = os.dup(1)
    handle, name = tempfile.mkstemp(prefix="tkern-")
    try:
        os.dup2(handle, 1)
        yield Path(name)
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(handle)
