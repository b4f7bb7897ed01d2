"""The real program `streamlog`, run as people and scripts run it: in a process, through pipes or a terminal.

Every run has a time limit, and none may print a traceback: `Done.check` looks for it whatever the test is
about.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import streamlog
from streamlog.model import Record

SECONDS = 60.0

# prctl(2) and capabilities(7).
_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE = 1
_CAP_DAC_READ_SEARCH = 2
_CAP_FOWNER = 3


class Done(NamedTuple):
    """A run that ended: its exit code and what it wrote."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    def check(self) -> Done:
        assert "Traceback" not in self.err
        assert "this is a bug" not in self.err
        return self


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "streamlog.cli", *arguments]


def environment(
    root: Path | str | None, variables: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a run: the root is told by STREAMLOG_ROOT, unless it is None."""
    hidden = {"STREAMLOG_ROOT", "STREAMLOG_DEBUG", "NO_COLOR", "FORCE_COLOR", "COLUMNS"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    given = {} if root is None else {"STREAMLOG_ROOT": str(root)}
    return {**kept, "TERM": "xterm-256color", **given, **(variables or {})}


def run(
    root: Path | str | None,
    *arguments: str,
    stdin: bytes = b"",
    stdout: int | IO[bytes] = subprocess.PIPE,
    before: Callable[[], None] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Done:
    """Run one command to its end; `before` is called in the child before the program starts."""
    done = subprocess.run(
        command(*arguments),
        input=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment(root, variables),
        timeout=SECONDS,
        check=False,
        preexec_fn=before,
    )
    return Done(done.returncode, done.stdout or b"", done.stderr.decode()).check()


def ok(
    root: Path | str | None,
    *arguments: str,
    stdin: bytes = b"",
    variables: Mapping[str, str] | None = None,
) -> Done:
    """Run one command that must succeed."""
    done = run(root, *arguments, stdin=stdin, variables=variables)
    assert done.code == 0, done.err
    return done


def refused(root: Path | str | None, *arguments: str, stdin: bytes = b"", code: int = 1) -> str:
    """Run one command that must fail with this code; returns its message."""
    done = run(root, *arguments, stdin=stdin)
    assert done.code == code, done
    assert done.out == b""
    assert done.err.startswith("error: ")
    return done.err.removeprefix("error: ").rstrip("\n")


class Wrong(NamedTuple):
    """A command that must fail: as one would type it, exit code, a part of its message, input."""

    typed: str
    code: int
    words: str
    stdin: bytes = b""


def all_refused(root: Path, cases: Sequence[Wrong]) -> None:
    """Run commands that must fail, a few at a time because each one waits for Python to start."""

    def message(case: Wrong) -> str:
        return refused(root, *shlex.split(case.typed), stdin=case.stdin, code=case.code)

    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        for case, said in zip(cases, pool.map(message, cases), strict=True):
            assert case.words in said, case.typed
            # One line that fits a screen, whatever the input was (typer adds where to find help).
            assert len(said) < 500, case.typed
            assert said.count("\n") <= 1, case.typed


class Running:
    """A command that runs beside the test."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def line(self) -> str:
        """The next line of its output, which must come in time."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        assert ready, "no line came"
        return self.process.stdout.readline().decode().rstrip("\n")

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def finish(self) -> Done:
        """End its input and wait for it."""
        out, err = self.process.communicate(timeout=SECONDS)
        return Done(self.process.returncode, out, err.decode()).check()


@contextmanager
def running(root: Path | str, *arguments: str) -> Iterator[Running]:
    """Start a command, its stdin and stdout being unbuffered pipes; it never outlives the block."""
    process = subprocess.Popen(
        command(*arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(root),
        bufsize=0,
    )
    with process:
        try:
            yield Running(process)
        finally:
            process.kill()


def on_terminal(
    root: Path | str | None,
    *arguments: str,
    answers: Sequence[tuple[str, bytes]] = (),
    stdin: IO[bytes] | None = None,
    columns: int = 100,
    variables: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run one command on a terminal; each answer is typed once its text was seen.

    Returns the exit code and all that the terminal was sent.
    """
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        # Else Ctrl-C makes the terminal drop what it has not shown yet, and the test counts too few.
        mode = termios.tcgetattr(theirs)
        mode[3] |= termios.NOFLSH
        termios.tcsetattr(theirs, termios.TCSANOW, mode)
        process = subprocess.Popen(
            command(*arguments),
            stdin=theirs if stdin is None else stdin,
            stdout=theirs,
            stderr=theirs,
            env=environment(root, variables),
            preexec_fn=_take_terminal,  # noqa: PLW1509 - Ctrl-C reaches who owns the terminal
        )
        os.close(theirs)
        theirs = -1
        with process:
            try:
                seen = _converse(ours, list(answers))
                code = process.wait(timeout=SECONDS)
            finally:
                process.kill()
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
    assert "Traceback" not in seen
    return code, seen


def _take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


def _converse(terminal: int, answers: list[tuple[str, bytes]]) -> str:
    seen = typed = b""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 1.0)
        if not ready:
            # Between the prompt and the read, Python notes the key but reads on: press it again.
            if typed == b"\x03":
                os.write(terminal, typed)
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:
            # Linux: EIO once the last process has closed the terminal.
            data = b""
        if not data:
            return seen.decode()
        seen += data
        if answers and answers[0][0].encode() in seen:
            typed = answers.pop(0)[1]
            os.write(terminal, typed)
    raise AssertionError(f"the command did not end; the terminal shows {seen!r}")


def obey_permissions() -> None:
    """In a child: file permissions count, even for root."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH, _CAP_FOWNER):
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


@contextmanager
def permissions(folder: Path, directories: int, files: int) -> Iterator[None]:
    """Give all below a folder these permissions, and writable ones again afterwards."""

    def set_all(directory_mode: int, file_mode: int) -> None:
        for path, _, names in os.walk(folder, topdown=False):
            for name in names:
                os.chmod(os.path.join(path, name), file_mode)
            os.chmod(path, directory_mode)

    set_all(directories, files)
    try:
        yield
    finally:
        os.chmod(folder, 0o755)
        for path, names, _ in os.walk(folder):
            for name in names:
                os.chmod(os.path.join(path, name), 0o755)
        set_all(0o755, 0o644)


def topic_with(root: Path, name: str, *values: bytes, partitions: int = 1) -> None:
    """Make a topic whose partition 0 holds these values, a commit each."""
    with streamlog.connect(root) as log:
        log.create_topic(name, partitions=partitions)
        with log.producer() as producer:
            for value in values:
                producer.send(name, value, partition=0).result(SECONDS)


def values(root: Path, topic: str) -> list[bytes | None]:
    """The values of a topic, partition after partition."""
    with streamlog.connect(root, create=False) as log:
        ends = {part.partition: part.end for part in log.describe(topic).partitions}
        with log.consumer(topic, auto_offset_reset="earliest") as consumer:
            records: list[Record] = []
            while len(records) < sum(ends.values()):
                records += consumer.poll(timeout_ms=1000)
    return [record.value for record in sorted(records, key=lambda r: (r.partition, r.offset))]


def files(root: Path, pattern: str) -> list[Path]:
    """Files below a root, in the order of their names; there is at least one."""
    found = sorted(root.rglob(pattern))
    assert found
    return found
