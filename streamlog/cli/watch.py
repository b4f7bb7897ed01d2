"""`--watch [SECONDS]`: the same view again and again, until Ctrl-C or a closed pipe.

A terminal is redrawn in place; in a pipe every look is a block (with `--json` a line) of its own.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from streamlog import display
from streamlog.cli import output
from streamlog.cli.output import WrongUsageError
from streamlog.clock import SystemClock
from streamlog.model import to_datetime

DEFAULT_SECONDS = "2"
_LEAST_SECONDS = 0.1
_SLICE_SECONDS = 0.2
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR = "\x1b[2J"

Watch = Annotated[
    str | None,
    typer.Option(
        "--watch",
        "-w",
        metavar="[SECONDS]",
        help=f"Look again every so many seconds ({DEFAULT_SECONDS} unless told), until Ctrl-C.",
    ),
]

View = tuple[Sequence[display.Grid], object]


class WatchCommand(TyperCommand):
    """A command whose `--watch` may stand without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default where `--watch` is not followed by a number."""
        full: list[str] = []
        for position, word in enumerate(args):
            full.append(word)
            if word in ("--watch", "-w") and not _is_number(args[position + 1 : position + 2]):
                full.append(DEFAULT_SECONDS)
        parsed: list[str] = super().parse_args(ctx, full)
        return parsed


def interval(text: str | None) -> float | None:
    """The seconds that `--watch` says; None without it."""
    if text is None:
        return None
    seconds = float(text) if _is_number([text]) else -1.0
    if not _LEAST_SECONDS <= seconds <= 86_400:
        raise WrongUsageError(
            f"--watch {text}: give seconds from {_LEAST_SECONDS} to 86400, or none"
        )
    return seconds


def show(look: Callable[[], View], seconds: float | None, *, as_json: bool) -> None:
    """Show what `look` returns, once or every `seconds`."""
    if seconds is None:
        output.show(*look(), as_json=as_json)
        return
    clock = SystemClock()
    reader_gone = output.stdout_watch()
    redraw = sys.stdout.isatty() and not as_json
    first = True
    while True:
        grids, data = look()
        now = display.moment(to_datetime(clock.time_ms()))
        if redraw:
            _redraw(grids, f"every {seconds:g} s, Ctrl-C ends · {now}", clear=first)
        elif as_json:
            output.show_json(data)
        else:
            sys.stdout.write(("" if first else "\n") + f"# {now}\n")
            output.show(grids, data, as_json=False)
        sys.stdout.flush()
        first = False
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0:
            if reader_gone():
                return
            clock.sleep(min(left, _SLICE_SECONDS))


def _redraw(grids: Sequence[display.Grid], line: str, *, clear: bool) -> None:
    """Over what was drawn before, line by line, so that nothing flickers."""
    from rich.console import Console

    console = Console(highlight=False)
    drawn = io.StringIO()
    page = Console(
        file=drawn,
        highlight=False,
        force_terminal=True,
        width=console.width,
        no_color=console.no_color,
        color_system="auto" if console.color_system is not None else None,
    )
    page.print(line, style="dim")
    for grid in grids:
        page.print(display.rich_table(grid))
    # What does not fit would scroll, and the next drawing would begin in the wrong place.
    lines = drawn.getvalue().rstrip("\n").split("\n")[: max(1, console.height - 1)]
    text = "".join(f"{row}{_CLEAR_LINE}\n" for row in lines)
    sys.stdout.write((_CLEAR if clear else "") + _HOME + text + _CLEAR_BELOW)


def _is_number(words: Sequence[str]) -> bool:
    try:
        return bool(words) and float(words[0]) == float(words[0])
    except ValueError:
        return False
