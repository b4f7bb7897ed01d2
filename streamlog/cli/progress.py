"""How far `produce` is, drawn on stderr while a person watches; otherwise nothing."""

from __future__ import annotations

import os
import stat
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Progress:
    """A bar for a file, a pulse for a pipe; silent unless stderr is a terminal."""

    def __init__(self, descriptor: int, *, quiet: bool) -> None:
        self._total: int | None = None
        state = os.fstat(descriptor)
        if stat.S_ISREG(state.st_mode):
            self._total = state.st_size
        self._shown = not quiet and sys.stderr.isatty() and not os.isatty(descriptor)
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TransferSpeedColumn,
            )

            self._bar = Progress(
                BarColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TextColumn("{task.fields[records]:,} records"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total, records=0)
        return self

    def update(self, *, bytes_read: int, records: int) -> None:
        """Draw the new state (at most ten times a second, however often it is told)."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=bytes_read, records=records)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
