"""What tkern's autograd functions have in common: what they take, and which derivatives they refuse."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from tkern.errors import AutogradError, DTypeError

__all__ = ["Function", "check", "check_device", "first_order", "uncompiled"]

_F = TypeVar("_F", bound=Callable[..., Any])


class Function(torch.autograd.Function):  # type: ignore[misc]
    """An autograd function without a forward-mode derivative."""

    @classmethod
    def call(cls, *arguments: Any) -> Any:
        """Run forward, and note it for autograd."""
        return cls.apply(*arguments)  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Refuse: raises AutogradError."""
        raise AutogradError(
            "tkern has no forward-mode derivatives", hint="differentiate backward, or use torch's own function here"
        )


class _Once(Function):
    """A gradient that cannot be differentiated again, but says so."""

    @staticmethod
    def forward(ctx: Any, gradient: Any, anchor: Any) -> Any:
        """Return the gradient."""
        return gradient

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Refuse: raises AutogradError."""
        raise AutogradError(
            "tkern's gradients have no derivatives of their own (a backward through a backward)",
            hint="use torch's own function where second derivatives are needed",
        )


def first_order(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Wrap a Function's backward so that differentiating its results raises AutogradError.

    torch's once_differentiable does so only where the incoming gradient has a history: where the saved tensors alone
    have one, it drops the derivative in silence.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        _refuse_transforms()
        with torch.no_grad():
            found = backward(ctx, *(None if one is None else _single(one) for one in gradients))
        if not torch.is_grad_enabled():  # without create_graph
            return found
        anchor = torch.empty(0, requires_grad=True)
        return tuple(None if one is None else _Once.call(one, anchor) for one in found)

    return wrapped


def check(name: str, value: Any, *, like: Any = None) -> None:
    """Check that argument ``name`` is a float32 tensor, on the device of ``like`` where that is given.

    Raises DTypeError, or AutogradError inside a transform of torch.func.
    """
    if not isinstance(value, torch.Tensor):
        raise DTypeError(
            argument=name,
            expected="a torch tensor of float32",
            got=f"{type(value).__module__}.{type(value).__qualname__}",
            hint="tkern's functions of the same name take NumPy arrays",
        )
    if value.dtype != torch.float32:
        written = f"write {name}.float(): " if value.dtype.is_floating_point else ""
        raise DTypeError(
            argument=name, expected="float32", got=str(value.dtype), hint=f"{written}nothing is cast in silence"
        )
    check_device(name, value, like)
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise DTypeError(argument=name, expected="a tensor outside of torch.jit.trace", got="one that is traced")
    _refuse_transforms()


def check_device(name: str, value: Any, like: Any) -> None:
    """Check that a tensor is on the device of ``like``, where that is given. Raises DTypeError."""
    if like is not None and value.device != like.device:
        raise DTypeError(argument=name, expected=f"a tensor on {like.device}, as the first", got=str(value.device))


def uncompiled(function: _F) -> _F:
    """Keep torch.compile out of a function: it breaks its graph there and calls the function as it is."""
    return cast(_F, torch.compiler.disable(function))  # type: ignore[no-untyped-call]


def _single(gradient: Any) -> Any:
    """Return a gradient without its history; a batch of them (is_grads_batched) is not one and cannot be detached."""
    try:
        return gradient.detach()
    except RuntimeError as error:
        raise _transformed() from error


def _refuse_transforms() -> None:
    # A private word of torch's; where it is missing, torch refuses by itself, without our hint.
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    if active is not None and active():
        raise _transformed()


def _transformed() -> AutogradError:
    return AutogradError(
        "tkern's functions cannot be transformed by torch.func (vmap, grad, jacrev, …) or run over a batch of "
        "gradients (is_grads_batched)",
        hint="call them on whole batches and differentiate with torch.autograd, one gradient at a time",
    )
