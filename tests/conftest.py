"""Which backends the tests run on, and the check that every op was really tried on each of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tkern import registry, runtime

# (op, backend) pairs that a parity test has really run, in this process.
_ran: set[tuple[str, str]] = set()
# The same from the other processes of a parallel run.
_gathered: set[tuple[str, str]] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require", default="", help="backends that must be there, by comma: a missing one fails")


def required(config: pytest.Config) -> set[str]:
    return {name for name in config.getoption("--require").split(",") if name}


def pytest_report_header(config: pytest.Config) -> list[str]:
    import taichi

    lines = [f"taichi {taichi.__version__}, numpy {np.__version__}, required: {sorted(required(config)) or 'nothing'}"]
    return lines + [f"{b.name}: {b.device if b.available else f'missing: {b.why_not}'}" for b in runtime.backends()]


@pytest.fixture(params=runtime.NAMES)
def backend(request: pytest.FixtureRequest) -> str:
    """Run the test on each backend in turn: skipped with the reason where it is missing, failed where required."""
    name = request.param
    found = next(b for b in runtime.backends() if b.name == name)
    if not found.available:
        if name in required(request.config):
            pytest.fail(f"{name} is required and missing: {found.why_not}")
        pytest.skip(f"{name}: {found.why_not}")
    # Left on, not switched back: tests of one backend stand together (below), and starting one takes a while.
    runtime.use(name)
    return name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of one backend together, so that each is started once; and spread them over the processes so."""

    def place(item: pytest.Item) -> int:
        name = getattr(item, "callspec", None) and item.callspec.params.get("backend")  # type: ignore[attr-defined]
        return runtime.NAMES.index(name) if name in runtime.NAMES else -1

    items.sort(key=place)


def why_no_mps(torch: Any) -> str:
    """Say why torch has no use of an Apple GPU here; nothing where it has."""
    if not torch.backends.mps.is_available():
        return "torch sees no Apple GPU here (torch.backends.mps.is_available())"
    try:
        torch.ones(4, device="mps").cpu()
    except RuntimeError as error:  # a virtual machine's GPU may have no memory for it
        return f"torch cannot use the GPU that it sees: {error}"
    return ""


class _Absent:
    """A finder that finds no torch, and notes that it was looked for."""

    def __init__(self, attempts: list[str]) -> None:
        self._attempts = attempts

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "torch":
            self._attempts.append(name)
            raise ModuleNotFoundError("torch is out of reach of this test", name="torch")


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Run the test as if torch had never been imported, and fail it for any attempt to, also one that it catches."""
    attempts: list[str] = []
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Absent(attempts), *sys.meta_path])
    yield attempts
    assert not attempts


@pytest.fixture
def ran() -> set[tuple[str, str]]:
    """Return the set in which a parity test notes what it has run."""
    return _ran


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261201)


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["ran"] = sorted(_ran)
        return
    if not _is_whole_run(config) or session.testsfailed:
        return
    available = {b.name for b in runtime.backends() if b.available} | required(config)
    expected = {(op, name) for op in registry.all_ops() for name in available}
    missing = expected - _ran - _gathered
    if missing:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"no parity test ran for {sorted(missing)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    _gathered.update((op, name) for op, name in getattr(node, "workeroutput", {}).get("ran", ()))


def _is_whole_run(config: pytest.Config) -> bool:
    chosen = config.getoption("keyword") or config.getoption("markexpr") or config.getoption("lf", default=False)
    return not chosen and not config.getoption("collectonly") and set(config.args) == set(config.getini("testpaths"))
