"""Brokers as real processes, started by the command line as people start them."""

from __future__ import annotations

import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from integration.program import command, environment

SECONDS = 60.0
_READY = re.compile(r"listening on (?P<address>\S+) \(node (?P<node>\d+)\)")


class BrokerProcess:
    """A broker at work; `address` is what clients take for `bootstrap.servers`."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.process = process
        self._log = log
        match = _READY.fullmatch(self._first_line())
        assert match is not None, self.logs()
        self.address = match["address"]
        self.node = int(match["node"])

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def logs(self) -> str:
        """What it has logged so far."""
        self._log.seek(0)
        return self._log.read().decode()

    def wait_for_log(self, words: str, seconds: float = SECONDS) -> str:
        """Waits until it has logged this; all that it logged so far."""
        deadline = time.monotonic() + seconds
        while words not in (seen := self.logs()):
            assert time.monotonic() < deadline, f"{words!r} was never logged:\n{seen}"
            assert self.process.poll() is None, f"it ended:\n{seen}"
            time.sleep(0.02)
        return seen

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """As a power cut: no farewell."""
        self.process.kill()
        self.process.wait(SECONDS)

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.terminate()
        return self.process.wait(SECONDS)

    def _first_line(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        assert ready, f"no line came:\n{self.logs()}"
        return self.process.stdout.readline().decode().rstrip("\n")


@contextmanager
def broker_process(
    root: Path | str,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    listen: str | None = "127.0.0.1:0",
) -> Iterator[BrokerProcess]:
    """Starts `streamlog broker` and waits until it serves; it never outlives the block."""
    where = () if listen is None else ("--listen", listen)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command("broker", *where, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(root, variables),
        )
        with process:
            try:
                yield BrokerProcess(process, log)
            finally:
                process.kill()
