"""The command line: parse, call the client, print. Nothing else prints; nothing imports this."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """The program `streamlog`: runs the command of `sys.argv` and exits with its code."""
    _fill_streams()
    # numpy would start a thread a core for linear algebra that nobody does here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        # Imported inside the `try`: Ctrl-C while Python still loads must end as quietly as later.
        from streamlog.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    _end(code)


def _fill_streams() -> None:
    """Give a standard stream that the caller closed (`>&-`) a harmless end.

    Python has None for it, and the next file opened would become descriptor 1 and get our output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor is the very one that is missing.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - it stays open to the end


def _end(code: int) -> NoReturn:
    """Exit without taking the interpreter apart, all being closed and written by now.

    It is faster, and Arrow now and then aborts the process (SIGABRT) while its idle threads are
    taken apart.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # Reported before, as far as anybody can be told; the exit code stays what it was.
            continue
    os._exit(code)
