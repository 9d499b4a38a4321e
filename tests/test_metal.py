"""The check of MSL: every kernel passes, each planted fault is caught at its line, and the estimates count right."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import tkern
from tkern import hollow, metal, registry, runtime
from tkern.cli import main
from tkern.errors import BackendUnavailable
from tkern.msl import emit, estimate, liveness, rules, tools

_FAULTS = Path(__file__).parent / "metal_faults.py"
_TOOLS = all(shutil.which(name) for name in ("spirv-val", "spirv-cross")) and tkern.backends()[2].available
needs_tools = pytest.mark.skipif(
    not _TOOLS, reason="spirv-val, spirv-cross or a Vulkan device is missing: see tkern msl"
)

# The fault of each kernel in metal_faults.py: the rule it breaks and what is said of it.
_WANTED = {
    "too_much_shared_memory": ("threadgroup memory", "32772 bytes, where 32768 are there"),
    "too_many_threads": ("threads", "2048 threads a workgroup"),
    "too_many_buffers": ("buffers", "is buffer 31, and 30 is the last"),
    "float_atomic": ("float atomics", "as a loop of compare-and-swap"),
    "augmented_sum": ("float atomics", "as a loop of compare-and-swap"),
    "sum_in_shared_memory": ("float atomics", "as a loop of compare-and-swap"),
    "atomic_in_a_branch": ("device barrier", "under a branch or in a loop"),
    "atomic_in_a_loop": ("device barrier", "under a branch or in a loop"),
    "double_inside": ("64-bit floats", "Type f64 not supported"),
    "double_array": ("64-bit floats", "Type f64 not supported"),
    "infinity": ("infinities", "a literal infinity"),
    "not_a_number": ("infinities", "a literal NaN"),
    "bitwise_of_conditions": ("valid SPIR-V", "OpBitwiseAnd %bool"),
    "long_atomic": ("translates", "MSL currently does not support 64-bit atomics"),
    "shared_vectors": ("compiles", "Type [Tensor (4) f32] not supported"),
    "name_that_is_not_there": ("compiles", 'Name "nothing_of_that_name" is not defined'),
    "end_of_the_process": ("compiles", "compiling it ended the process (-6)"),
    "axes_that_do_not_fit": ("compiles", "required ndim=1, but 2d ndarray"),
    "without_sizes": ("compiles", "its launch cannot be prepared: KeyError: 'metal'"),
}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path, str]:
    """Return the exit code, folder and output of the command over all planted faults."""
    folder = tmp_path_factory.mktemp("msl")
    capture = pytest.MonkeyPatch()
    said: list[str] = []
    capture.setattr("rich.console.Console.print", lambda self, *texts, **how: said.extend(map(str, texts)))
    try:
        code = main(["msl", *_WANTED, "sound", "--kernels", str(_FAULTS), "--out", str(folder)])
    finally:
        capture.undo()
    return code, folder, "\n".join(said)


def _found(folder: Path) -> dict[str, dict[str, Any]]:
    return {one["op"]: one for one in json.loads((folder / "msl.json").read_text(encoding="utf-8"))}


@needs_tools
@pytest.mark.parametrize("name", _WANTED)
def test_a_planted_fault_is_caught(name: str, faults: tuple[int, Path, str]) -> None:
    code, folder, said = faults
    assert code == 1
    one = _found(folder)[name]
    rule, what = _WANTED[name]
    assert not one["held"]
    finding = next(finding for finding in one["findings"] if finding["rule"] == rule)
    assert what in finding["what"]
    # Nothing else is found wrong, but that atomics of types that have none are no valid SPIR-V either.
    also = {"valid SPIR-V"} if name in ("long_atomic", "sum_in_shared_memory") else set()
    assert {finding["rule"] for finding in one["findings"]} - {rule} <= also
    (line,) = [text for text in said.splitlines() if text.startswith(f"{name}: ") and f" {rule}: " in text]
    assert what in line


@needs_tools
@pytest.mark.parametrize("name", _WANTED)
def test_a_finding_names_the_authors_line(name: str, faults: tuple[int, Path, str]) -> None:
    if name in ("without_sizes", "axes_that_do_not_fit"):
        pytest.skip("there is no configuration of a kernel: what could not be prepared is named instead")
    source = _FAULTS.read_text(encoding="utf-8").splitlines()
    begins = next(n for n, line in enumerate(source, 1) if line.startswith(f"def {name}("))
    marked = next((n for n in range(begins, min(begins + 10, len(source))) if "# fault" in source[n - 1]), None)
    finding = next(f for f in _found(faults[1])[name]["findings"] if f["rule"] == _WANTED[name][0])
    assert Path(finding["at"][0]) == _FAULTS
    if marked is not None and not source[begins : marked - 1].count("@ti.kernel"):
        assert finding["exact"]
        assert finding["at"][1] == marked
    else:
        assert not finding["exact"]
        assert finding["at"][1] == begins - 1
    if finding["line"]:
        text = (faults[1] / name / finding["msl"]).read_text(encoding="utf-8").splitlines()[finding["line"] - 1]
        shown = {
            "threadgroup memory": "threadgroup float", "threads": "2048u", "buffers": "[[buffer(31)]]",
            "float atomics": "atomic_compare_exchange_weak_explicit", "device barrier": "mem_flags::mem_device",
            "infinities": "as_type<float>(0x",
        }  # fmt: skip
        assert shown[finding["rule"]] in text


@needs_tools
def test_what_stays_inside_every_limit_passes(faults: tuple[int, Path, str]) -> None:
    one = _found(faults[1])["sound"]
    assert one["held"]
    assert one["findings"] == []
    (launch,) = one["launches"]
    assert (launch["threads"], launch["shared"]) == (1024, 32768)
    assert {path.suffix for path in (faults[1] / "sound").iterdir()} == {".spv", ".metal"}


@needs_tools
def test_every_kernel_is_one_that_metal_can_take(tmp_path: Path) -> None:
    """One configuration of each; ``make msl`` takes all."""
    found = metal.check(out=tmp_path, once=True)
    assert [one for one in found if not one.held] == []
    ops = set(registry.all_ops())
    assert {one.op for one in found} == ops | {"copy"}
    for one in found:
        assert one.main is not None
        assert 0 < one.main["threads"] <= 1024
        assert one.main["shared"] <= 32768
        assert one.main["fits"], one
        assert one.place[0].endswith(".py")
        for launch in one.launches:
            assert (tmp_path / one.op / launch["msl"]).read_text(encoding="utf-8").count("kernel void main0(") == 1


@needs_tools
def test_arrays_with_axes_are_a_configuration_of_their_own(tmp_path: Path) -> None:
    found = metal.check(["rms_norm_backward"], out=tmp_path)
    words = [one.words for one in found]
    assert len(set(zip((one.kernel for one in found), words, strict=True))) == len(found) > 15
    flat = [one for one in found if "axes" not in one.words]
    assert flat
    assert any(one.words.endswith("axes 2·1·2·1·2·1·1") for one in found)
    # Every width of a group, and rows that a lane holds or reads again.
    for part in ("lanes=256", "lanes=512", "resident=yes", "resident=no"):
        assert any(part in text for text in words), part


def test_a_missing_tool_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tools.shutil, "which", lambda name: None)
    assert main(["msl", "rms_norm"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "spirv-val, spirv-cross: expected on the PATH" in said
    assert "apt-get install spirv-tools spirv-cross" in said
    assert "brew install spirv-tools spirv-cross" in said
    monkeypatch.setattr(tools.shutil, "which", lambda name: None if name == "spirv-val" else f"/bin/{name}")
    assert main(["msl", "rms_norm"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "apt-get install spirv-tools;" in said


def test_a_missing_vulkan_device_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise BackendUnavailable(f"backend {name!r} is not available here: libvulkan1 mesa-vulkan-drivers")

    monkeypatch.setattr(tools, "find", dict)
    monkeypatch.setattr(runtime, "find", missing)
    assert main(["msl", "rms_norm"]) == 2
    assert "mesa-vulkan-drivers" in capsys.readouterr().err


def test_an_unknown_op_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["msl", "no_such_op"]) == 2
    assert "got 'no_such_op'" in " ".join(capsys.readouterr().err.split())


def test_the_capabilities_are_those_of_apple_silicon() -> None:
    """Taichi declares no 64-bit floats and no atomic operation on floats for Metal."""
    assert emit.CAPABILITIES[0] == "spirv_version=66304"
    assert len(emit.CAPABILITIES) == 9
    assert not any("float64" in name or "atomic" in name for name in emit.CAPABILITIES)
    assert runtime.OPTIONS["metal"]["fast_math"] is False


def test_metals_sizes_have_reasons_of_their_own() -> None:
    tables = [
        getattr(importlib.import_module(f"tkern.ops.{name}"), "SIZES")  # noqa: B009
        for name in ("rms_norm", "conv2d", "max_pool2d", "attention.sizes")
    ]
    for table in tables:
        entries = table["metal"] if isinstance(table["metal"], tuple) else (table["metal"],)
        for entry in entries:
            assert "tkern msl" in entry.reason
            assert not re.search(r"\bas (cuda|vulkan|RMSNorm)", entry.reason)
            lanes = entry.lanes if isinstance(entry.lanes, tuple) else (entry.lanes,)
            assert max(lanes) <= 1024
            # A simdgroup is 32 threads.
            assert all(n % 32 == 0 for n in lanes)


def _kernel(body: str, threads: str = "64u, 1u, 1u", arguments: str = "device float* a [[buffer(2)]]") -> str:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    group = f"constant uint3 gl_WorkGroupSize [[maybe_unused]] = uint3({threads});"
    return f"{group}\n\nkernel void main0({arguments})\n{{\n{lines}\n}}\n"


@pytest.mark.parametrize(
    ("body", "bytes_"),
    [
        ("", 0),
        ("threadgroup float a[8192];", 32768),
        ("threadgroup float a[64];\nthreadgroup int b[2];", 264),
        ("threadgroup float4 a[16][2];", 512),
        ("threadgroup float3 a[16];", 256),
        ("threadgroup half a[5];\nthreadgroup uchar b;", 11),
        ("threadgroup spvUnsafeArray<spvUnsafeArray<float, 4>, 8> a;", 128),
        ("threadgroup ulong a[3];", 24),
        ("threadgroup matrix_of_something a[3];", None),
        ("threadgroup_barrier(mem_flags::mem_threadgroup);", 0),
    ],
)
def test_threadgroup_memory_is_counted(body: str, bytes_: int | None) -> None:
    assert rules.shared_bytes(_kernel(body)) == bytes_
    broken = bytes_ is None or bytes_ > 32768
    assert ("threadgroup memory" in {one.rule for one in rules.check(_kernel(body))}) == broken


@pytest.mark.parametrize(("text", "threads"), [("1u", 1), ("8u", 512), ("256u, 1u, 1u", 256), ("32u, 33u, 1u", 1056)])
def test_threads_are_counted(text: str, threads: int) -> None:
    msl = _kernel("", threads=text)
    assert rules.threads_of(msl) == threads
    assert ("threads" in {one.rule for one in rules.check(msl)}) == (threads > 1024)
    assert [one.rule for one in rules.check("kernel void main0()\n{\n}\n")] == ["threads"]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("threadgroup_barrier(mem_flags::mem_device);", None),
        ("threadgroup_barrier(mem_flags::mem_threadgroup);", None),
        ("if (a)\n{\n    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_none);\n}", "device barrier"),
        ("for (;;)\n{\n    threadgroup_barrier(mem_flags::mem_threadgroup);\n}", None),
        ("do\n{\n    threadgroup_barrier(mem_flags::mem_device);\n} while (a);", "device barrier"),
        ("if (a)\n{\n}\nthreadgroup_barrier(mem_flags::mem_device);", None),
        ("float x = as_type<float>(0x7f7fffffu);", None),
        ("int x = 2139095040;", None),
        ("float x = as_type<float>(0x7f800000u /* inf */);", "infinities"),
        ("float x = as_type<float>(0xffc00001u);", "infinities"),
        ("float x = as_type<float>(y);", None),
        ("float x = (-1.0 / 0.0);", "infinities"),
        ("bool x = isnan(y);", "infinities"),
        ("float x = INFINITY;", "infinities"),
        ("double x = 1.0;", "64-bit floats"),
        ("float doubled = 1.0;", None),
        ("atomic_fetch_add_explicit((device atomic_float*)&a[0], 1.0, memory_order_relaxed);", "float atomics"),
        ("atomic_fetch_add_explicit((device atomic_int*)&a[0], 1, memory_order_relaxed);", None),
    ],
)  # fmt: skip
def test_lines_are_read(line: str, rule: str | None) -> None:
    assert [one.rule for one in rules.check(_kernel(line))] == ([] if rule is None else [rule])


def test_buffers_up_to_30_are_there() -> None:
    assert rules.check(_kernel("", arguments="device float* a [[buffer(30)]]")) == []
    (found,) = rules.check(_kernel("", arguments="device float* a [[buffer(30)]], device float* b [[buffer(31)]]"))
    assert (found.rule, found.line) == ("buffers", 3)


_LOOP = """
float total = 0.0;
for (int i = 0; i < n; i++)
{
    float x = a[i];
    float y = b[i];
    total += x * y;
}
a[0] = total;
"""
_BRANCH = """
float x;
float z = a[3];
if (c)
{
    float u = a[0];
    float v = a[1];
    x = u + v;
}
else
{
    x = 0.0;
}
a[2] = x + z;
"""


@pytest.mark.parametrize(
    ("body", "kept", "live"),
    [
        ("a[0] = 1.0;", 0, 0),
        ("float x = a[0];\na[1] = x;", 1, 1),
        # Never read: the value is not wanted.
        ("float x = a[0];\nx = a[1];\na[2] = x;", 1, 1),
        ("float x = a[0];\nfloat y = a[1];\na[2] = x;\na[3] = y;", 2, 2),
        ("float4 x = b[0];\nhalf2 y = c[0];\na[0] = x.x * y.x;", 5, 5),
        ("spvUnsafeArray<float, 12> x = y;\na[0] = x[1];", 12, 12),
        # total and i are carried around the loop; x and y live before the sum.
        (_LOOP, 4, 4),
        # z is live through the branch, u and v beside it.
        (_BRANCH, 3, 3),
        # An address that can be made anew of one integer: only that one must be kept.
        ("int i = c[0];\nint j = i * 4;\nint k = j + 1;\na[j] = 0.0;\na[k] = 0.0;\na[i] = 0.0;", 1, 3),
        # One that is made twice cannot.
        ("int j = i * 4;\nj = j + 1;\nfloat x = a[j];\na[j] = x;", 2, 2),
    ],
)  # fmt: skip
def test_live_words_are_counted(body: str, kept: float, live: float) -> None:
    assert liveness.live_words(_kernel(body)) == (kept, live)


def test_the_estimate_is_the_least_of_what_bounds_it() -> None:
    assert [estimate.threads_for(n) for n in (0, 52, 53, 104, 105, 128, 129)] == [1024, 1024, 896, 512, 448, 384, 384]
    few = estimate.estimate(_kernel("float x = a[0];\na[1] = x;", threads="256u, 1u, 1u"))
    assert (few.groups, few.resident, few.bound, few.fits, few.spills) == (4, 1024, "threads", True, False)
    memory = estimate.estimate(_kernel("threadgroup float a[6530];", threads="128u, 1u, 1u"))
    assert (memory.groups, memory.resident, memory.bound) == (2, 256, "memory")
    many = "\n".join([*(f"float x{n} = a[{n}];" for n in range(110)), *(f"a[{n}] = x{n};" for n in range(110))])
    full = estimate.estimate(_kernel(many, threads="512u, 1u, 1u"))
    assert (full.registers, full.groups, full.bound, full.fits, full.spills) == (110, 1, "registers", False, False)
    assert estimate.estimate(_kernel(many, threads="448u, 1u, 1u")).fits


def test_a_hollow_array_has_a_form_and_no_memory() -> None:
    tkern.use("cpu")
    import taichi as ti

    one = hollow.array(ti.f32, (2**20, 2**20))
    assert isinstance(one, ti.ScalarNdarray)
    assert one.shape == (2**20, 2**20)
    one.fill(1.0)
    assert not hollow.arrays_are_hollow()
    with hollow.only():
        assert hollow.arrays_are_hollow()
    assert not hollow.arrays_are_hollow()
