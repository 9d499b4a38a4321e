"""Attention by known values, every option against the oracle, what must be exact, and what it must refuse."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tkern
from tkern import arrays, parity, registry, runtime
from tkern.errors import DTypeError, OptionError, ShapeError, SizeLimitError
from tkern.ops.attention import drawing, peers
from tkern.ops.attention.drawing import Sizes
from tkern.ops.attention.sizes import SIZES
from tkern.spec import Case

_NAMES = ("q", "k", "v", "bias")


def column(*values: float) -> np.ndarray:
    """Return [1, 1, S, 1]: one head of one element."""
    return np.array(values, np.float32).reshape(1, 1, -1, 1)


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def draw_all(rng: np.random.Generator, sizes: Sizes, **options: Any) -> dict[str, Any]:
    return drawing.backward(sizes, **options)(rng)


def of_forward(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if name not in drawing.BACKWARD_ONLY}


def same_bits(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def test_two_queries_by_hand(backend: str) -> None:
    """The first query sees nothing."""
    hidden = np.array([[-np.inf, -np.inf], [0, 0]], np.float32)
    q, k, v, dout = column(1, 1), column(1, 2), column(1, 3), column(1, 1)
    out, lse = tkern.attention(q, k, v, scale=1.0, bias=hidden)
    np.testing.assert_allclose(out.ravel(), [0, (1 + 3 * np.e) / (1 + np.e)], rtol=1e-6)
    assert lse[0, 0, 0] == -np.inf
    np.testing.assert_allclose(lse[0, 0, 1], np.log(np.e + np.e**2), rtol=1e-6)
    dq, dk, dv, dbias = tkern.attention_backward(q, k, v, dout, scale=1.0, bias=hidden)
    assert dq.ravel()[0] == 0
    np.testing.assert_allclose(dq.ravel()[1], 0.3932238665, rtol=2e-6)
    np.testing.assert_allclose(dk.ravel(), [-0.3932238665, 0.3932238665], rtol=2e-6)
    np.testing.assert_allclose(dv.ravel(), [0.2689414214, 0.7310585786], rtol=2e-6)
    assert dbias is None


@pytest.mark.parametrize(
    ("queries", "keys", "align", "want"),
    [
        (2, 5, "top-left", [1.5, 0.5, 0, 0, 0]),
        (2, 5, "bottom-right", [0.45, 0.45, 0.45, 0.45, 0.2]),
        (2, 5, "clamped", [0.45, 0.45, 0.45, 0.45, 0.2]),
        (5, 2, "top-left", [3, 2]),
        (5, 2, "bottom-right", [1.5, 0.5]),
        (5, 2, "clamped", [3, 2]),
    ],
)
def test_causal_by_hand(queries: int, keys: int, align: str, want: list[float], backend: str) -> None:
    q, k, v = column(*[0] * queries), column(*[0] * keys), column(*range(1, keys + 1))
    dq, dk, dv, _ = tkern.attention_backward(q, k, v, np.ones_like(q), causal=True, align=align)
    np.testing.assert_allclose(dv.ravel(), want, rtol=1e-6)
    assert np.array_equal(dq, np.zeros_like(q))
    assert np.array_equal(dk, np.zeros_like(k))
    if (queries, align) == (5, "bottom-right"):
        out, lse = tkern.attention(q, k, v, causal=True, align=align)
        assert np.array_equal(out.ravel()[:3], np.zeros(3))
        np.testing.assert_allclose(out.ravel()[3:], [1, 1.5], rtol=1e-6)
        assert np.array_equal(lse.ravel()[:3], np.full(3, -np.inf))


def test_dbias_has_no_scale_and_is_summed(backend: str) -> None:
    zeros = np.zeros((2, 2, 2, 1), np.float32)
    v = np.broadcast_to(column(1, 3), (2, 2, 2, 1))
    bias = np.zeros((1, 1, 2, 2), np.float32)
    grads = tkern.attention_backward(zeros, zeros, v, zeros + 1, scale=7.0, bias=bias, wrt=("bias",))
    assert grads[:3] == (None, None, None)
    np.testing.assert_allclose(grads.dbias, [[[[-2, 2], [-2, 2]]]], rtol=1e-6)


def test_window_0_is_the_position_alone(backend: str, rng: np.random.Generator) -> None:
    q, k, v, dout = (draw(rng, 2, 3, 21, 16) for _ in range(4))
    out, _ = tkern.attention(q, k, v, window=0)
    np.testing.assert_allclose(out, v, rtol=1e-6)
    dq, dk, dv, _ = tkern.attention_backward(q, k, v, dout, window=0)
    np.testing.assert_allclose(dv, dout, rtol=1e-6)
    np.testing.assert_allclose(dq, 0, atol=1e-5)
    np.testing.assert_allclose(dk, 0, atol=1e-5)


def test_several_ways_to_say_the_same(backend: str, rng: np.random.Generator) -> None:
    q, k, v, dout = (draw(rng, 2, 2, 33, 16) for _ in range(4))
    seen = rng.random((2, 33)) < 0.6
    hidden = np.where(seen, 0, -np.inf).astype(np.float32)[:, None, None, :]
    ways: tuple[tuple[dict[str, Any], ...], ...] = (
        ({"causal": True}, {"window": (-1, 0)}, {"causal": True, "align": "top-left"}, {"causal": True, "window": 40}),
        ({"window": 4}, {"window": (4, 0)}, {"causal": True, "window": (4, 3)}),
        ({}, {"window": (-1, -1)}, {"scale": 0.25}),
        (
            {"key_mask": seen},
            {"key_mask": seen.astype(np.float32), "mask_threshold": 0.5},
            {"key_mask": seen.astype(np.float32), "mask_threshold": 1.0},
            {"bias": hidden},
        ),
    )
    for first, *others in ways:
        want = tkern.attention_backward(q, k, v, dout, **first)
        for other in others:
            for a, b in zip(tkern.attention_backward(q, k, v, dout, **other)[:3], want, strict=False):
                np.testing.assert_allclose(a, b, atol=2e-5, err_msg=str(other))


_MIXED = Sizes(2, 4, 2, 37, 70, 20, 33)


def _mixed(rng: np.random.Generator, sizes: Sizes = _MIXED, **options: Any) -> dict[str, Any]:
    mixture = {"causal": True, "window": (30, 4), "mask": "bool", "bias": "1hqk", "softcap": 2.0, "dlse": True}
    return draw_all(rng, sizes, **{**mixture, **options})


def _axes_swapped(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return views of the inputs for the other layout."""
    tensors = {name: inputs[name].swapaxes(1, 2) for name in ("q", "k", "v", "dout", "out") if name in inputs}
    return {**inputs, **tensors, "layout": {"bhsd": "bshd", "bshd": "bhsd"}[inputs["layout"]]}


def _contiguous(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for name, a in inputs.items()}


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_both_layouts_give_the_same_bits(layout: str, backend: str, rng: np.random.Generator) -> None:
    inputs = _mixed(rng, layout=layout)
    out, lse = tkern.attention(**of_forward(inputs))
    grads = tkern.attention_backward(**inputs)
    assert out.shape == (*inputs["q"].shape[:3], 33)
    assert lse.shape == (2, 4, 37)
    assert [g.shape for g in grads] == [inputs[name].shape for name in _NAMES]
    # The same values in the other layout's order of memory, and as views of this one's.
    for other in (_contiguous(_axes_swapped(inputs)), _axes_swapped(inputs)):
        other_out, other_lse = tkern.attention(**of_forward(other))
        assert same_bits(other_out.swapaxes(1, 2), out)
        assert same_bits(other_lse, lse)
        dq, dk, dv, dbias = tkern.attention_backward(**other)
        for got, want in zip((dq.swapaxes(1, 2), dk.swapaxes(1, 2), dv.swapaxes(1, 2), dbias), grads, strict=True):
            assert same_bits(got, want)


def test_strided_and_expanded_inputs_give_the_same_bits(backend: str, rng: np.random.Generator) -> None:
    inputs = _mixed(rng)
    want = (*tkern.attention_backward(**inputs), *tkern.attention(**of_forward(inputs)))

    def spread(a: Any) -> Any:
        if not isinstance(a, np.ndarray):
            return a
        wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1] + 1), a.dtype)
        wide[..., 1::2] = a
        return wide[..., 1::2]

    strided = {name: spread(a) for name, a in inputs.items()}
    got = (*tkern.attention_backward(**strided), *tkern.attention(**of_forward(strided)))
    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))

    expanded = {name: np.broadcast_to(inputs[name][:1, :1], inputs[name].shape) for name in ("q", "k", "v", "dout")}
    expanded["dout"] = np.broadcast_to(np.float32(0.7), inputs["dout"].shape)
    assert expanded["q"].strides[:2] == (0, 0)
    copies = {name: a.copy() for name, a in expanded.items()}
    for a, b in zip(
        tkern.attention_backward(**{**inputs, **expanded}),
        tkern.attention_backward(**{**inputs, **copies}),
        strict=True,
    ):
        assert same_bits(a, b)


def test_torch_tensors_come_back_as_torch_tensors(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    inputs = _mixed(rng)
    tensors = {name: torch.from_numpy(a) if isinstance(a, np.ndarray) else a for name, a in inputs.items()}
    with tkern.using("cpu"):
        want = (*tkern.attention_backward(**inputs), *tkern.attention(**of_forward(inputs)))
        got = (*tkern.attention_backward(**tensors), *tkern.attention(**of_forward(tensors)))
    for a, b in zip(got, want, strict=True):
        assert isinstance(a, torch.Tensor)
        assert same_bits(a.numpy(), b)


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "mixed"])
def test_a_subset_agrees_with_all(masked: bool, backend: str, rng: np.random.Generator) -> None:
    inputs = _mixed(rng) if masked else draw_all(rng, _MIXED, bias="1hqk")
    want = tkern.attention_backward(**inputs)
    scale = [float(np.sqrt(np.mean(w**2))) for w in want]
    for count in (1, 2, 3):
        for names in combinations(_NAMES, count):
            got = tkern.attention_backward(**{**inputs, "wrt": names})
            for name, a, b, rms in zip(_NAMES, got, want, scale, strict=True):
                if name in names:
                    np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5 * rms, err_msg=f"{name} of {names}")
                else:
                    assert a is None
    turned = tkern.attention_backward(**{**inputs, "wrt": tuple(reversed(inputs["wrt"]))})
    assert all(same_bits(a, b) for a, b in zip(turned, want, strict=True))


def test_dbias_is_only_given_where_it_is_asked_for(backend: str, rng: np.random.Generator) -> None:
    inputs = draw_all(rng, _MIXED, bias="11qk")
    del inputs["wrt"]
    grads = tkern.attention_backward(**inputs)
    assert grads.dbias is None
    assert all(g is not None for g in grads[:3])
    assert grads._fields == ("dq", "dk", "dv", "dbias")


def test_saved_out_and_lse_agree_with_recomputed_ones(backend: str, rng: np.random.Generator) -> None:
    for inputs in (_mixed(rng), _mixed(rng, Sizes(1, 2, 2, 70, 37, 20, 20), layout="bshd", window=None)):
        out, lse = tkern.attention(**of_forward(inputs))
        want = tkern.attention_backward(**inputs)
        for saved in ({"out": out, "lse": lse}, {"out": out}, {"lse": lse}):
            before = {name: a.copy() for name, a in saved.items()}
            for a, b in zip(tkern.attention_backward(**inputs, **saved), want, strict=True):
                rms = float(np.sqrt(np.mean(b**2)))
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5 * rms, err_msg=str(list(saved)))
            assert all(same_bits(a, before[name]) for name, a in saved.items())


def test_queries_a_stretch_at_a_time_agree_with_all_at_once(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Where a program's memory does not hold all of a head's queries, dk and dv go on from what was saved."""
    with tkern.using("cpu"):
        for inputs in (
            _mixed(rng, Sizes(1, 4, 2, 350, 260, 20, 33)),
            draw_all(rng, Sizes(1, 2, 1, 300, 300, 16, 16), bias="11qk"),
        ):
            want = tkern.attention_backward(**inputs)
            with monkeypatch.context() as patched:
                patched.setattr("tkern.ops.attention.plan._KEPT_BYTES", 1)
                got = tkern.attention_backward(**inputs)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5 * float(np.sqrt(np.mean(b**2))))


def test_runs_are_bit_identical(backend: str, rng: np.random.Generator) -> None:
    for inputs in (_mixed(rng, Sizes(1, 4, 2, 150, 190, 20, 33)), draw_all(rng, Sizes(1, 1, 1, 300, 300, 20, 20))):
        first = (*tkern.attention_backward(**inputs), *tkern.attention(**of_forward(inputs)))
        for _ in range(5):
            again = (*tkern.attention_backward(**inputs), *tkern.attention(**of_forward(inputs)))
            assert all(same_bits(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(2, 2, 1, 0, 5, 16, 16),
        Sizes(2, 2, 1, 5, 0, 16, 16),
        Sizes(2, 2, 1, 0, 0, 16, 16),
        Sizes(0, 2, 1, 5, 7, 3, 4),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_nothing_to_attend_to(sizes: Sizes, layout: str, backend: str, rng: np.random.Generator) -> None:
    inputs = draw_all(rng, sizes, layout=layout, bias="1h11", mask="bool", causal=True, dlse=True)
    out, lse = tkern.attention(**of_forward(inputs))
    assert out.shape == (*inputs["q"].shape[:3], sizes.value_size)
    assert not out.any()
    assert lse.shape == (sizes.batch, sizes.heads, sizes.queries)
    assert np.isneginf(lse).all()
    for name, gradient in zip(_NAMES, tkern.attention_backward(**inputs), strict=True):
        assert gradient.shape == inputs[name].shape
        assert not gradient.any()


@pytest.mark.parametrize("saved", [False, True], ids=["recomputed", "saved"])
def test_rows_that_see_no_key_add_exactly_nothing(saved: bool, backend: str, rng: np.random.Generator) -> None:
    """Whatever stands in those rows, the other gradients keep their bits."""
    inputs = draw_all(rng, Sizes(1, 2, 1, 70, 37, 20, 20), causal=True, bias="1hqk", dlse=True)
    blind = slice(0, 70 - 37)
    out, lse = tkern.attention(**of_forward(inputs))
    assert not out[:, :, blind].any()
    assert np.isneginf(lse[:, :, blind]).all()
    assert np.isfinite(lse[:, :, blind.stop :]).all()
    if saved:
        inputs.update(out=out, lse=lse)
    want = tkern.attention_backward(**inputs)
    assert not want.dq[:, :, blind].any()
    assert not want.dbias[:, :, blind].any()
    other = dict(inputs)
    for name in ("q", "dout", "dlse", "out"):
        if name in other:
            other[name] = other[name].copy()
            other[name][:, :, blind] = 3 * draw(rng, *other[name][:, :, blind].shape)
    for a, b in zip(tkern.attention_backward(**other), want, strict=True):
        assert same_bits(a, b)


@pytest.mark.parametrize("kind", ["key mask", "diagonal", "window"])
def test_what_is_hidden_has_no_effect(kind: str, backend: str, rng: np.random.Generator) -> None:
    """Neither NaN, nor infinity, nor other numbers in keys and values that no query sees."""
    sizes = Sizes(2, 4, 2, 37, 70, 20, 20)
    hidden = np.zeros((2, 70), bool)
    options: dict[str, Any]
    if kind == "key mask":
        hidden = rng.random((2, 70)) < 0.4
        options = {"key_mask": ~hidden}
    elif kind == "diagonal":
        hidden[:, 37:] = True
        options = {"causal": True, "align": "top-left"}
    else:
        hidden[:, : 33 - 5] = True
        options = {"window": (5, -1)}
    inputs = draw_all(rng, sizes, **options)
    want = (*tkern.attention_backward(**inputs), *tkern.attention(**of_forward(inputs)))
    for value in (7.0, np.inf) if backend == "metal" else (7.0, np.inf, np.nan):
        spoilt = {name: inputs[name].copy() for name in ("k", "v")}
        for a in spoilt.values():
            a.swapaxes(1, 2)[hidden] = value
        got = (
            *tkern.attention_backward(**{**inputs, **spoilt}),
            *tkern.attention(**of_forward({**inputs, **spoilt})),
        )
        for a, b in zip(got, want, strict=True):
            assert same_bits(a, b), value
    dk, dv = want[1], want[2]
    assert not dk.swapaxes(1, 2)[hidden].any()
    assert not dv.swapaxes(1, 2)[hidden].any()


def _with_a_nan(rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return out, lse and dq under a causal mask, before and after key and value 41 of the first head become NaN."""
    inputs = draw_all(rng, Sizes(1, 2, 2, 70, 70, 20, 20), causal=True)
    before = [*tkern.attention(**of_forward(inputs)), tkern.attention_backward(**inputs).dq]
    for name in ("k", "v"):
        inputs[name][:, 0, 41] = np.nan
    return before, [*tkern.attention(**of_forward(inputs)), tkern.attention_backward(**inputs).dq]


def test_a_nan_is_not_washed_away(backend: str, rng: np.random.Generator) -> None:
    if backend == "metal":
        pytest.skip("Metal compiles with fast-math: a NaN that a caller passes in is not promised to come out")
    for before, after in zip(*_with_a_nan(rng), strict=True):
        assert np.isnan(after[:, 0, 41:]).all()
        assert same_bits(after[:, 1], before[:, 1])


def test_queries_before_a_nan_do_not_see_it(backend: str, rng: np.random.Generator) -> None:
    if backend == "metal":
        pytest.skip("Metal compiles with fast-math: a NaN that a caller passes in is not promised to come out")
    for before, after in zip(*_with_a_nan(rng), strict=True):
        assert np.array_equal(after[:, 0, :41], before[:, 0, :41])


_MEASURE = """
import numpy as np, tkern
rng = np.random.default_rng(0)
def draw(length):
    return [rng.standard_normal((1, 1, length, 64)).astype(np.float32) for _ in range(4)]
def kilobytes(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))
tkern.use("cpu")
tkern.attention_backward(*draw(300))  # compiled
inputs = draw(16384)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the high-water mark starts anew
before = kilobytes("VmRSS")
outputs = tkern.attention_backward(*inputs)
grown = kilobytes("VmHWM") - before - sum(a.nbytes for a in outputs[:3]) / 1024
print(grown / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured by Linux's /proc")
def test_memory_grows_with_the_length_not_its_square() -> None:
    """S = 16384: one matrix of S×S would be 1024 MiB."""
    done = subprocess.run([sys.executable, "-c", _MEASURE], capture_output=True, text=True, check=True)
    grown = float(done.stdout.split()[-1])
    assert grown < 64, f"{grown:.0f} MiB beyond inputs and outputs"


# Few sizes, so that few kernels are compiled; every option with every other.
_SIZES = st.builds(
    lambda batch, heads, queries, keys, size, value_size: Sizes(batch, *heads, queries, keys, size, value_size),
    batch=st.sampled_from([1, 2, 2, 0]),
    heads=st.sampled_from([(1, 1), (2, 2), (2, 1), (6, 2)]),
    queries=st.sampled_from([1, 5, 17, 33, 40, 70, 0]),
    keys=st.sampled_from([1, 5, 17, 33, 40, 70, 0]),
    size=st.sampled_from([3, 16]),
    value_size=st.sampled_from([3, 16]),
)
_OPTIONS = st.fixed_dictionaries(
    {
        "layout": st.sampled_from(["bhsd", "bshd"]),
        "scale": st.sampled_from([None, 1.3, 0.0, -0.6]),
        "causal": st.booleans(),
        "window": st.sampled_from([None, 0, 3, 50, (-1, 2), (4, -1), (2, 3), (0, 0), (-1, -1)]),
        "align": st.sampled_from(["bottom-right", "top-left", "clamped"]),
        "softcap": st.sampled_from([None, 0.8, 5.0]),
        "mask": st.sampled_from([None, "bool", "float"]),
        "blind_batch": st.booleans(),
        "bias": st.sampled_from([None, None, "bhqk", "11qk", "b11k", "hq1", "qk", "1h11", "1k"]),
        "hidden_share": st.sampled_from([0.0, 0.3]),
        "spread": st.sampled_from([0.1, 1.0, 3.0]),
        "dlse": st.booleans(),
        "saved": st.sampled_from([(), (), ("out", "lse"), ("out",), ("lse",)]),
    }
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=_SIZES,
    options=_OPTIONS,
    wrt=st.sets(st.sampled_from(_NAMES), min_size=1),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_option_with_any_other(
    backend: str, sizes: Sizes, options: dict[str, Any], wrt: set[str], seed: int
) -> None:
    names = tuple(sorted(wrt - ({"bias"} if options["bias"] is None else set()))) or None
    draw_backward = drawing.backward(sizes, wrt=names, **options)
    ops = registry.all_ops()
    for name, make in (("attention", drawing.forward(draw_backward)), ("attention_backward", draw_backward)):
        result = parity.check_case(
            ops[name], Case("drawn", lambda _, make=make: make(np.random.default_rng(seed))), backend
        )
        assert result.held, f"{name}: {result.problem}"


# Partial tiles and slices in every direction, shared key heads, columns in two programs, rows of whole fours and not.
@pytest.mark.parametrize(
    ("table", "sizes"),
    [("cuda", Sizes(1, 4, 2, 70, 130, 68, 68)), ("vulkan", Sizes(2, 1, 1, 65, 17, 33, 20))],
    ids=["cuda", "vulkan"],
)
def test_tiles_of_real_gpus(table: str, sizes: Sizes, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device in software has a table of its own, for its compiler takes long: here it runs the tiles of real ones."""
    if not runtime.backend(backend).in_software:
        pytest.skip("only a GPU in software runs other tiles than its own in its tests")
    monkeypatch.setitem(SIZES, "software", SIZES[table])
    make = drawing.backward(sizes, causal=True, dlse=True, saved=("out", "lse"))
    case = Case("drawn", lambda _: make(np.random.default_rng(3)))
    result = parity.check_case(registry.all_ops()["attention_backward"], case, backend)
    assert result.held, result.problem


def test_the_peers_compute_the_same(rng: np.random.Generator) -> None:
    for causal, sizes in ((False, Sizes(2, 3, 3, 21, 21, 8, 8)), (True, Sizes(1, 4, 2, 40, 40, 16, 16))):
        inputs = draw_all(rng, sizes, causal=causal)
        want_out, want_lse = tkern.oracle.attention(**of_forward(inputs))
        want = tkern.oracle.attention_backward(**inputs)
        out, lse = peers.FORWARD["numpy"](of_forward(inputs))()
        np.testing.assert_allclose(out, want_out, atol=1e-5)
        np.testing.assert_allclose(lse, want_lse, atol=1e-5)
        for a, b in zip(peers.BACKWARD["numpy"](inputs)(), want, strict=False):
            np.testing.assert_allclose(a, b, atol=2e-5)
        torch = pytest.importorskip("torch")
        tensors = {name: torch.from_numpy(a) if isinstance(a, np.ndarray) else a for name, a in inputs.items()}
        np.testing.assert_allclose(peers.FORWARD["torch"](of_forward(tensors))(), want_out, atol=1e-5)
        for a, b in zip(peers.BACKWARD["torch"](tensors)(), want, strict=False):
            np.testing.assert_allclose(a, b, atol=2e-5)


def test_the_oracle_in_float32_is_float32_throughout(rng: np.random.Generator) -> None:
    inputs = _mixed(rng, saved=("out", "lse"))
    arrays = (
        *tkern.oracle.attention(**of_forward(inputs), dtype=np.float32),
        *tkern.oracle.attention_backward(**inputs, dtype=np.float32),
    )
    assert {a.dtype for a in arrays} == {np.dtype(np.float32)}


_Q = np.ones((2, 4, 5, 6), np.float32)
_K = np.ones((2, 2, 7, 6), np.float32)
_V = np.ones((2, 2, 7, 3), np.float32)
_DOUT = np.ones((2, 4, 5, 3), np.float32)
_ROWS = np.ones((2, 4, 5), np.float32)
_SEEN = np.ones((2, 7), bool)
_FLOAT_MASK = np.ones((2, 7), np.float32)
_BIAS = np.ones((4, 5, 7), np.float32)


@pytest.mark.parametrize(
    ("error", "argument", "change"),
    [
        (DTypeError, "q", {"q": [[[[1.0]]]]}),
        (DTypeError, "q", {"q": _Q.astype(np.float64)}),
        (DTypeError, "k", {"k": _K.astype(np.float16)}),
        (DTypeError, "v", {"v": _V.astype(np.int32)}),
        (DTypeError, "dout", {"dout": _DOUT.astype(np.float64)}),
        (DTypeError, "out", {"out": _DOUT.astype(np.float64)}),
        (DTypeError, "lse", {"lse": _ROWS.astype(np.float64)}),
        (DTypeError, "dlse", {"dlse": 1.0}),
        (DTypeError, "bias", {"bias": _BIAS.astype(np.float64)}),
        (DTypeError, "bias", {"bias": _BIAS > 0}),
        (DTypeError, "key_mask", {"key_mask": _SEEN.astype(np.int32)}),
        (DTypeError, "key_mask", {"key_mask": _SEEN.tolist()}),
        (DTypeError, "key_mask", {"key_mask": _FLOAT_MASK.astype(np.float64), "mask_threshold": 0.5}),
        (ShapeError, "q", {"q": _Q[0]}),
        (ShapeError, "q", {"q": _Q[..., :0]}),
        (ShapeError, "k", {"k": _K[:1]}),
        (ShapeError, "k", {"k": _K[..., :5]}),
        (ShapeError, "k", {"k": _K[0]}),
        (ShapeError, "k", {"k": np.ones((2, 3, 7, 6), np.float32), "v": np.ones((2, 3, 7, 3), np.float32)}),
        (ShapeError, "v", {"v": _V[:, :, :6]}),
        (ShapeError, "v", {"v": _V[:, :1]}),
        (ShapeError, "v", {"v": _V[:1]}),
        (ShapeError, "dout", {"dout": _DOUT[:, :, :4]}),
        (ShapeError, "dout", {"dout": _Q}),
        (ShapeError, "out", {"out": _Q}),
        (ShapeError, "lse", {"lse": _ROWS[..., None]}),
        (ShapeError, "lse", {"lse": _ROWS.swapaxes(1, 2)}),
        (ShapeError, "dlse", {"dlse": _ROWS[:, :2]}),
        (ShapeError, "key_mask", {"key_mask": _SEEN[:, :6]}),
        (ShapeError, "key_mask", {"key_mask": _SEEN[0]}),
        (ShapeError, "bias", {"bias": _BIAS[:, :, :6]}),
        (ShapeError, "bias", {"bias": _BIAS[:2]}),
        (ShapeError, "bias", {"bias": np.ones((1, 2, 4, 5, 7), np.float32)}),
        (OptionError, "layout", {"layout": "bhds"}),
        (OptionError, "layout", {"layout": None}),
        (OptionError, "scale", {"scale": float("nan")}),
        (OptionError, "scale", {"scale": "1"}),
        (OptionError, "causal", {"causal": "yes"}),
        (OptionError, "window", {"window": -2}),
        (OptionError, "window", {"window": 1.5}),
        (OptionError, "window", {"window": True}),
        (OptionError, "window", {"window": (1,)}),
        (OptionError, "window", {"window": (1, -2)}),
        (OptionError, "window", {"window": (1, 2, 3)}),
        (OptionError, "window", {"window": "wide"}),
        (OptionError, "align", {"align": "top-right"}),
        (OptionError, "align", {"align": None}),
        (OptionError, "mask_threshold", {"key_mask": _FLOAT_MASK}),
        (OptionError, "mask_threshold", {"key_mask": _SEEN, "mask_threshold": 0.5}),
        (OptionError, "mask_threshold", {"mask_threshold": 0.5}),
        (OptionError, "mask_threshold", {"key_mask": _FLOAT_MASK, "mask_threshold": float("nan")}),
        (OptionError, "softcap", {"softcap": 0.0}),
        (OptionError, "softcap", {"softcap": -1.0}),
        (OptionError, "softcap", {"softcap": float("inf")}),
        (OptionError, "softcap", {"softcap": "high"}),
        (OptionError, "wrt", {"wrt": ("q", "dout")}),
        (OptionError, "wrt", {"wrt": ("q", "bias")}),
        (OptionError, "wrt", {"wrt": 3}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_refusals_name_the_argument(error: type[Exception], argument: str, change: dict[str, Any]) -> None:
    inputs = {"q": _Q, "k": _K, "v": _V, "dout": _DOUT, **change}
    with pytest.raises(error, match=rf"^{argument}: expected .*, got ") as caught:
        tkern.attention_backward(**inputs)
    assert caught.value.argument == argument
    if argument not in drawing.BACKWARD_ONLY:
        with pytest.raises(error, match=rf"^{argument}: "):
            tkern.attention(**of_forward(inputs))


def test_expected_and_got_are_in_the_message() -> None:
    with pytest.raises(ShapeError, match=r"dout: expected shape \(2, 4, 5, 3\), got \(2, 4, 5, 6\)"):
        tkern.attention_backward(_Q, _K, _V, _Q)
    with pytest.raises(DTypeError, match="k: expected float32, got float64; convert it first"):
        tkern.attention(_Q, _K.astype(np.float64), _V)


def test_more_elements_than_an_index_reaches_are_refused(backend: str) -> None:
    limit = arrays.LIMITS[backend]
    x = np.broadcast_to(np.float32(1), (1, 1, limit // 4 + 1, 4))
    with pytest.raises(SizeLimitError, match=f"^q: expected at most {limit} elements .*got {x.size} elements"):
        tkern.attention(x, x, x)
