"""Errors in a kernel's text: the reader finds each planted fault and no twin, and Taichi's errors name the line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tkern import arrays, lint, registry, runtime
from tkern.cli import main
from tkern.errors import KernelError, OptionError
from tkern.lang import compiled
from tkern.launch import Launch

_HERE = Path(__file__).parent
_FAULTS = [_HERE / "lint_faults.py", _HERE / "lint_faults_gpu.py"]
_MARK = re.compile(r"# fault: (?P<rule>[\w-]+)")
_LATE = """from __future__ import annotations
import taichi as ti
def build(words):
    @ti.kernel
    def k(n: ti.types.ndarray(dtype=ti.f32, ndim=1)):
        for i in range(4):
            n[i] = 1.0
    return k
"""


def _marked(path: Path) -> set[tuple[int, str]]:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return {(number, said["rule"]) for number, line in lines if (said := _MARK.search(line))}


@pytest.mark.parametrize("path", _FAULTS, ids=lambda path: path.name)
def test_every_planted_fault_is_found_and_nothing_else(path: Path) -> None:
    assert {(one.line, one.rule) for one in lint.check_file(path)} == _marked(path)


def test_every_rule_has_a_planted_fault() -> None:
    planted = {rule for path in _FAULTS for _, rule in _marked(path)}
    planted |= {one.rule for one in lint.check_text(Path("late.py"), _LATE)}
    assert planted == set(lint.RULES) - {"allow"}


def test_a_finding_names_its_column_and_line() -> None:
    (one, *_) = [one for one in lint.check_file(_FAULTS[0]) if one.rule == "shape-range"]
    assert one.text[one.column - 1 :].startswith("y.shape[0] // 2")


def test_the_kernels_of_tkern_are_clean() -> None:
    files = lint.own_files()
    assert {"kernel.py", "rows_gpu.py"} <= {path.name for path in files}
    assert lint.check_files(files) == []


@pytest.mark.parametrize(
    ("comment", "what"),
    [
        ("# tkern: allow gpu-words", "gives no reason"),
        ("# tkern: allow gpu-word since it is mine", "names no rule: gpu-word"),
        ("# tkern: allow shape-range of a kind", "allows shape-range where there is none"),
    ],
)
def test_a_comment_that_allows_nothing_is_a_finding(comment: str, what: str) -> None:
    text = f"import taichi as ti\n\n\n@ti.func\ndef f():\n    ti.simt.block.sync()  {comment}\n"
    found = lint.check_text(Path("mine.py"), text)
    assert {(one.rule, one.line) for one in found} == {("allow", 6), ("gpu-words", 6)}
    assert [one.what for one in found if one.rule == "allow"] == [what]


def test_other_names_of_taichi_are_followed() -> None:
    text = "import taichi\nfrom taichi import func, atomic_add\n\n@func\ndef f(x):\n    taichi.simt.block.sync()\n"
    text += "    atomic_add(x, 1)\n"
    assert [(one.rule, one.line) for one in lint.check_text(Path("a.py"), text)] == [
        ("gpu-words", 6),
        ("atomic-add", 7),
    ]


def test_names_are_those_around_a_kernel_and_its_own_hide_them() -> None:
    text = (
        "import taichi as ti\n\ny = float('inf')\n\n\ndef build(y):\n    least = float('-inf')\n\n    @ti.func\n"
        "    def f(x):\n        return x + y\n\n    @ti.func\n    def g(x):\n        return ti.max(x, least)\n\n"
        "    @ti.func\n    def h(least):\n        return least\n"
    )
    assert [(one.rule, one.line) for one in lint.check_text(Path("a.py"), text)] == [("not-finite", 15)]


def test_annotations_that_are_texts_matter_where_there_are_some() -> None:
    text = "from __future__ import annotations\nimport taichi as ti\n\n\n@ti.func\ndef f(x):\n    return x\n"
    assert lint.check_text(Path("a.py"), text) == []
    assert [one.rule for one in lint.check_text(Path("a.py"), text.replace("f(x)", "f(x: ti.i32)"))] == [
        "late-annotations"
    ]


def test_the_command_prints_writes_and_exits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "findings.json"
    assert main(["lint", str(_FAULTS[1]), "--json", str(out)]) == 1
    said = capsys.readouterr().out
    for line, rule in _marked(_FAULTS[1]):
        assert f"lint_faults_gpu.py:{line}:" in said
        assert lint.RULES[rule].cure in said
    assert "ti.simt.block.sync()  # fault: divergent-barrier" in said
    assert {(one["line"], one["rule"]) for one in json.loads(out.read_text())} == _marked(_FAULTS[1])
    assert main(["lint"]) == 0
    assert "nothing found" in capsys.readouterr().out
    assert main(["lint", str(tmp_path / "none.py")]) == 2
    broken = tmp_path / "broken.py"
    broken.write_text("import taichi\ndef f(:\n")
    assert main(["lint", str(tmp_path)]) == 1
    assert "broken.py:2:" in capsys.readouterr().out


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a folder with Python files"):
        lint.check_files([tmp_path])
    with pytest.raises(OptionError, match="a Python file"):
        lint.check_files([tmp_path / "x.txt"])


@pytest.mark.parametrize("command", ["parity", "bench", "report"])
def test_a_file_with_findings_is_not_even_imported(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(_LATE + "raise RuntimeError('imported')\n")
    out = ["--out", str(tmp_path / "out")] if command != "parity" else []
    assert main([command, "--kernels", str(mine), "--backend", "cpu", *out]) == 1
    said = capsys.readouterr()
    assert "late-annotations" in said.out
    assert "imported" not in said.out + said.err


def _launch(kernel: object, *arguments: object) -> None:
    launch = Launch(())
    launch.add(kernel, *arguments)
    launch.run()


def _line(path: Path, text: str) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def _vectors() -> np.ndarray:
    return np.ones((4, 16), np.float32)


def test_what_would_end_the_process_is_refused_at_its_line() -> None:
    from tests import lint_faults

    with runtime.using("cpu"), pytest.raises(KernelError) as raised:
        _launch(lint_faults.vector_exp, _vectors(), _vectors())
    error = raised.value
    assert (error.file, error.rule, error.said) == (str(_FAULTS[0]), "vector-math", "")
    assert error.line == _line(_FAULTS[0], "store(y, i * WIDTH, ti.exp(v))")
    assert "ti.exp(v)" in error.text
    assert "t.exp(v)" in str(error)


def test_and_it_does_end_the_process() -> None:
    code = (
        "import numpy as np; from tkern import runtime; runtime.use('cpu'); from tests import lint_faults; "
        "lint_faults.vector_exp(np.ones((4, 16), np.float32), np.ones((4, 16), np.float32)); print('alive')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, cwd=_HERE.parent, env={**os.environ, "PYTHONPATH": str(_HERE.parent)},
    )  # fmt: skip
    assert done.returncode != 0
    assert "alive" not in done.stdout
    assert "Traceback" not in done.stderr
    assert "Not supported" in done.stdout + done.stderr


def test_what_taichi_refuses_is_told_at_the_authors_line() -> None:
    from tests import lint_faults

    with runtime.using("cpu"):
        with pytest.raises(KernelError, match="found \\[Tensor") as raised:
            _launch(lint_faults.vector_branch, _vectors(), _vectors())
        assert raised.value.rule == "vector-condition"
        assert raised.value.line == _line(_FAULTS[0], "if v > 0.5:")
        floats = arrays.workspace(64, "cpu").reshape(-1)
        with pytest.raises(KernelError, match="nothing_of_that_name") as raised:
            _launch(lint_faults.unknown_name, floats)
        assert raised.value.rule is None
        assert raised.value.line == _line(_FAULTS[0], "y[i] = nothing_of_that_name")
        assert raised.value.text.strip().startswith("y[i] = nothing_of_that_name")


def test_what_a_code_generator_refuses_is_told_at_the_line_that_was_read() -> None:
    if not runtime.backend("vulkan").available:
        pytest.skip("no Vulkan device")
    from tests import lint_faults, lint_faults_gpu

    with runtime.using("vulkan"):
        floats = arrays.workspace(64, "vulkan")
        with pytest.raises(KernelError, match="spirv_codegen") as raised:
            _launch(lint_faults.half_of_the_shape, floats)
        assert (raised.value.rule, raised.value.line) == (
            "shape-range",
            _line(_FAULTS[0], "for i in range(y.shape[0] // 2):"),
        )
        with pytest.raises(KernelError, match="at_buffer failed") as raised:
            _launch(lint_faults_gpu.shared_sum, floats)
        assert (raised.value.rule, raised.value.line) == ("shared-add", _line(_FAULTS[1], "+= 2.0"))


def test_a_kernel_that_is_refused_when_it_is_declared(tmp_path: Path) -> None:
    file = tmp_path / "late.py"
    file.write_text(_LATE + "OPS = ()\n")
    registry.load_file(str(file))
    build = sys.modules["tkern_user_late"].build
    words = type("Words", (), {"key": ("late",)})()
    with runtime.using("cpu"), pytest.raises(KernelError, match="Invalid type annotation") as raised:
        compiled(build, words)
    assert (raised.value.file, raised.value.line, raised.value.rule) == (str(file), 1, "late-annotations")
