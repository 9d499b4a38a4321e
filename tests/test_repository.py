"""Rules of the house that a reader can rely on, checked by reading the sources."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tkern

_ROOT = Path(__file__).parent.parent
_PACKAGE = _ROOT / "tkern"
_SOURCES = sorted(_PACKAGE.rglob("*.py"))
_KERNELS = [path for path in _SOURCES if path.name == "kernel.py"]


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _loaded_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_importing_tkern_starts_nothing() -> None:
    loaded = _loaded_after("import tkern")
    assert not loaded & {"taichi", "numpy", "matplotlib", "torch", "rich"}


def test_the_oracle_needs_no_taichi() -> None:
    loaded = _loaded_after("import numpy as np, tkern; tkern.oracle.rms_norm(np.ones((2, 3)))")
    assert "taichi" not in loaded


def test_a_call_imports_no_torch() -> None:
    """Every op is called without torch at hand by the parity tests; here is what they do not call."""
    loaded = _loaded_after(
        "import numpy as np, tkern; x = np.ones((1, 1, 4, 4), np.float32); y, i = tkern.max_pool2d(x, 2); "
        "flat = tkern.max_pool2d_indices_to_flat(i, x.shape, 2); "
        "tkern.max_pool2d_indices_from_flat(flat, x.shape, 2); tkern.use('cpu')"
    )
    assert "taichi" in loaded
    assert not loaded & {"torch", "matplotlib", "rich.progress"}


def _imports_of_torch(tree: ast.AST) -> list[ast.AST]:
    """Return what imports torch, in words of the language or by name."""
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [] if node.level else [node.module or ""]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        else:
            continue
        if any(name.partition(".")[0] == "torch" or name.startswith("tkern.torch") for name in names):
            found.append(node)
    return found


def test_only_tkern_torch_imports_torch() -> None:
    """Beside it, what is timed beside torch: the benchmark's modules, inside of functions that only it calls."""
    outside = [path for path in _SOURCES if _PACKAGE / "torch" not in path.parents]
    assert len(outside) < len(_SOURCES)
    timed = {_PACKAGE / "bench.py", _PACKAGE / "roof.py", *_PACKAGE.glob("ops/*/peers.py")}
    for path in outside:
        tree = _tree(path)
        imports = _imports_of_torch(tree)
        assert not imports or path in timed, f"{path} imports torch"
        inside = {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            for node in _imports_of_torch(function)
        }
        assert all(id(node) in inside for node in imports), f"{path} imports torch as it is imported itself"
    assert all(_imports_of_torch(_tree(path)) for path in _PACKAGE.glob("torch/m*.py"))


def test_an_attempt_to_import_torch_is_noted(no_torch: list[str]) -> None:
    assert "torch" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="torch is out of reach"):
        import torch.nn  # noqa: F401
    assert no_torch == ["torch"]
    no_torch.clear()


def test_every_op_is_public_with_an_oracle() -> None:
    from tkern import registry

    for name, op in registry.all_ops().items():
        assert getattr(tkern, name) is op.run
        assert getattr(tkern.oracle, name) is op.oracle
        assert name in tkern.__all__
        assert name in dir(tkern.oracle)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'softmax'"):
        tkern.softmax  # noqa: B018
    with pytest.raises(AttributeError, match="it has attention, attention_backward, "):
        tkern.oracle.softmax  # noqa: B018


@pytest.mark.parametrize("path", [p for p in _SOURCES if "lang" in p.parts or p.name == "kernel.py"], ids=str)
def test_kernel_modules_keep_their_annotations(path: Path) -> None:
    """Taichi reads annotations as objects; as texts they break every kernel of the module."""
    imports = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.ImportFrom)]
    assert not any(node.module == "__future__" for node in imports)


@pytest.mark.parametrize("path", _KERNELS, ids=str)
def test_a_kernel_does_not_ask_where_it_runs(path: Path) -> None:
    words = {"cpu", "metal", "vulkan", "cuda", "arch"}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.value not in words
        if isinstance(node, (ast.Name, ast.Attribute)):
            assert (node.id if isinstance(node, ast.Name) else node.attr) not in words
        if isinstance(node, (ast.If, ast.IfExp)):
            assert "ti.static" not in ast.unparse(node.test), "compile-time branches belong into tkern/lang"


def test_only_the_runtime_starts_taichi() -> None:
    for path in _SOURCES:
        if path != _PACKAGE / "runtime.py":
            for node in ast.walk(_tree(path)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    assert ast.unparse(node.func) not in ("ti.init", "ti.reset", "taichi.init"), path


def test_ops_have_their_four_files() -> None:
    folders = [path for path in (_PACKAGE / "ops").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert folders
    for folder in folders:
        assert {"__init__.py", "kernel.py", "oracle.py", "cases.py"} <= {path.name for path in folder.iterdir()}


def test_oracle_and_kernel_share_no_code() -> None:
    for path in _KERNELS:
        for node in ast.walk(_tree(path.with_name("oracle.py"))):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("tkern"), path
            if isinstance(node, ast.Import):
                assert all(name.name != "taichi" for name in node.names)


def test_public_functions_are_documented() -> None:
    from tkern import registry

    for op in registry.all_ops().values():
        text = op.run.__doc__ or ""
        for word in ("Parameters:", "Returns:", "Raises:", "Source:", "float32"):
            assert word in text, f"{op.name} does not say {word}"


def test_no_file_is_too_long() -> None:
    for path in _SOURCES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path


def test_the_readme_shows_a_picture_that_is_there() -> None:
    text = (_ROOT / "README.md").read_text(encoding="utf-8")
    pictures = [part.split(")")[0] for part in text.split("](")[1:] if part.split(")")[0].endswith((".png", ".svg"))]
    assert pictures
    for picture in pictures:
        assert (_ROOT / picture).is_file(), picture
    assert "make demo" in text
    assert "make test" in text


def test_the_readme_shows_the_kernel_as_it_is() -> None:
    text = (_ROOT / "README.md").read_text(encoding="utf-8")
    shown = text.split("```python\nti.loop_config", 1)[1].split("```", 1)[0]
    shown = "ti.loop_config" + shown
    source = (_PACKAGE / "ops" / "rms_norm" / "kernel.py").read_text(encoding="utf-8")
    body = source.split("def rms_norm_backward(", 1)[1].split("):\n", 1)[1].split("\n\n    return", 1)[0]
    assert [line.strip() for line in shown.strip().splitlines()] == [line.strip() for line in body.strip().splitlines()]
