"""One maintenance loop a root: a lease, so that several schedulers do not do the work twice.

Only thrift, not safety: two jobs at once do no harm (rule 16). A term is an object put if absent, numbered
one above the last; its holder overwrites it while it works (`kept`). A term that did not change for `ttl`
of the watcher's own clock has lost its holder, and the next number is free for whoever puts it first.
Nobody's clock is compared with another's.

A broker that is the controller holds the lease too, so that it and a loop of the command line do not both
work. Its successor knows that it was replaced, and takes the next term without waiting.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.errors import StreamlogError
from streamlog.storage.objects import Objects

_log = logging.getLogger(__name__)
# So many beats may fail before a watcher takes the holder for dead.
_BEATS_A_TTL = 6


class Lease:
    """A claim on the maintenance of one root."""

    def __init__(
        self, objects: Objects, runtime: Runtime, ttl: float = 180.0, *, controller: bool = False
    ) -> None:
        self._objects = objects
        self._runtime = runtime
        self._ttl = ttl
        self._controller = controller
        self._me = {
            "id": runtime.ids.new(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "controller": controller,
        }
        self._term: int | None = None
        self._beats = 0
        self._seen: tuple[int, bytes | None] | None = None
        self._seen_at = 0.0

    @property
    def holder(self) -> str:
        """Who was seen holding it."""
        found = _read(self._seen[1] if self._seen else None)
        if "host" not in found or "pid" not in found:
            return "somebody"
        return f"{found['host']}, process {found['pid']}"

    def hold(self) -> bool:
        """Takes or keeps the lease; False while another holds it."""
        term = self._newest()
        if self._term is not None and term == self._term:
            self._beat()
            return True
        self._term = None
        if term > 0 and not self._forsaken(term):
            return False
        body = self._body()
        if not self._objects.put_if_absent(_path(term + 1), body, durable=False):
            return False
        self._term = term + 1
        self._objects.delete([_path(number) for number in self._numbers() if number < term])
        return True

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Beats in the background while its holder works, however long that takes."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(self._ttl / _BEATS_A_TTL):
                try:
                    if self._newest() != self._term:
                        return  # another took it: the work goes on, twice at worst
                    self._beat()
                except StreamlogError as error:
                    _log.warning("the lease could not be kept: %s", error)

        keeper = threading.Thread(target=beat, name="streamlog-lease", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            done.set()
            keeper.join()

    def release(self) -> None:
        """Lets the next one in at once."""
        if self._term is not None and self._newest() == self._term:
            self._objects.put(_path(self._term), b"")
        self._term = None

    def _forsaken(self, term: int) -> bool:
        data = self._objects.get(_path(term))
        if not data:
            return True  # released
        if self._controller and _read(data).get("controller") is True:
            return True  # the controller before us
        now = self._runtime.clock.monotonic()
        if self._seen != (term, data):
            self._seen, self._seen_at = (term, data), now
        return now - self._seen_at > self._ttl

    def _beat(self) -> None:
        self._beats += 1
        assert self._term is not None
        self._objects.put(_path(self._term), self._body())

    def _body(self) -> bytes:
        return json.dumps(self._me | {"beat": self._beats}).encode()

    def _numbers(self) -> list[int]:
        return sorted(int(name) for name in self._objects.names(paths.LEASE_DIR) if name.isdigit())

    def _newest(self) -> int:
        return max(self._numbers(), default=0)


def _read(data: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _path(term: int) -> str:
    return f"{paths.LEASE_DIR}/{term:012d}"
