"""What must hold after a maintenance soak, whatever happened in it.

C1  Offsets are dense at the acknowledgement: each partition's are 0, 1, 2, … without a hole.
C2  No reader gets a record twice, nor one that differs from what was acknowledged at its offset; a consumer
    gets the records of a partition in order.
C3  A record that a reader did not get left lawfully: of LOAD none; of BRIEF only up to a log start that a
    retention committed, and every record below that was older than allowed; of KEYS only if a later record
    has its key, or it is a tombstone, or its key was erased.
C4  What is on storage in the end says the same to another engine, and the erased keys are in no file.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable

import streamlog
from streamlog.log import commit as commits
from tests.processes.maintenance_actors import BRIEF, COPY, ERASED, KEYS, RETENTION_MS, SOURCES

Place = tuple[str, int, int]
Content = tuple[str | None, str | None]


class Record(NamedTuple):
    """What was acknowledged at a place."""

    key: str | None
    value: str | None
    timestamp: int

    @property
    def content(self) -> Content:
        return self.key, self.value


class Check:
    """The promises, of one root and what was acknowledged into it."""

    def __init__(self, log: streamlog.Log, acknowledged: Mapping[Place, Record]) -> None:
        self._log = log
        self._acknowledged = acknowledged
        self._starts: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._last: dict[tuple[int, str | None], int] = {}
        for (topic, partition, offset), record in acknowledged.items():
            if topic == KEYS:
                place = partition, record.key
                self._last[place] = max(offset, self._last.get(place, -1))

    def dense(self) -> None:
        """C1."""
        offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
        for topic, partition, offset in self._acknowledged:
            offsets[topic, partition].append(offset)
        for place, found in offsets.items():
            assert sorted(found) == list(range(len(found))), f"{place}: not dense"

    def retention(self) -> int:
        """C3 of BRIEF: which log starts there were, and that what lay below was old; how many moves."""
        moves = 0
        for partition in range(SOURCES[BRIEF][0]):
            start = 0
            for commit in self._commits(BRIEF, partition):
                moved = commit.txns.get(commits.START, start)
                for offset in range(start, moved):
                    record = self._acknowledged[BRIEF, partition, offset]
                    assert record.timestamp < commit.timestamp_ms - RETENTION_MS, (
                        "removed too early"
                    )
                moves += moved > start
                start = max(start, moved)
                self._starts[BRIEF, partition].add(start)
        return moves

    def consumer(self, reads: Iterable[tuple[Place, Content]]) -> dict[Place, Content]:
        """C2 of one process."""
        found: dict[Place, Content] = {}
        positions: dict[tuple[str, int], int] = {}
        for (topic, partition, offset), content in reads:
            assert offset > positions.get((topic, partition), -1), "twice, or out of order"
            positions[topic, partition] = offset
            found[topic, partition, offset] = content
        return found

    def reader(self, who: str, found: Mapping[Place, Content]) -> int:
        """C2 and C3 of all that a reader got; how many records it lawfully missed."""
        for place, content in found.items():
            assert content == self._acknowledged[place].content, f"{who} at {place}: another record"
        missed = sorted(set(self._acknowledged) - set(found))
        for topic, partition, offset in missed:
            where = f"{who} never got {topic}-{partition} offset {offset}"
            if topic == BRIEF:
                # The hole ends where the reader was put: at a log start.
                after = topic, partition, offset + 1
                assert after not in found or offset + 1 in self._starts[topic, partition], where
                assert after in self._acknowledged, where
                continue
            assert topic == KEYS, where
            record = self._acknowledged[topic, partition, offset]
            replaced = self._last[partition, record.key] > offset
            assert replaced or record.value is None or record.key in ERASED, where
        return len(missed)

    def copied(self) -> dict[Place, Content]:
        """What the Spark stream wrote into COPY, each record once (C2)."""
        found: dict[Place, Content] = {}
        for partition in range(self._log.topic(COPY).partitions):
            rows = self._table(COPY, partition).to_pyarrow_table(columns=["offset", "value"])
            assert sorted(rows["offset"].to_pylist()) == list(range(rows.num_rows))
            for value in rows["value"].to_pylist():
                row = json.loads(value)
                place = row["topic"], row["partition"], row["offset"]
                assert place not in found, f"the stream wrote {place} twice"
                found[place] = row.get("key"), row.get("value")
        return found

    def tables(self) -> None:
        """C4, by delta-rs."""
        for topic, (partitions, _) in SOURCES.items():
            description = self._log.describe(topic)
            for partition in range(partitions):
                part = description.partitions[partition]
                table = self._table(topic, partition)
                rows = table.to_pyarrow_table(columns=["offset", "key", "value"]).to_pylist()
                offsets = sorted(row["offset"] for row in rows)
                assert len(set(offsets)) == len(offsets)
                if topic != KEYS:
                    live = [offset for offset in offsets if offset >= part.start]
                    assert live == list(range(part.start, part.end))
                    continue
                for row in rows:
                    place = topic, partition, row["offset"]
                    content = _text(row["key"]), _text(row["value"])
                    assert content == self._acknowledged[place].content
                left = set(offsets)
                for (number, key), last in self._last.items():
                    value = self._acknowledged[topic, number, last].value
                    if number == partition and key not in ERASED and value is not None:
                        assert last in left, f"the last record of {key} is gone"
        eraser = self._log.eraser(KEYS, ERASED)
        for partition in range(SOURCES[KEYS][0]):
            assert eraser.holding(partition) == ()

    def kinds(self, topic: str) -> list[str | None]:
        """What the versions of a topic did whose commit files are still there."""
        partitions = range(self._log.topic(topic).partitions)
        return [item.kind for number in partitions for item in self._commits(topic, number)]

    def _commits(self, topic: str, partition: int) -> list[commits.Commit]:
        table = self._path(topic, partition)
        return [
            commits.parse(str(table), int(path.stem), path.read_bytes())
            for path in sorted((table / "_delta_log").glob("*.json"))
        ]

    def _path(self, topic: str, partition: int) -> Path:
        return Path(self._log.root, self._log.topic(topic).path, str(partition))

    def _table(self, topic: str, partition: int) -> DeltaTable:
        return DeltaTable(str(self._path(topic, partition)))


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()
