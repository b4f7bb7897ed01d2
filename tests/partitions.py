"""One partition for tests: opened over any storage, fed with plain values, read back as a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from streamlog.batch import RecordColumns
from streamlog.clock import Runtime
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.partition import Appended, PartitionLog, ProducerMark
from streamlog.log.reader import PartitionReader
from streamlog.log.topics import Topics
from streamlog.log.versions import LOG_FLOOR_SECONDS
from streamlog.storage.objects import Objects
from tests.fault.faulty import Fault

T0 = 1_700_000_000_000


def columns(*values: bytes, timestamps: Sequence[int] | None = None) -> RecordColumns:
    """Records without keys."""
    times = list(timestamps) if timestamps is not None else [T0] * len(values)
    return RecordColumns.of([None] * len(values), list(values), times)


@dataclass
class Partition:
    """Partition 0 of topic "t" over `objects`; every call of `log` or `reader` is another client."""

    objects: Objects
    runtime: Runtime
    floor: float = LOG_FLOOR_SECONDS
    table: str = field(default="topics/t/0", init=False)

    def __post_init__(self) -> None:
        self.checkpointer = Checkpointer(self.objects)
        self.topics = Topics(self.objects, self.runtime, self.checkpointer, self.floor)
        self.info = self.topics.create("t", if_not_exists=True)

    def log(self) -> PartitionLog:
        return self.topics.partition_log(self.info, 0)

    def reader(self) -> PartitionReader:
        reader = self.topics.partition_reader(self.info, 0)
        reader.refresh()
        return reader

    def over(self, objects: Objects, runtime: Runtime | None = None) -> Partition:
        """The same partition through another client's storage."""
        return Partition(objects, runtime or self.runtime, self.floor)

    def contents(self) -> list[tuple[int, bytes | None]]:
        """What a fresh reader finds."""
        return read_all(self.reader())


def append(log: PartitionLog, *values: bytes, mark: ProducerMark | None = None) -> Appended:
    """One durable batch."""
    return log.append(columns(*values), durable=True, compression="none", producer=mark)


def read_all(reader: PartitionReader, start: int | None = None) -> list[tuple[int, bytes | None]]:
    """(offset, value) of all records from `start` (the log start) to the end."""
    position = reader.start if start is None else start
    found: list[tuple[int, bytes | None]] = []
    while (rows := reader.read(position, max_records=7, max_bytes=1 << 20)) is not None:
        offsets = rows.column("offset").to_pylist()
        found += zip(offsets, rows.column("value").to_pylist(), strict=True)
        position = offsets[-1] + 1
    return found


def numbered(*values: bytes, start: int = 0) -> list[tuple[int, bytes | None]]:
    """The contents that these values would have."""
    return list(enumerate(values, start))


class Meanwhile:
    """A plan that lets others act just before an operation, once."""

    def __init__(
        self,
        operation: str,
        where: Callable[[str], bool],
        action: Callable[[], object],
        fault: Fault | None = None,
    ) -> None:
        self._wanted = (operation, where)
        self._action = action
        self._fault = fault
        self.happened = False

    def next(self, operation: str, path: str) -> Fault | None:
        if self.happened or operation != self._wanted[0] or not self._wanted[1](path):
            return None
        self.happened = True
        self._action()
        return self._fault
