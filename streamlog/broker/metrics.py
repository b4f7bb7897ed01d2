"""What a broker counts, for Prometheus. Others call the methods; nobody else knows the names.

Everything counts from the start of the process, and is forgotten with it. Cheap enough for every request:
one or two microseconds a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import Collector

from streamlog.broker import apis
from streamlog.broker.call import Call
from streamlog.broker.kafka_errors import Code
from streamlog.clock import Clock, SystemClock
from streamlog.compaction.round import Round

_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
# Since when each counter counts: as many lines again, and all say when the process began.
disable_created_metrics()  # type: ignore[no-untyped-call]
# Those whose errors are told by partition. Metadata has them too, but seldom, and may have thousands.
_TWO_LEVELS = frozenset(
    {apis.PRODUCE, apis.FETCH, apis.LIST_OFFSETS, apis.OFFSET_COMMIT, apis.OFFSET_FETCH}
)
_NAMES = {
    value: name.title().replace("_", "")
    for name, value in vars(apis).items()
    if name.isupper() and isinstance(value, int)
}


class Request:
    """One request being counted; `answered` tells how it went."""

    __slots__ = ("_api", "_begun", "_error", "_metrics")

    def __init__(self, metrics: Metrics, api: int) -> None:
        self._metrics = metrics
        self._api = api
        self._error = 0

    def answered(self, body: Mapping[str, Any] | None) -> None:
        """Takes the error of the response as a whole, and those of its parts."""
        if body is None:
            return
        self._error = int(body.get("error_code", 0))
        if not self._error:
            for error in _errors(body, 2 if self._api in _TWO_LEVELS else 1):
                self._metrics.refused(self._api, error)

    def __enter__(self) -> Self:
        self._begun = self._metrics.now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._metrics.ended(self._api, self._error, self._metrics.now() - self._begun)


class Metrics:
    """Counters and histograms of one broker; several threads."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.now = (clock or SystemClock()).monotonic
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = self._counter("requests", "Requests by API and error.", "api", "error")
        self._refused = self._counter(
            "refusals",
            "Errors of parts of requests: topics, partitions, groups.",
            "api",
            "error",
        )
        self._seconds = self._histogram(
            "request_seconds", "From a request's arrival to its answer.", _SECONDS, "api"
        )
        self._received = self._counter("received_bytes", "Bytes of requests.")
        self._sent = self._counter("sent_bytes", "Bytes of responses.")
        self._produced = self._counter("produced_records", "Records committed.", "topic")
        self._produced_bytes = self._counter(
            "produced_bytes", "Bytes of committed records.", "topic"
        )
        self._commit_seconds = self._histogram(
            "commit_seconds", "How long commits of records took.", _SECONDS
        )
        self._commit_batches = self._histogram(
            "commit_batches", "Batches of producers that went into one commit.", _BATCHES
        )
        self._conflicts = self._counter(
            "commit_conflicts",
            "Commits that another writer was ahead of and that were tried again.",
        )
        self._fetches = self._counter(
            "fetches", "Reads of partitions by where they were served from.", "cache"
        )
        self._fetched_bytes = self._counter("fetched_bytes", "Bytes of records handed out.")
        self._store_reads = self._counter("store_reads", "Requests to the storage for records.")
        self._maintenance: dict[str, Gauge] = {}
        # The children in use: looking one up by its labels takes longer than counting.
        self._counted: dict[tuple[int, int], Any] = {}
        self._timed: dict[int, Any] = {}

    def request(self, call: Call) -> Request:
        """Around one request."""
        return Request(self, call.api)

    def ended(self, api: int, error: int, seconds: float) -> None:
        """A request was answered."""
        counter = self._counted.get((api, error))
        if counter is None:
            counter = self._requests.labels(api_name(api), error_name(error))
            self._counted[api, error] = counter
        timer = self._timed.get(api)
        if timer is None:
            timer = self._timed[api] = self._seconds.labels(api_name(api))
        counter.inc()
        timer.observe(seconds)

    def refused(self, api: int, error: int) -> None:
        """A part of a request failed: one partition of a Produce, say."""
        self._refused.labels(api_name(api), error_name(error)).inc()

    def received(self, size: int) -> None:
        """Bytes came in."""
        self._received.inc(size)

    def sent(self, size: int) -> None:
        """Bytes went out."""
        self._sent.inc(size)

    def produced(self, topic: str, records: int, size: int) -> None:
        """Records were committed."""
        self._produced.labels(topic).inc(records)
        self._produced_bytes.labels(topic).inc(size)

    def committed(self, seconds: float, batches: int, conflicts: int = 0) -> None:
        """A commit of records ended well, at the attempt after so many lost ones."""
        self._commit_seconds.observe(seconds)
        self._commit_batches.observe(batches)
        if conflicts:
            self._conflicts.inc(conflicts)

    def fetched(self, hit: bool, size: int) -> None:
        """A partition was read for a client: from memory (`hit`) or not."""
        self._fetches.labels("hit" if hit else "miss").inc()
        self._fetched_bytes.inc(size)

    def read_store(self, times: int = 1) -> None:
        """The storage was asked for records."""
        self._store_reads.inc(times)

    def maintained(self, found: Round) -> None:
        """A round of maintenance ended."""
        figures = found.numbers() | {"last_run_timestamp_seconds": found.ended_ms // 1000}
        for name, value in figures.items():
            gauge = self._maintenance.get(name)
            if gauge is None:
                gauge = self._maintenance[name] = self._gauge(
                    f"maintenance_{name}", "Of the last round of maintenance by this broker."
                )
            gauge.set(value)

    def watch(self, name: str, words: str, value: Callable[[], float]) -> None:
        """A gauge that is asked for when somebody looks."""
        self._gauge(name, words).set_function(value)

    def add(self, collector: Collector) -> None:
        """Figures that are worked out when somebody looks."""
        self.registry.register(collector)

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"streamlog_{name}", words, labels, registry=self.registry)

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(f"streamlog_{name}", words, labels, registry=self.registry)

    def _histogram(
        self, name: str, words: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(
            f"streamlog_{name}", words, labels, registry=self.registry, buckets=buckets
        )


def _errors(body: Mapping[str, Any], levels: int) -> Iterator[int]:
    """The errors of a response's parts: of topics, groups and, where it has them, partitions."""
    for value in body.values():
        if type(value) is list:
            for part in value:
                if type(part) is dict:
                    error = part.get("error_code")
                    if error:
                        yield int(error)
                    elif levels > 1:
                        yield from _errors(part, levels - 1)


def api_name(api: int) -> str:
    """An API as Kafka calls it.

    >>> api_name(18), api_name(999)
    ('ApiVersions', '999')
    """
    return _NAMES.get(api, str(api))


def error_name(code: int) -> str:
    """An error code as Kafka calls it."""
    try:
        return Code(code).name
    except ValueError:
        return str(code)
