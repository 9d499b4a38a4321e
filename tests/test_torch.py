"""tkern.torch's functions: their gradients, which of them are computed, and what autograd may ask of them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tkern  # noqa: E402
import tkern.torch as tt  # noqa: E402
from tests.conftest import why_no_mps  # noqa: E402
from tests.torch_cases import CALLS, Call, draw  # noqa: E402
from tkern import runtime  # noqa: E402
from tkern.errors import AutogradError, DTypeError, OptionError  # noqa: E402
from tkern.spec import as_outputs  # noqa: E402

_CALL = {call.name: call for call in CALLS}
_EACH = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)


def _same(got: Any, want: Any) -> None:
    for g, w in zip(got, want, strict=True):
        assert torch.equal(g, torch.as_tensor(w))


def _spied(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[tuple[str, dict[str, Any]]]:
    """Note each call of tkern's public functions, with its keyword arguments."""
    calls: list[tuple[str, dict[str, Any]]] = []
    for name in names:
        real = getattr(tkern, name)

        def spy(*args: Any, _real: Any = real, _name: str = name, **kwargs: Any) -> Any:
            calls.append((_name, kwargs))
            return _real(*args, **kwargs)

        monkeypatch.setattr(tkern, name, spy)
    return calls


# Attention's kernels take most of a minute to compile for a device in software.
@pytest.mark.parametrize("name", ["rms_norm", "conv2d", "max_pool2d"])
def test_outputs_and_gradients_are_those_of_the_public_functions(name: str, backend: str) -> None:
    _check_bits(_CALL[name])


def test_attention_is_the_public_function_too() -> None:
    _check_bits(_CALL["attention"])


def _check_bits(call: Call) -> None:
    tensors = call.tensors()
    outputs, cotangents = call.outputs(*tensors), call.cotangents()
    host = call.forward(*call.arrays)
    _same(outputs, host[: len(outputs)] if isinstance(host, tuple) else (host,))
    got = torch.autograd.grad(outputs, tensors, cotangents)
    _same(got, call.backward(*(c.numpy() for c in cotangents), *call.arrays))
    _same(tensors, call.arrays)


@_EACH
def test_gradients_are_those_of_differences(call: Call) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Input #.*double precision")
        # Steps of 2e-3 lose 6e-5 to float32 for outputs around 1. Two runs must give the same bits (nondet_tol = 0).
        assert torch.autograd.gradcheck(call.outputs, call.tensors(), eps=2e-3, atol=4e-3, rtol=1e-2)


def test_convolution_computes_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    call = _CALL["conv2d"]
    want, of = call.gradients(), ("conv2d_backward_input", "conv2d_backward_weight", "conv2d_backward_bias")
    calls = _spied(monkeypatch, *of)
    for needed in ("100", "010", "001", "110", "011"):
        calls.clear()
        tensors = call.tensors(needed)
        call.outputs(*tensors)[0].backward(call.cotangents()[0])
        assert [name for name, _ in calls] == [name for name, need in zip(of, needed, strict=True) if need == "1"]
        for tensor, gradient, need in zip(tensors, want, needed, strict=True):
            assert tensor.grad is None if need == "0" else torch.equal(tensor.grad, gradient)


def test_attention_computes_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    call = _CALL["attention"]
    want, calls = call.gradients(), _spied(monkeypatch, "attention_backward")
    for needed, wrt in (("0100", ("k",)), ("1001", ("q", "bias")), ("1111", ("q", "k", "v", "bias"))):
        calls.clear()
        tensors = call.tensors(needed)
        torch.autograd.backward(call.outputs(*tensors), call.cotangents())
        assert [kwargs["wrt"] for _, kwargs in calls] == [wrt]
        for tensor, gradient, need in zip(tensors, want, needed, strict=True):
            assert tensor.grad is None if need == "0" else torch.equal(tensor.grad, gradient)


def test_nothing_is_computed_backward_without_a_need(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _spied(monkeypatch, "rms_norm_backward", "max_pool2d_backward")
    for name in ("rms_norm", "max_pool2d"):
        call = _CALL[name]
        x, *rest = call.tensors("0" * len(call.arrays))
        assert not call.outputs(x, *rest)
        with torch.no_grad():
            assert not call.outputs(*call.tensors())
    x, w = _CALL["rms_norm"].tensors("01")
    tt.rms_norm(x, w).sum().backward()
    assert x.grad is None
    assert [name for name, _ in calls] == ["rms_norm_backward"]


@pytest.mark.parametrize("used", ["out", "lse", "both"])
def test_a_loss_may_use_out_or_lse_or_both(used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = _CALL["attention"]
    dout, dlse = call.cotangents()
    zero = torch.zeros_like
    want = {"out": (dout, zero(dlse)), "lse": (zero(dout), dlse), "both": (dout, dlse)}[used]
    calls = _spied(monkeypatch, "attention_backward")
    tensors = call.tensors()
    out, lse = call.outputs(*tensors)
    loss = {"out": (out * dout).sum(), "lse": (lse * dlse).sum(), "both": (out * dout).sum() + (lse * dlse).sum()}[used]
    loss.backward()
    _same([t.grad for t in tensors], call.backward(*(c.numpy() for c in want), *call.arrays))
    assert (calls[0][1]["dlse"] is None) == (used == "out")
    assert len(calls) == 2


def test_outputs_that_no_loss_uses_ask_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return None

    calls = _spied(monkeypatch, "attention_backward", "max_pool2d_backward")
    for name in ("attention", "max_pool2d"):
        tensors = _CALL[name].tensors()
        outputs = [Dropped.apply(one) for one in _CALL[name].outputs(*tensors)]
        sum(one.sum() for one in outputs).backward()
        assert all(t.grad is None for t in tensors)
    assert not calls


def test_indices_have_no_gradient() -> None:
    (x,) = _CALL["max_pool2d"].tensors()
    y, indices = tt.max_pool2d(x, 3, return_indices=True)
    assert y.requires_grad
    assert not indices.requires_grad
    assert indices.dtype == torch.uint8
    _same((y, indices), tkern.max_pool2d(x.detach().numpy(), 3))


@pytest.mark.parametrize("ties", ["first", "split", "all"])
def test_ties_are_those_that_were_asked_for(ties: str) -> None:
    x = torch.tensor(np.random.default_rng(3).integers(0, 3, (2, 3, 7, 6)).astype(np.float32), requires_grad=True)
    dy = _CALL["max_pool2d"].cotangents()[0]
    options: dict[str, Any] = {"stride": 2, "padding": 1, "ties": ties}
    tt.max_pool2d(x, 3, **options).backward(dy)
    want = tkern.oracle.max_pool2d_backward(x.detach().numpy(), dy.numpy(), 3, **options)
    np.testing.assert_allclose(x.grad.numpy(), want, atol=1e-5)


@_EACH
def test_gradients_come_in_every_layout(call: Call) -> None:
    plain = call.cotangents()
    want = call.gradients(*plain)
    turned = [c.transpose(-1, -2).contiguous().transpose(-1, -2) for c in plain]
    assert not any(t.is_contiguous() for t in turned)
    _same(call.gradients(*turned), want)
    # The gradient that .sum() sends back: one number, with steps of 0.
    tensors = call.tensors()
    sum(one.sum() for one in call.outputs(*tensors)).backward()
    _same([t.grad for t in tensors], call.gradients(*(torch.ones_like(c) for c in plain)))


@_EACH
def test_a_second_derivative_is_refused(call: Call) -> None:
    tensors = call.tensors()
    # These gradients depend on what was saved alone: torch's own guard would take them for constants.
    first = torch.autograd.grad(call.outputs(*tensors), tensors, call.cotangents(), create_graph=True)
    _same([one.detach() for one in first], call.gradients())
    penalty = tensors[0].sum() + first[0].square().sum()
    with pytest.raises(AutogradError, match="a backward through a backward"):
        penalty.backward()


@_EACH
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_transforms_are_refused(call: Call) -> None:
    tensors = call.tensors()
    plain = [t.detach() for t in tensors]

    def total(first: Any) -> Any:
        return sum(one.sum() for one in as_outputs(call.run(first, *plain[1:])))

    for transform in (torch.func.vmap, torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        with pytest.raises(AutogradError, match=r"torch\.func"):
            transform(total)(plain[0])
    outputs = call.outputs(*tensors)
    with pytest.raises(AutogradError, match="is_grads_batched"):
        torch.autograd.grad(outputs[0], tensors[0], torch.ones(2, *outputs[0].shape), is_grads_batched=True)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(plain[0], plain[0])
        with pytest.raises(AutogradError, match="no forward-mode derivatives"):
            call.run(dual, *plain[1:])
    with pytest.raises(DTypeError, match=r"outside of torch\.jit\.trace"):
        torch.jit.trace(call.run, tuple(plain))


@_EACH
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints(call: Call, use_reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    tensors = call.tensors()
    results = checkpoint(call.run, *tensors, use_reentrant=use_reentrant)
    torch.autograd.backward([one for one in as_outputs(results) if one.requires_grad], call.cotangents())
    _same([t.grad for t in tensors], call.gradients())


def test_what_was_saved_and_then_written_is_noticed() -> None:
    for call, at in [(one, at) for one in CALLS for at in range(len(one.arrays))]:
        # Pooling keeps no image, convolution no bias.
        kept = not (call.name == "max_pool2d" or (call.name == "conv2d" and at == 2))
        tensors = call.tensors()
        outputs = call.outputs(*tensors)
        with torch.no_grad():
            tensors[at].add_(1)
        if kept:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(outputs, tensors, call.cotangents())
        else:
            _same(torch.autograd.grad(outputs, tensors, call.cotangents()), call.gradients())
    out, lse = _CALL["attention"].outputs(*_CALL["attention"].tensors())
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (out.sum() + lse.sum()).backward()


def test_a_graph_may_be_used_twice() -> None:
    call = _CALL["rms_norm"]
    tensors = call.tensors()
    (y,) = call.outputs(*tensors)
    for _ in range(2):
        y.backward(call.cotangents()[0], retain_graph=True)
    _same([t.grad for t in tensors], [2 * one for one in call.gradients()])


def test_a_compiled_graph_breaks_and_is_right() -> None:
    torch._dynamo.reset()
    module = tt.RMSNorm(37, eps=0.3)

    def net(x: Any, w: Any) -> Any:
        return module((tt.rms_norm(x.sin(), w, eps=0.3, offset=1.0) * 2).cos()) + 1

    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    call = _CALL["rms_norm"]
    plain, compiled = call.tensors(), call.tensors()
    want, got = net(*plain), torch.compile(net, backend=backend)(*compiled)
    assert torch.equal(got, want)
    for y in (want, got):
        y.backward(call.cotangents()[0])
    _same([t.grad for t in compiled], [t.grad for t in plain])
    assert len(graphs) == 3
    with pytest.raises(torch._dynamo.exc.Unsupported, match="function rms_norm"):
        torch.compile(net, backend="eager", fullgraph=True)(*plain)


def test_autocast_changes_nothing_but_what_comes_in() -> None:
    call = _CALL["rms_norm"]
    x, w = call.tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _same(call.outputs(x, w), call.outputs(*call.tensors()))
        halved = torch.nn.functional.linear(x, torch.eye(37))
        with pytest.raises(DTypeError, match=r"x: expected float32, got torch\.bfloat16; write x\.float\(\)"):
            tt.rms_norm(halved, w)
        tt.rms_norm(halved.float(), w).sum().backward()
    assert x.grad.dtype == torch.float32


@_EACH
def test_other_types_and_places_are_refused(call: Call) -> None:
    for at in range(len(call.arrays)):
        tensors = call.tensors()
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            given = [t.to(dtype) if k == at else t for k, t in enumerate(tensors)]
            with pytest.raises(DTypeError, match=rf"expected float32, got {dtype}; write \w+\.float\(\)"):
                call.run(*given)
        with pytest.raises(DTypeError, match="expected a torch tensor of float32, got numpy.ndarray"):
            call.run(*(t.detach().numpy() if k == at else t for k, t in enumerate(tensors)))
        with pytest.raises(DTypeError, match="meta"):
            call.run(*(t.to("meta") if k == at else t for k, t in enumerate(tensors)))


def test_options_are_refused_before_backward() -> None:
    q, k, v, _ = _CALL["attention"].tensors()
    with pytest.raises(OptionError, match="ties: expected one of first, split, all, got 'last'"):
        tt.max_pool2d(q, 2, ties="last")
    with pytest.raises(OptionError, match="key_mask: expected a tensor without a gradient"):
        tt.attention(q, k, v, key_mask=torch.ones(2, 7, requires_grad=True), mask_threshold=0.5)
    with pytest.raises(DTypeError, match="key_mask: expected a torch tensor, got ndarray"):
        tt.attention(q, k, v, key_mask=np.ones((2, 7), bool))


def test_threads_take_turns() -> None:
    wanted = {call.name: call.gradients() for call in CALLS}
    wrong: list[str] = []

    def work(call: Call) -> None:
        for _ in range(5):
            tensors = call.tensors()
            outputs = call.outputs(*tensors)
            got: list[Any] = []
            # Backward in a thread of its own, as autograd has one for each GPU.
            other = threading.Thread(
                target=lambda: got.extend(torch.autograd.grad(outputs, tensors, call.cotangents()))  # noqa: B023
            )
            other.start()
            other.join()
            wrong.extend(call.name for g, w in zip(got, wanted[call.name], strict=True) if not torch.equal(g, w))

    threads = [threading.Thread(target=work, args=(call,)) for call in CALLS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_tensors_of_a_gpu(device: str) -> None:
    why_not = why_no_mps(torch) if device == "mps" else "" if torch.cuda.is_available() else "torch sees no CUDA device"
    if why_not:
        pytest.skip(why_not)
    for call in CALLS:
        tensors = call.tensors(device=device)
        outputs = call.outputs(*tensors)
        got = torch.autograd.grad(outputs, tensors, [c.to(device) for c in call.cotangents()])
        assert all(one.device.type == device for one in (*outputs, *got))
        _same([one.cpu() for one in got], call.gradients())


def test_backward_runs_on_the_backend_that_is_on_then(backend: str) -> None:
    x, w = _CALL["rms_norm"].tensors()
    (dy,) = _CALL["rms_norm"].cotangents()
    with tkern.using("cpu"):
        y = tt.rms_norm(x, w)
        _, rstd = tkern.rms_norm(x, w)
    assert runtime.current() == backend
    got = torch.autograd.grad(y, (x, w), dy)
    _same(got, tkern.rms_norm_backward(x, w, dy, rstd=rstd)[:2])


def _resident() -> int:
    """Return the bytes of this process that are in memory."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(os.getpid())])) * 1024


def test_memory_does_not_grow() -> None:
    # RMSNorm keeps 100 KB in a step, the others a few: 1000 steps that leak are 100 MB.
    x, w = torch.tensor(draw(64, 3, 128)).requires_grad_(), torch.tensor(draw(128)).requires_grad_()
    small = [(call, call.tensors(), call.cotangents()) for call in CALLS]

    def step() -> None:
        y = tt.rms_norm(x, w)
        for call, tensors, cotangents in small:
            torch.autograd.backward(call.outputs(*tensors), cotangents)
            for one in tensors:
                one.grad = None
        y.sum().backward()
        x.grad = w.grad = None

    for _ in range(100):
        step()
    before = _resident()
    for _ in range(1000):
        step()
    assert _resident() - before < 20e6


def test_the_example_in_the_docs_runs() -> None:
    text = (Path(__file__).parent.parent / "docs" / "torch.md").read_text(encoding="utf-8")
    shown: dict[str, Any] = {}
    exec(text.split("```python\n", 1)[1].split("```", 1)[0], shown)
    assert len(shown["losses"]) == 20
    assert shown["losses"][-1] < shown["losses"][0] / 2


def test_without_torch_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import tkern.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ModuleNotFoundError: tkern.torch needs PyTorch: pip install tkern[torch]" in done.stderr
