"""tkern.torch's modules and scaled_dot_product_attention beside torch.nn's own."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tkern.torch as tt  # noqa: E402
from tests.torch_cases import draw  # noqa: E402
from tkern.errors import DTypeError, OptionError, ShapeError  # noqa: E402

_MODULES = {
    "RMSNorm": ((5, 37), {"eps": 0.3}, (3, 5, 37)),
    "RMSNorm, its own eps": ((37,), {}, (3, 5, 37)),
    "RMSNorm without a weight": ((37,), {"elementwise_affine": False}, (3, 5, 37)),
    "Conv2d": ((4, 6, (3, 2)), {"stride": (2, 1), "padding": (1, 0), "groups": 2}, (2, 4, 6, 5)),
    "Conv2d without a bias": ((4, 6, (3, 2)), {"bias": False, "padding": "valid", "groups": 2}, (2, 4, 6, 5)),
    "Conv2d, same": ((4, 6, (3, 2)), {"padding": "same", "dilation": (1, 3), "groups": 2}, (2, 4, 6, 5)),
    "Conv2d of one image": ((4, 6, (3, 2)), {"stride": (2, 1), "groups": 2}, (4, 6, 5)),
    "MaxPool2d": ((3, 2), {"padding": 1, "ceil_mode": True}, (2, 3, 7, 6)),
    "MaxPool2d of one image": ((3,), {"stride": 2}, (3, 7, 6)),
    "MaxPool2d with indices": ((3, 2), {"padding": 1, "return_indices": True}, (2, 3, 7, 6)),
}


def _close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def _both(ours: Any, theirs: Any, arrays: Any) -> None:
    """Compare outputs and gradients of the same call, with random gradients of the output."""
    results = []
    for run in (ours, theirs):
        tensors = [torch.tensor(a).requires_grad_() for a in arrays]
        out = run(*tensors)
        y, *rest = out if isinstance(out, tuple) else (out,)
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(5)))
        results.append((y.detach(), *rest, *(t.grad for t in tensors)))
    for got, want in zip(*results, strict=True):
        _close(got, want)


@pytest.mark.parametrize("name", _MODULES)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
def test_a_module_is_that_of_torch(name: str) -> None:
    of = name.split(",")[0].split()[0]
    args, kwargs, shape = _MODULES[name]
    args = (args,) if of == "RMSNorm" else args
    ours, theirs = getattr(tt, of)(*args, **kwargs), getattr(torch.nn, of)(*args, **kwargs)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(torch.from_numpy(draw(*parameter.shape)))
    theirs.load_state_dict(ours.state_dict())
    ours = getattr(tt, of)(*args, **kwargs)
    ours.load_state_dict(theirs.state_dict())
    _both(ours, theirs, [draw(*shape)])
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        _close(mine.grad, its.grad)
    assert inspect.signature(type(ours)) == inspect.signature(type(theirs))
    assert repr(ours) == repr(theirs)
    assert copy.deepcopy(ours).state_dict().keys() == theirs.state_dict().keys()


def test_modules_refuse_what_tkern_cannot_do() -> None:
    with pytest.raises(OptionError, match="padding_mode: expected \"zeros\", got 'reflect'"):
        tt.Conv2d(4, 6, 3, padding=1, padding_mode="reflect")
    with pytest.raises(ShapeError, match=r"input: expected \[N, C, H, W\] or \[C, H, W\], got \(4, 6\)"):
        tt.Conv2d(4, 6, 3)(torch.ones(4, 6))
    with pytest.raises(ShapeError, match=r"x: expected last axes \(5, 37\), got \(5, 36\)"):
        tt.RMSNorm((5, 37))(torch.ones(5, 36))
    with pytest.raises(DTypeError, match=r"weight: expected float32, got torch\.float16; write weight\.float\(\)"):
        tt.RMSNorm(37).half()(torch.ones(5, 37))
    for module in (tt.RMSNorm(6), tt.Conv2d(2, 3, 3), tt.MaxPool2d(2)):
        with pytest.raises(DTypeError, match=r"expected float32, got torch\.bfloat16; write \w+\.float\(\)"):
            module(torch.ones(2, 4, 6, dtype=torch.bfloat16))


# Leading axes, query heads and key heads (None: no such axis), the mask's shape and kind, options.
_ATTENTION: dict[str, tuple[Any, ...]] = {
    "plain": ((2,), 4, 4, None, {}),
    "causal is top-left": ((2,), 4, 4, None, {"is_causal": True, "scale": 0.3}),
    "groups of heads": ((2,), 4, 2, None, {"is_causal": True, "enable_gqa": True}),
    "added scores": ((2,), 4, 2, ((4, 5, 7), "float"), {"enable_gqa": True}),
    "scores for all heads": ((2,), 4, 4, ((2, 1, 5, 1), "float"), {}),
    "a mask of keys": ((2,), 4, 4, ((2, 1, 1, 7), "bool"), {}),
    "one mask of keys": ((2,), 4, 4, ((1, 7), "bool"), {}),
    "a mask of queries and keys": ((2,), 4, 4, ((5, 7), "bool"), {}),
    "five axes": ((3, 2), 4, 2, ((2, 1, 5, 7), "float"), {"enable_gqa": True}),
    "five axes, a mask for one": ((3, 2), 4, 4, ((3, 1, 1, 1, 7), "bool"), {}),
    "three axes": ((), 4, 4, ((4, 5, 7), "float"), {}),
    "two axes": ((), None, None, ((5, 7), "bool"), {}),
}


@pytest.mark.parametrize("name", _ATTENTION)
def test_attention_is_that_of_torch(name: str) -> None:
    lead, heads, kv_heads, mask, options = _ATTENTION[name]
    q, k, v = (
        draw(*lead, *(() if h is None else (h,)), s, d)
        for h, s, d in ((heads, 5, 8), (kv_heads, 7, 8), (kv_heads, 7, 6))
    )
    arrays, given = [q, k, v], None
    if mask is not None and mask[1] == "float":
        arrays.append(draw(*mask[0]))
    elif mask is not None:
        given = torch.from_numpy(draw(*mask[0]) > -0.4)
        # Every query sees a key.
        given[..., 0] = True

    def ours(q: Any, k: Any, v: Any, mask: Any = given) -> Any:
        return tt.scaled_dot_product_attention(q, k, v, mask, **options)

    def theirs(q: Any, k: Any, v: Any, mask: Any = given) -> Any:
        if heads != kv_heads:
            # As enable_gqa has it, which PyTorch 2.4 lacks.
            k, v = (a.repeat_interleave(heads // kv_heads, -3) for a in (k, v))
        plain = {name: value for name, value in options.items() if name != "enable_gqa"}
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, **plain)

    _both(ours, theirs, arrays)


def test_a_query_that_sees_no_key_is_out_of_it() -> None:
    q, k, v = (torch.tensor(draw(2, 4, s, d)).requires_grad_() for s, d in ((5, 8), (7, 8), (7, 6)))
    seen = torch.from_numpy(draw(5, 7) > 0)
    seen[:, 3], seen[2] = True, False
    hidden = torch.zeros(5, 7).masked_fill_(~seen, -torch.inf)
    dout = torch.from_numpy(draw(2, 4, 5, 6))
    got = []
    for mask in (seen, hidden):
        out = tt.scaled_dot_product_attention(q, k, v, mask)
        assert not out[:, :, 2].any()
        dq, dk, dv = torch.autograd.grad(out, (q, k, v), dout)
        assert not dq[:, :, 2].any()
        got.append((out, dq, dk, dv))
    for one, other in zip(*got, strict=True):
        assert torch.equal(one, other)
    # It has no part in the others' gradients.
    rows = [0, 1, 3, 4]
    few = tt.scaled_dot_product_attention(q[:, :, rows], k, v, seen[rows])
    for want, all_rows in zip(torch.autograd.grad(few, (k, v), dout[:, :, rows]), got[0][2:], strict=True):
        _close(all_rows, want)


def test_attention_refuses_what_it_cannot_do() -> None:
    q, k = torch.tensor(draw(2, 4, 5, 8)), torch.tensor(draw(2, 4, 7, 8))
    two = k[:, :2]
    attend = tt.scaled_dot_product_attention
    with pytest.raises(OptionError, match=r"dropout_p: expected 0: tkern has no dropout, got 0\.1"):
        attend(q, k, k, dropout_p=0.1)
    with pytest.raises(OptionError, match="attn_mask: expected None where is_causal"):
        attend(q, k, k, torch.ones(5, 7, dtype=torch.bool), is_causal=True)
    with pytest.raises(ShapeError, match="key: expected 4 heads, as query has, got 2; enable_gqa=True"):
        attend(q, two, two)
    with pytest.raises(ShapeError, match="key: expected heads that divide query's 4, got 3 heads"):
        attend(q, k[:, :3], k[:, :3], enable_gqa=True)
    with pytest.raises(ShapeError, match=r"value: expected shape \(2, 4, 7, 8\), got \(2, 2, 7, 8\)"):
        attend(q, k, two)
    with pytest.raises(ShapeError, match=r"key: expected shape \(2, 4, 7, 8\), got \(1, 4, 7, 8\)"):
        attend(q, k[:1], k)
    with pytest.raises(ShapeError, match="key: expected 4 axes, as query has, the last not empty, got"):
        attend(q, k[0], k[0])
    with pytest.raises(ShapeError, match=r"query: expected at least 2 axes, .* not empty, got \(2, 4, 5, 0\)"):
        attend(q[..., :0], k, k)
    with pytest.raises(
        ShapeError, match=r"attn_mask: expected a shape that broadcasts to \(2, 4, 5, 7\), got \(7, 5\)"
    ):
        attend(q, k, k, torch.ones(7, 5))
    with pytest.raises(DTypeError, match=r"attn_mask: expected a bool or float32 tensor, got torch\.int64"):
        attend(q, k, k, torch.ones(5, 7, dtype=torch.int64))
    with pytest.raises(DTypeError, match=r"query: expected float32, got torch\.float16; write query\.float\(\)"):
        attend(q.half(), k, k)
    with pytest.raises(ShapeError, match=r"query: expected \[\.\.\., H, L, E\] with enable_gqa"):
        attend(q[0, 0], k[0, 0], k[0, 0], enable_gqa=True)
