"""Where the commands' words go: results to stdout, everything said about them to stderr.

A result is drawn for its reader: a table on a terminal, tab-separated lines in a pipe, JSON with
`--json`. rich is imported only when stdout is a terminal, which keeps scripts fast to start.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
from collections.abc import Callable, Sequence

from streamlog import display

Advance = Callable[[int, int], None]
"""Takes how much is done, and how much there is to do."""

OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130


class WrongUsageError(Exception):
    """The command line itself is wrong (exit code 2)."""


class BadInputError(Exception):
    """What was piped in cannot be sent (exit code 1)."""


def show(grids: Sequence[display.Grid], data: object, *, as_json: bool) -> None:
    """Print a result: `data` as JSON, or the tables."""
    if as_json:
        show_json(data)
    elif sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        for grid in grids:
            console.print(display.rich_table(grid))
    else:
        sys.stdout.write("\n".join(display.text_table(grid) for grid in grids))


def show_json(data: object) -> None:
    """Print one JSON value on one line."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False) + "\n")


def done(message: str, data: object, *, as_json: bool) -> None:
    """Say that a change was made."""
    if as_json:
        show_json(data)
    else:
        sys.stdout.write(message + "\n")


def note(message: str) -> None:
    """A remark for the person at the terminal, on stderr: never part of the result."""
    _write_error(message + "\n")


class Warnings(logging.Handler):
    """What the library logs, said in the program's own way: a line each, and no traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line to stderr."""
        note(f"warning: {display.printable(record.getMessage())}")


def problem(error: BaseException, message: str, *, as_json: bool) -> None:
    """Report an error on stderr: one line, red on a terminal, an object with `--json`."""
    if as_json:
        body = {"error": {"type": type(error).__name__, "message": message}}
        _write_error(json.dumps(body, ensure_ascii=False) + "\n")
        return
    red, plain = ("\x1b[31m", "\x1b[0m") if _coloured(sys.stderr.isatty()) else ("", "")
    text = "\n".join(display.printable(line) for line in message.splitlines())
    _write_error(f"{red}error:{plain} {text}\n")


def stdout_watch() -> Callable[[], bool]:
    """A function that tells whether whoever read our stdout has gone.

    Without it, `consume | head -1` would hang until the next record came to be written.
    """
    if not hasattr(select, "poll"):
        return lambda: False
    try:
        poller = select.poll()
        # No events asked for: errors and hang-ups are always reported.
        poller.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return lambda: False
    return lambda: any(event & (select.POLLERR | select.POLLNVAL) for _, event in poller.poll(0))


def abandon_stdout() -> None:
    """After a broken pipe: what is still buffered goes nowhere, so that Python exits silently."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, sys.stdout.fileno())
    finally:
        os.close(devnull)


def _coloured(terminal: bool) -> bool:
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _write_error(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        # Nobody reads stderr any more; the exit code still tells.
        return
