"""A progress bar on stderr while a person watches; otherwise nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.cli import output


@contextmanager
def bar(label: str, *, quiet: bool = False) -> Iterator[output.Advance]:
    """Yields what to call with (done, total)."""
    if quiet or not sys.stderr.isatty():
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    drawn = Progress(
        TextColumn(label),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with drawn:
        task = drawn.add_task("", total=None)
        yield lambda done, total: drawn.update(task, completed=done, total=max(total, 1))


def _silent(_: int, __: int) -> None:
    """Nobody watches."""
