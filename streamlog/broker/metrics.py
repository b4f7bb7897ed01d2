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
