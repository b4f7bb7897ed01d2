"""What a broker counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.broker.call import Call


class Metrics:
    """Counters and histograms of one broker."""

    @contextmanager
    def request(self, call: Call) -> Iterator[None]:
        """Around one request."""
        yield

    @contextmanager
    def commit(self, requests: int) -> Iterator[None]:
        """Around one commit that takes the records of so many requests."""
        yield

    def tail(self, *, hit: bool) -> None:
        """A read was served from memory, or not."""
