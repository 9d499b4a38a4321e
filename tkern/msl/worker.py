"""A process of its own that makes and checks the MSL of a share of the kernels: Taichi may end it.

It is given a request as JSON and writes an answer a line into a file: what it begins, and what it found out. Should a
kernel end it, the one that asked knows which, and starts another one for those that are left.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tkern import registry, runtime
from tkern.msl import tools
from tkern.msl.emit import emit
from tkern.msl.estimate import estimate
from tkern.msl.gather import Configured, gather
from tkern.msl.lines import Place, places_of
from tkern.msl.rules import Finding, check

__all__ = ["BEGUN", "main"]

BEGUN = "== a kernel begins"


def main(request: dict[str, Any]) -> None:
    """Answer a request: ``ops`` and ``files`` to look at, ``share`` [k, n], numbers to ``skip``, ``out``, ``answers``.

    ``once`` is for :func:`tkern.msl.gather.gather`.
    """
    ops = registry.select(registry.all_ops(request["files"]), request["ops"])
    with Path(request["answers"]).open("a", encoding="utf-8") as file, runtime.compiling("vulkan", options_of="metal"):

        def answer(**what: Any) -> None:
            file.write(json.dumps(what) + "\n")
            file.flush()

        kernels, failed = gather(ops, roof=not request["ops"], once=request["once"])
        share, shares = request["share"]
        mine = [n for n in range(len(kernels)) if n % shares == share]
        if not request["skip"]:  # the first process with this share
            answer(total=len(mine))
            for one in failed if share == 0 else []:
                answer(unprepared=asdict(one))
        for number in mine:
            if number not in request["skip"]:
                print(BEGUN, flush=True)  # what Taichi says of it comes after
                answer(begin=number, **_named(kernels[number]))
                answer(done=number, **_named(kernels[number]), **_look_at(kernels[number], Path(request["out"])))


def _named(configured: Configured) -> dict[str, Any]:
    return {
        "op": configured.op,
        "kernel": configured.name,
        "number": configured.number,
        "words": configured.words,
        "used_by": configured.used_by,
        "place": [str(configured.file), configured.line],
    }


def _look_at(configured: Configured, out: Path) -> dict[str, Any]:
    """Return the findings and estimates of one kernel, each launch of which is a file of its own."""
    stem = f"{configured.name}-{configured.number}"
    folder = out / configured.op / f".{stem}"
    findings: list[tuple[Finding, str]] = []
    places: dict[str, list[Place]] = {}
    launches = []
    try:
        made = emit(configured, folder)
    except Exception as error:
        text = str(error).strip()
        rule = "64-bit floats" if "f64 not supported" in text else "compiles"
        findings.append((Finding(rule, " ".join(text.split()) or type(error).__name__), ""))
        said = re.search(r'File "(.+)", line (\d+), in ', text)
        places = {rule: [(said[1], int(said[2]))]} if said else {}
        made = []
    for k, spirv in enumerate(made):
        target = spirv.rename(folder.parent / (stem + (f"-{k}" if len(made) > 1 else "") + ".spv"))
        objection = tools.validate(target)
        if objection is not None:
            findings.append((Finding("valid SPIR-V", objection), target.name))
        msl, problem = tools.to_msl(target)
        if msl is None:
            findings.append((Finding("translates", problem), target.name))
            continue
        text_file = target.with_suffix(".metal")
        text_file.write_text(msl, encoding="utf-8")
        findings += [(one, text_file.name) for one in check(msl)]
        guess = estimate(msl)
        more = {"resident": guess.resident, "spills": guess.spills, "fits": guess.fits}
        launches.append({"msl": text_file.name, **asdict(guess), **more})
    shutil.rmtree(folder, ignore_errors=True)
    return {"launches": launches, "findings": list(_placed(configured, findings, places))}


def _placed(
    configured: Configured, findings: list[tuple[Finding, str]], places: dict[str, list[Place]]
) -> Iterable[dict[str, Any]]:
    """Add to findings where the author wrote what they are about, if that can be known or is known already."""
    # Of what spirv-val says, one thing has a known place: an operation on the bits of conditions.
    known = [one for one, _ in findings if one.rule != "valid SPIR-V" or "Bitwise" in one.what]
    rules = {one.rule for one in known} - places.keys()
    places = {**places, **(places_of(configured, rules) if rules else {})}
    beginning: list[Place] = [(str(configured.file), configured.line)]
    seen = set()
    for one, file in findings:
        exact = one.rule in places
        for at in places.get(one.rule, beginning):
            key = (one.rule, one.what, at) if exact else (one.rule, one.what, file, one.line)
            if key not in seen:
                seen.add(key)
                yield {
                    "rule": one.rule,
                    "what": one.what,
                    "at": list(at),
                    "exact": exact,
                    "msl": file,
                    "line": one.line,
                }
