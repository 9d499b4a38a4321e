"""Typed errors. Each names the argument, what was expected, what came, and what to do.

tkern raises one of these before Taichi can abort the process, read past an array or fall back to another
backend. Nothing is cast, truncated or moved in silence.
"""

from __future__ import annotations

__all__ = [
    "AliasError",
    "AutogradError",
    "BackendUnavailable",
    "DTypeError",
    "OptionError",
    "ShapeError",
    "SizeLimitError",
    "TkernError",
]


class TkernError(Exception):
    """Base of every error that tkern raises on purpose.

    ``argument`` is the name of the argument at fault, ``expected`` and ``got`` say what was wanted and what came
    (texts, for a person), ``hint`` what to do about it; each may be None.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        argument: str | None = None,
        expected: object = None,
        got: object = None,
        hint: str | None = None,
    ) -> None:
        self.argument = argument
        self.expected = expected
        self.got = got
        self.hint = hint
        if message is None:
            message = f"{argument}: expected {expected}, got {got}"
        if hint is not None:
            message = f"{message}; {hint}"
        super().__init__(message)


class ShapeError(TkernError, ValueError):
    """An array has the wrong rank, size or length."""


class OptionError(TkernError, ValueError):
    """An option has a value that the op does not take."""


class AliasError(TkernError, ValueError):
    """An output shares memory with another argument, or may not be written."""


class SizeLimitError(TkernError, ValueError):
    """An array has more elements than a backend's 32-bit indices reach."""


class DTypeError(TkernError, TypeError):
    """An argument is no array that tkern takes, or has the wrong element type. Nothing is cast in silence."""


class BackendUnavailable(TkernError, RuntimeError):
    """A backend was asked for that this machine does not have, or Taichi is running something else."""


class AutogradError(TkernError, RuntimeError):
    """A derivative was asked for that tkern does not have: a second one, a forward-mode one, one by torch.func."""
