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
    "KernelError",
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


class KernelError(TkernError, RuntimeError):
    """A kernel's text is one that Taichi does not compile, or would end the process at.

    ``file`` and ``line`` (from 1) are the author's, ``text`` is that line, ``said`` what Taichi says of it ("" where
    it was not asked, because it would have ended the process), and ``rule`` the name of the rule of ``tkern lint``
    that is met, or None.
    """

    def __init__(
        self, what: str, *, file: str, line: int, text: str, said: str = "", rule: str | None = None, cure: str = ""
    ) -> None:
        self.file = file
        self.line = line
        self.text = text
        self.said = said
        self.rule = rule
        message = f"{file}:{line}: {text.strip()!r}: {what}"
        super().__init__(f"{message} [{rule}]" if rule else message, hint=f"write {cure}" if cure else None)


class AutogradError(TkernError, RuntimeError):
    """A derivative was asked for that tkern does not have: a second one, a forward-mode one, one by torch.func."""
