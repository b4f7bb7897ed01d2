"""A storage that fails on purpose: `FaultyObjects` wraps any `Objects` and follows a plan.

A plan is asked before every operation with (operation, path) and answers with a `Fault` or None:
- BEFORE: UnavailableError, and nothing happened;
- AFTER: it happened, and UnavailableError all the same (the lost answer of design, rule 3);
- CONFLICT: `put_if_absent` returns False with nothing there (S3's 409); elsewhere as BEFORE;
- `stall` seconds pass on the fake clock before the operation, `stall_after` before its answer.

`Script` fires given faults in order, for scenarios; `Chaos` draws them from a seed, for properties.
Every operation is kept in `calls`, faults in `fired`, so that a failing test can tell its story.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol, TypeVar

import pyarrow as pa

from streamlog.errors import UnavailableError
from streamlog.storage.objects import ObjectInfo, Objects
from tests.fakes import FakeClock

T = TypeVar("T")

OPERATIONS = (
    "get",
    "open",
    "put",
    "put_new",
    "put_if_absent",
    "list",
    "names",
    "head",
    "delete",
    "delete_tree",
    "sync_all",
    "store_time",
)
PUTS = ("put", "put_new", "put_if_absent")


class Kind(Enum):
    """When the failure strikes."""

    NONE = "none"
    BEFORE = "before"
    AFTER = "after"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one operation."""

    kind: Kind = Kind.NONE
    stall: float = 0.0
    stall_after: float = 0.0


BEFORE = Fault(Kind.BEFORE)
AFTER = Fault(Kind.AFTER)
CONFLICT = Fault(Kind.CONFLICT)


class Plan(Protocol):
    """Decides about each operation."""

    def next(self, operation: str, path: str) -> Fault | None: ...


def anywhere(path: str) -> bool:
    """The predicate that any path meets."""
    return True


def commits(path: str) -> bool:
    """Commit files of Delta logs."""
    return "/_delta_log/" in path and path.endswith(".json")


@dataclass(slots=True)
class Rule:
    """`fault` for one operation on paths that match: after `skip` of them, `times` times."""

    operation: str
    fault: Fault
    where: Callable[[str], bool] = anywhere
    times: int = 1
    skip: int = 0

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise ValueError(f"no operation {self.operation!r}; there are {', '.join(OPERATIONS)}")


class Script:
    """Rules in order; the first that matches and is not used up decides."""

    def __init__(self, *rules: Rule) -> None:
        self._rules = list(rules)
        self._lock = threading.Lock()

    def add(self, rule: Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def next(self, operation: str, path: str) -> Fault | None:
        with self._lock:
            for rule in self._rules:
                if rule.operation != operation or not rule.times or not rule.where(path):
                    continue
                if rule.skip:
                    rule.skip -= 1
                    continue
                rule.times -= 1
                return rule.fault
        return None

    @property
    def exhausted(self) -> bool:
        """Whether every rule fired in full: a scenario that missed its fault proves nothing."""
        return not any(rule.times for rule in self._rules)


class Chaos:
    """Faults at random, the same for the same seed and sequence of operations."""

    def __init__(
        self,
        seed: int,
        rates: Mapping[Kind, float],
        *,
        operations: Sequence[str] = OPERATIONS,
        where: Callable[[str], bool] = anywhere,
        stall_rate: float = 0.0,
        max_stall: float = 0.0,
        limit: int | None = None,
    ) -> None:
        self.seed = seed
        self._rng = random.Random(seed)
        self._rates = dict(rates)
        self._operations = frozenset(operations)
        self._where = where
        self._stall_rate = stall_rate
        self._max_stall = max_stall
        self._left = limit
        self._lock = threading.Lock()

    def next(self, operation: str, path: str) -> Fault | None:
        if operation not in self._operations or not self._where(path):
            return None
        with self._lock:
            # Always the same number of draws, so that one rate does not shift the others' sequence.
            kind_draw, stall_draw, before, after = (self._rng.random() for _ in range(4))
            if self._left == 0:
                return None
            stalls = stall_draw < self._stall_rate
            fault = Fault(
                self._kind(kind_draw),
                stall=before * self._max_stall if stalls else 0.0,
                stall_after=after * self._max_stall if stalls else 0.0,
            )
            if fault == Fault():
                return None
            if self._left is not None:
                self._left -= 1
            return fault

    def _kind(self, draw: float) -> Kind:
        for kind, rate in self._rates.items():
            if draw < rate:
                return kind
            draw -= rate
        return Kind.NONE


class FaultyObjects:
    """`Objects` that delegates to another and fails as its plan says."""

    def __init__(self, inner: Objects, plan: Plan, clock: FakeClock | None = None) -> None:
        self.inner = inner
        self.plan = plan
        self.calls: list[tuple[str, str]] = []
        self.fired: list[tuple[str, str, Fault]] = []
        self._clock = clock

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def storage_options(self) -> dict[str, str]:
        return self.inner.storage_options

    @property
    def local(self) -> bool:
        return self.inner.local

    @property
    def supports_delta(self) -> bool:
        return self.inner.supports_delta

    def get(self, path: str) -> bytes | None:
        return self._run("get", path, lambda: self.inner.get(path))

    def open(self, path: str, size: int | None = None) -> pa.NativeFile | None:
        return self._run("open", path, lambda: self.inner.open(path, size))

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        self._run("put", path, lambda: self.inner.put(path, data))

    def put_new(self, path: str, data: bytes | pa.Buffer, *, durable: bool) -> None:
        self._run("put_new", path, lambda: self.inner.put_new(path, data, durable=durable))

    def put_if_absent(self, path: str, data: bytes, *, durable: bool) -> bool:
        return self._run(
            "put_if_absent",
            path,
            lambda: self.inner.put_if_absent(path, data, durable=durable),
            on_conflict=lambda: False,
        )

    def names(self, directory: str) -> list[str]:
        return self._run("names", directory, lambda: self.inner.names(directory))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        # Collected, so that a fault strikes the listing as a whole and stalls lie around all of it.
        return iter(self._run("list", prefix, lambda: [*self.inner.list(prefix, start_after)]))

    def head(self, path: str) -> ObjectInfo | None:
        return self._run("head", path, lambda: self.inner.head(path))

    def delete(self, paths: Sequence[str]) -> None:
        # One decision a path: a deletion of many may stop half way.
        for path in paths:
            self._run("delete", path, partial(self.inner.delete, [path]))

    def delete_tree(self, prefix: str) -> None:
        self._run("delete_tree", prefix, lambda: self.inner.delete_tree(prefix))

    def sync_all(self) -> None:
        self._run("sync_all", "", self.inner.sync_all)

    def store_time(self) -> float:
        return self._run("store_time", "", self.inner.store_time)

    def _run(
        self,
        operation: str,
        path: str,
        act: Callable[[], T],
        on_conflict: Callable[[], T] | None = None,
    ) -> T:
        self.calls.append((operation, path))
        fault = self.plan.next(operation, path)
        if fault is None:
            return act()
        self.fired.append((operation, path, fault))
        self._pass(fault.stall)
        if fault.kind is Kind.CONFLICT and on_conflict is not None:
            self._pass(fault.stall_after)
            return on_conflict()
        if fault.kind in (Kind.BEFORE, Kind.CONFLICT):
            raise UnavailableError(f"injected before {operation} of {path!r}; nothing happened")
        result = act()
        self._pass(fault.stall_after)
        if fault.kind is Kind.AFTER:
            raise UnavailableError(f"injected after {operation} of {path!r}; it happened")
        return result

    def _pass(self, seconds: float) -> None:
        if not seconds:
            return
        if self._clock is None:
            raise ValueError("a plan with stalls needs a FakeClock")
        self._clock.advance(seconds)
