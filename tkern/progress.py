"""A progress bar on the terminal for whatever takes over two seconds; nothing where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Steps", "steps"]


class Steps:
    """A bar that has been started: ``step(text)`` says what begins now and that what came before is done."""

    def __init__(self, progress: Progress | None, task: int) -> None:
        self._progress = progress
        self._task = task
        self._begun = False

    def more(self, count: int) -> None:
        """Say that there are so many steps more than was known."""
        if self._progress is not None:
            total = self._progress.tasks[self._task].total or 0
            self._progress.update(self._task, total=total + count)  # type: ignore[arg-type]

    def step(self, text: str) -> None:
        """Begin the next step."""
        if self._progress is not None:
            self._progress.update(self._task, description=text, advance=1 if self._begun else 0)  # type: ignore[arg-type]
        self._begun = True


@contextmanager
def steps(total: int, title: str) -> Iterator[Steps]:
    """Show a bar of ``total`` steps on standard error while the block runs."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Steps(None, 0)
        return
    columns = (TextColumn("{task.description:<48}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Steps(progress, progress.add_task(title, total=total))
