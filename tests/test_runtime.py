"""Starting Taichi: no fallback, no abort, no noise, and nothing used after its backend is gone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tkern
from tkern import cache, runtime
from tkern.errors import BackendUnavailable, OptionError

_X = np.arange(12, dtype=np.float32).reshape(3, 4)


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_backends_say_what_is_missing_and_what_would_bring_it() -> None:
    found = tkern.backends()
    assert [b.name for b in found] == ["cpu", "metal", "vulkan", "cuda"]
    for backend in found:
        assert (backend.device is None) == (not backend.available)
        assert (backend.why_not is None) == backend.available
    if sys.platform != "darwin":
        metal = found[1]
        assert not metal.available
        assert "macOS on Apple Silicon" in (metal.why_not or "")


def test_probes_are_asked_once() -> None:
    assert tkern.backends()[2] is tkern.backends()[2]


def test_a_missing_backend_is_an_error_not_a_fallback() -> None:
    missing = next(b for b in tkern.backends() if not b.available)
    before = runtime.current()
    with pytest.raises(BackendUnavailable, match=missing.name):
        tkern.use(missing.name)
    assert runtime.current() == before


def test_an_unknown_backend_is_named_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match="expected one of cpu, metal, vulkan, cuda, got 'gpu'"):
        tkern.use("gpu")


@pytest.mark.skipif(sys.platform == "darwin", reason="metal is there")
def test_a_backend_named_in_the_environment_is_not_replaced() -> None:
    code = "import numpy as np, tkern; tkern.rms_norm(np.ones((2, 2), np.float32))"
    done = _python(code, TKERN_BACKEND="metal")
    assert done.returncode != 0
    assert "BackendUnavailable: backend 'metal' is not available here" in done.stderr
    done = _python(code, TKERN_BACKEND="tpu")
    assert "OptionError: $TKERN_BACKEND: expected one of" in done.stderr


def test_taichis_own_variables_do_not_redirect_it() -> None:
    code = (
        "import numpy as np, tkern; tkern.use('cpu'); import taichi as ti; c = ti.lang.impl.current_cfg();"
        "print(c.arch, c.fast_math, c.real_matrix_scalarize, c.make_cpu_multithreading_loop)"
    )
    done = _python(code, TI_ARCH="vulkan", TI_FAST_MATH="1", TI_MAKE_CPU_MULTITHREADING_LOOP="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1:] == ["False", "False", "False"]
    assert "x64" in done.stdout or "arm64" in done.stdout


def test_nothing_is_printed_by_a_call() -> None:
    code = "import numpy as np, tkern; tkern.rms_norm(np.ones((2, 3), np.float32))"
    done = _python(code)
    assert done.returncode == 0
    assert done.stdout == ""
    assert done.stderr == ""


def test_the_default_on_linux_is_the_cpu_without_a_probe() -> None:
    code = (
        "import os; os.environ.pop('TKERN_BACKEND', None)\n"
        "import numpy as np, tkern\n"
        "from tkern import devices, runtime\n"
        "def fail(*a, **k): raise AssertionError('a probe was started')\n"
        "devices.subprocess = type('none', (), {'run': fail})\n"
        "tkern.rms_norm(np.ones((2, 3), np.float32)); print(runtime.current())"
    )
    if sys.platform == "darwin":
        pytest.skip("metal is looked for on a Mac")
    assert _python(code).stdout == "cpu\n"


def test_using_goes_back() -> None:
    tkern.use("cpu")
    others = [b.name for b in tkern.backends() if b.available and b.name != "cpu"]
    for name in others:
        with tkern.using(name) as found:
            assert found.name == runtime.current() == name
            inside = tkern.rms_norm(_X)[0]
        assert runtime.current() == "cpu"
        np.testing.assert_allclose(inside, tkern.rms_norm(_X)[0], rtol=1e-6)


def test_using_goes_back_after_an_error() -> None:
    tkern.use("cpu")
    with pytest.raises(ZeroDivisionError), tkern.using("cpu"):
        raise ZeroDivisionError
    assert runtime.current() == "cpu"


def test_using_first_leaves_nothing_on() -> None:
    code = "import tkern\nfrom tkern import runtime\nwith tkern.using('cpu'): pass\nprint(runtime.current())"
    assert _python(code).stdout == "None\n"


def test_an_array_of_a_backend_switched_off_is_refused() -> None:
    import taichi as ti

    with tkern.using("cpu"):
        tkern.use("cpu")
        array = ti.ndarray(ti.f32, (3, 4))
        array.from_numpy(_X)
        runtime._start("cpu")
        with pytest.raises(BackendUnavailable, match="x: this ti.ndarray belongs to a backend that was switched off"):
            tkern.rms_norm(array)
        with pytest.raises(BackendUnavailable, match="switched off"):
            array.arr  # noqa: B018
        assert "switched off" in repr(array)


def test_taichi_started_outside_is_noticed_before() -> None:
    code = "import taichi as ti, numpy as np, tkern; ti.init(arch=ti.cpu)\ntkern.rms_norm(np.ones((2, 3), np.float32))"
    done = _python(code)
    assert "BackendUnavailable: Taichi is already running outside tkern" in done.stderr
    assert _python(code.replace("\n", "; tkern.use('cpu')\n")).returncode == 0


def test_taichi_started_outside_is_noticed_after() -> None:
    code = (
        "import taichi as ti, numpy as np, tkern; x = np.ones((2, 3), np.float32); tkern.rms_norm(x)\n"
        "ti.init(arch=ti.cpu)\n"
        "try: tkern.rms_norm(x)\n"
        "except tkern.errors.BackendUnavailable as e: print(e)\n"
        "tkern.use('cpu'); tkern.rms_norm(x)"
    )
    done = _python(code)
    assert done.returncode == 0, done.stderr
    assert "started again outside tkern" in done.stdout


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no POSIX permissions here")
def test_the_cache_is_private_and_separate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tkern").mkdir(mode=0o777)
    folders = {name: cache.folder_for(name, runtime.OPTIONS[name]) for name in runtime.NAMES}
    assert len(set(folders.values())) == 4
    for folder in folders.values():
        assert folder is not None
        assert folder.is_relative_to(tmp_path / "tkern")
        for part in (folder, folder.parent):
            assert stat.S_IMODE(part.stat().st_mode) == 0o700
    assert cache.folder_for("cpu", {**runtime.OPTIONS["cpu"], "opt_level": 2}) != folders["cpu"]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no POSIX permissions here")
def test_a_cache_that_is_a_link_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tkern").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="tkern keeps no compiled kernels"):
        assert cache.folder_for("cpu", {}) is None


_CALL = "import numpy as np, tkern; print(float(tkern.rms_norm(np.ones((2, 3), np.float32))[1][0]))"


def test_kernels_are_kept_where_they_can_be(tmp_path: Path) -> None:
    assert _python(_CALL, XDG_CACHE_HOME=str(tmp_path)).returncode == 0
    assert list((tmp_path / "tkern").glob("cpu-*/**/*.tic"))


@pytest.mark.parametrize("place", ["a file", "nothing at all"])
def test_a_place_for_files_that_cannot_be_used_ends_nothing(place: str, tmp_path: Path) -> None:
    """Taichi ends the process, at its start or its end, where it finds no folder it can write."""
    (tmp_path / "file").write_text("")
    environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_CACHE_HOME")}
    if place == "a file":
        environment["XDG_CACHE_HOME"] = str(tmp_path / "file")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CALL], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "0.9999995231628418\n"), done.stderr


def test_nothing_calls_home(tmp_path: Path) -> None:
    code = (
        "import urllib.request\n"
        "def refuse(*a, **k): print('called', a)\n"
        "urllib.request.urlopen = refuse\n"
        f"{_CALL}\n"
        "import time; time.sleep(0.5)"
    )
    done = _python(code, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "called" not in done.stdout
    assert not list(tmp_path.rglob("version_info"))


def test_the_callers_arithmetic_stays_as_it_was() -> None:
    code = f"{_CALL}\nprint(np.float64(1e-310) * 1.0, np.float32(1e-40) * np.float32(1.0) > 0)"
    assert _python(code).stdout.splitlines()[1] == "1e-310 True"


def test_the_working_folder_is_not_run_by_a_probe(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("raise RuntimeError('shadowed')\n")
    script = tmp_path / "sub" / "ask.py"
    script.parent.mkdir()
    script.write_text("import tkern; print([b.why_not for b in tkern.backends()])")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "shadowed" not in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_not_left_waiting() -> None:
    code = (
        "import os, signal, warnings; warnings.simplefilter('ignore')\n"
        f"{_CALL}\n"
        "if os.fork() == 0:\n"
        "    signal.alarm(60)\n"
        "    try: tkern.rms_norm(np.ones((2, 3), np.float32))\n"
        "    except tkern.errors.BackendUnavailable as error: print(error, flush=True)\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))"
    )
    done = _python(code)
    assert "this process was forked while a backend was on" in done.stdout
    assert done.stdout.splitlines()[-1] == "0"


def test_a_start_that_fails_leaves_the_backend_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import taichi as ti

    others = [b.name for b in tkern.backends() if b.available and b.name != "cpu"]
    if not others:
        pytest.skip("no second backend here")
    tkern.use("cpu")
    real = ti.init

    def fails(*arguments: object, **options: object) -> None:
        if "cpu" not in str(options["arch"]) and "x64" not in str(options["arch"]):
            raise RuntimeError("the driver is gone")
        real(*arguments, **options)

    monkeypatch.setattr(ti, "init", fails)
    with pytest.raises(BackendUnavailable, match="did not start: the driver is gone"), tkern.using(others[0]):
        pass
    assert runtime.current() == "cpu"
    assert tkern.rms_norm(_X)[0].shape == (3, 4)


def test_a_launch_does_not_outlive_its_backend() -> None:
    from tkern.ops.rms_norm import prepare_forward

    tkern.use("cpu")
    launch = prepare_forward(_X, backend="cpu")
    launch.run()
    with runtime.compiling("cpu"), pytest.raises(BackendUnavailable, match="was switched off"):
        launch.run()
    tkern.use("cpu")


def test_calls_from_threads_take_turns(backend: str) -> None:
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((20, 30)).astype(np.float32) for _ in range(8)]
    got: dict[int, np.ndarray] = {}

    def work(k: int) -> None:
        for _ in range(20):
            got[k] = tkern.rms_norm(inputs[k])[0]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, x in enumerate(inputs):
        assert np.array_equal(got[k], tkern.rms_norm(x)[0])
