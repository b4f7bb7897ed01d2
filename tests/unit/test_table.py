"""Small tables: one live file, changed by one client at a time, whatever the store does."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from streamlog.clock import Runtime
from streamlog.errors import CorruptLogError, InvalidRequestError, UnavailableError
from streamlog.log.checkpoints import INTERVAL, Checkpointer
from streamlog.log.cleaner import Cleaner
from streamlog.log.table import Change, Content, SmallTable
from streamlog.storage.delta import write_checkpoint
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects
from tests.fakes import FakeClock, fake_runtime
from tests.fault.faulty import (
    AFTER,
    BEFORE,
    CONFLICT,
    Chaos,
    Fault,
    FaultyObjects,
    Kind,
    Rule,
    Script,
)
from tests.partitions import Meanwhile

SCHEMA = pa.schema([pa.field("name", pa.string()), pa.field("count", pa.int64())])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(str(tmp_path / "root"), None, Runtime())


def table(objects: Objects, clock: FakeClock, seed: int = 0) -> SmallTable:
    return SmallTable(objects, "__small", SCHEMA, fake_runtime(seed, clock), Checkpointer(objects))


def bump(name: str, note: str | None = None) -> Change:
    def change(content: Content) -> Content:
        counts = {row["name"]: row["count"] for row in content.rows}
        counts[name] = counts.get(name, 0) + 1
        rows = tuple({"name": key, "count": value} for key, value in sorted(counts.items()))
        return Content(rows, {"by": note} if note else content.note)

    return change


def counts(content: Content) -> dict[str, int]:
    return {row["name"]: row["count"] for row in content.rows}


def test_content_is_replaced_as_a_whole(objects: Objects, clock: FakeClock) -> None:
    mine, theirs = table(objects, clock), table(objects, clock, 1)
    assert mine.read() == Content()
    mine.update(bump("a", "me"))
    assert counts(theirs.read()) == {"a": 1}
    assert theirs.read().note == {"by": "me"}
    theirs.update(bump("b"))
    assert counts(mine.read()) == {"a": 1, "b": 1}
    assert table(objects, clock, 2).read() == mine.read()
    delta = DeltaTable(f"{objects.uri}/__small")
    assert len(delta.file_uris()) == 1
    assert sorted(delta.to_pyarrow_table()["name"].to_pylist()) == ["a", "b"]
    assert DeltaTable(f"{objects.uri}/__small", version=0).to_pyarrow_table().num_rows == 1


def test_nothing_to_change_writes_nothing(objects: Objects, clock: FakeClock) -> None:
    mine = table(objects, clock)
    mine.update(bump("a"))
    mine.update(lambda content: None)
    assert mine.version == 0


def test_a_refusal_writes_nothing(objects: Objects, clock: FakeClock) -> None:
    mine = table(objects, clock)

    def refuse(content: Content) -> Content:
        raise InvalidRequestError("no")

    with pytest.raises(InvalidRequestError):
        mine.update(refuse)
    assert table(objects, clock, 1).read() == Content()


def test_who_loses_computes_anew(objects: Objects, clock: FakeClock) -> None:
    other = table(objects, clock, 1)
    race = Meanwhile("put_if_absent", lambda path: True, lambda: other.update(bump("a")))
    mine = table(FaultyObjects(objects, race), clock)
    assert counts(mine.update(bump("a"))) == {"a": 2}


@pytest.mark.parametrize("fault", [BEFORE, AFTER, CONFLICT])
@pytest.mark.parametrize("operation", ["put_if_absent", "put_new", "get", "names"])
def test_lost_answers_count_once(
    objects: Objects, clock: FakeClock, fault: Fault, operation: str
) -> None:
    table(objects, clock).update(bump("a"))
    store = FaultyObjects(objects, Script(Rule(operation, fault, times=2)))
    mine = table(store, clock, 1)
    assert counts(mine.update(bump("a"))) == {"a": 2}
    assert counts(table(objects, clock, 2).read()) == {"a": 2}


@pytest.mark.parametrize("seed", range(20))
def test_random_faults_lose_and_double_no_change(
    objects: Objects, clock: FakeClock, seed: int
) -> None:
    rates = {Kind.BEFORE: 0.1, Kind.AFTER: 0.1, Kind.CONFLICT: 0.05}
    clients = [
        table(FaultyObjects(objects, Chaos(seed * 3 + index, rates)), clock, seed * 3 + index)
        for index in range(3)
    ]
    for number in range(30):
        clients[number % 3].update(bump("a"))
    assert counts(table(objects, clock, 999).read()) == {"a": 30}


def test_a_silent_store_ends_in_an_error(objects: Objects, clock: FakeClock) -> None:
    store = FaultyObjects(objects, Script(Rule("put_new", BEFORE, times=10**6)))
    with pytest.raises(UnavailableError, match="a change of __small"):
        table(store, clock).update(bump("a"))


def test_checkpoints_are_written_here_too(objects: Objects) -> None:
    checkpointer = Checkpointer(objects)
    mine = SmallTable(objects, "__small", SCHEMA, Runtime(), checkpointer)
    for _ in range(INTERVAL + 1):
        mine.update(bump("a"))
    assert checkpointer.drain(30)
    assert f"{INTERVAL:020d}.checkpoint.parquet" in objects.names("__small/_delta_log")


def test_a_foreign_write_is_refused(objects: Objects, clock: FakeClock) -> None:
    mine = table(objects, clock)
    mine.update(bump("a"))
    write_deltalake(
        f"{objects.uri}/__small", pa.table({"name": ["x"], "count": [1]}, SCHEMA), mode="append"
    )
    for victim in (mine, table(objects, clock, 1)):
        with pytest.raises(CorruptLogError, match=r"version 1 by .*only streamlog may write"):
            victim.read()


def test_vacuum_by_another_engine_does_no_harm(objects: Objects, clock: FakeClock) -> None:
    mine = table(objects, clock)
    for _ in range(3):
        mine.update(bump("a"))
    DeltaTable(f"{objects.uri}/__small").vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False
    )
    assert counts(table(objects, clock, 1).read()) == {"a": 3}
    assert counts(mine.update(bump("a"))) == {"a": 4}


def test_a_missing_file_is_named(objects: Objects, clock: FakeClock) -> None:
    table(objects, clock).update(bump("a"))
    objects.delete([i.path for i in objects.list("__small") if i.path.endswith(".parquet")])
    with pytest.raises(CorruptLogError, match="is not there"):
        table(objects, clock, 1).read()


def test_history_is_read_and_cleaned(objects: Objects, clock: FakeClock) -> None:
    import os

    mine = table(objects, clock)
    times = []
    for _ in range(6):
        times.append(clock.time_ms())
        mine.update(bump("a"))
        clock.advance(10)
    assert counts(mine.as_of(times[2])) == {"a": 3}
    assert counts(mine.as_of(times[2] + 9_999)) == {"a": 3}
    assert mine.as_of(times[0] - 1) == Content()
    write_checkpoint(objects, "__small", 4)
    for info in list(objects.list("__small")):
        os.utime(f"{objects.uri}/{info.path}", (info.modified - 7200, info.modified - 7200))
    assert Cleaner(objects, Runtime(), keep=0).clean_small("__small") == 4
    assert counts(table(objects, clock, 1).read()) == {"a": 6}
    assert counts(mine.as_of(times[4])) == {"a": 5}
    with pytest.raises(InvalidRequestError, match="does not reach back"):
        mine.as_of(times[1])
    assert DeltaTable(f"{objects.uri}/__small").to_pyarrow_table().num_rows == 1
