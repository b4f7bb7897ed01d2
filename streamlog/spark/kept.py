"""Topics that a Python worker of Spark keeps open from one task or batch to the next.

Spark uses its Python processes again. Opening a partition reads its whole log; one that is open already is
followed by a GET a look. What is kept is never trusted further than any client's view: readers refresh
before they answer, and a writer's stale view loses the race for its version and catches up.

K1  The root's marker is read at every use: a root that was removed and made again at the same place has
    another id, and nothing of the former one is kept.
K2  Whatever fails is forgotten, so that a repaired log is seen by the next attempt.
K3  Between uses no decoded records stay in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from streamlog.clock import Runtime
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.partition import PartitionLog
from streamlog.log.reader import PartitionReader
from streamlog.log.topics import TopicInfo, Topics
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects

T = TypeVar("T")

_ROOTS = 4
_PARTITIONS = 1024


class KeptTopics(Topics):
    """The topics of a root, whose partitions stay open. A partition is one thread's at a time."""

    def __init__(self, objects: Objects, runtime: Runtime, checkpointer: Checkpointer) -> None:
        super().__init__(objects, runtime, checkpointer)
        self._lock = threading.Lock()
        self._readers: OrderedDict[str, PartitionReader] = OrderedDict()
        self._logs: OrderedDict[str, PartitionLog] = OrderedDict()

    def partition_reader(self, info: TopicInfo, partition: int) -> PartitionReader:
        make = super().partition_reader
        return self._kept(self._readers, self.table(info, partition), lambda: make(info, partition))

    def partition_log(self, info: TopicInfo, partition: int) -> PartitionLog:
        make = super().partition_log
        return self._kept(self._logs, self.table(info, partition), lambda: make(info, partition))

    def release(self) -> None:
        """K3."""
        with self._lock:
            for reader in self._readers.values():
                reader.release()

    def _kept(self, items: OrderedDict[str, T], table: str, make: Callable[[], T]) -> T:
        with self._lock:
            found = items.pop(table, None)
            if found is None:
                found = make()
            items[table] = found
            if len(items) > _PARTITIONS:
                items.popitem(last=False)
            return found


_Place = tuple[str, tuple[tuple[str, str], ...]]
_roots: OrderedDict[_Place, tuple[str, KeptTopics]] = OrderedDict()
_roots_lock = threading.Lock()


def open_topics(root: str, storage: Mapping[str, str]) -> KeptTopics:
    """The topics of a root, from a driver's or a task's Python worker."""
    # Here and not above: the client brings what no worker needs.
    from streamlog.client import check_root

    place = (root, tuple(sorted(storage.items())))
    runtime = Runtime()
    with _roots_lock:
        kept = _roots.pop(place, None)
        if kept is None or check_root(kept[1].objects, runtime, create=False) != kept[0]:
            objects = open_objects(root, dict(storage) or None, runtime)
            cluster = check_root(objects, runtime, create=False)
            kept = (cluster, KeptTopics(objects, runtime, Checkpointer(objects)))
        _roots[place] = kept
        if len(_roots) > _ROOTS:
            _roots.popitem(last=False)
        return kept[1]


@contextmanager
def used_topics(root: str, storage: Mapping[str, str]) -> Iterator[KeptTopics]:
    """The topics of a root for one piece of work (K2, K3)."""
    topics = open_topics(root, storage)
    try:
        yield topics
    except Exception:
        forget(topics)
        raise
    finally:
        topics.release()


def forget(topics: KeptTopics) -> None:
    """K2: the next use opens everything anew."""
    with _roots_lock:
        for place, (_, kept) in list(_roots.items()):
            if kept is topics:
                del _roots[place]
