"""The lease of the maintenance loop; erasing beside a writer; cleaning owed checkpoints."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import streamlog
from streamlog import paths
from streamlog.clock import Runtime
from streamlog.compaction.lease import Lease
from streamlog.errors import InvalidRequestError, RootError
from streamlog.storage.open import open_objects
from tests.fakes import FakeClock


def leases(count: int, clock: FakeClock) -> list[Lease]:
    runtime = Runtime(clock=clock)
    objects = open_objects(f"memory://lease-{runtime.ids.new()}", None, runtime)
    return [Lease(objects, runtime, ttl=60) for _ in range(count)]


def test_one_holds_the_lease_and_keeps_it() -> None:
    clock = FakeClock()
    one, two = leases(2, clock)
    for _ in range(5):
        assert one.hold()
        assert not two.hold()
        clock.advance(50)


def test_a_lease_that_was_released_is_free_at_once() -> None:
    one, two = leases(2, FakeClock())
    assert one.hold()
    assert not two.hold()
    one.release()
    assert two.hold()
    assert not one.hold()


def test_a_lease_beats_by_itself_while_its_holder_is_busy() -> None:
    objects = open_objects("memory://busy-lease", None, Runtime())
    one, two = Lease(objects, Runtime(), ttl=2), Lease(objects, Runtime(), ttl=2)
    assert one.hold()
    with one.kept():
        until = time.monotonic() + 5
        while time.monotonic() < until:
            assert not two.hold()
            time.sleep(0.02)
    assert one.hold()
    # Not kept any more, it is lost like a dead one's.
    while not two.hold():
        time.sleep(0.02)


def test_a_dead_holder_is_replaced_after_the_watchers_own_time() -> None:
    clock = FakeClock()
    one, two, three = leases(3, clock)
    assert one.hold()
    # However long ago it was written: only the time this one has watched counts.
    clock.advance(1000)
    assert not two.hold()
    clock.advance(61)
    assert two.hold()
    # The first one wakes and finds that it lost it; the third has just begun to watch.
    assert not one.hold()
    assert not three.hold()


@pytest.fixture
def log(tmp_path: Path) -> streamlog.Log:
    return streamlog.connect(tmp_path / "root")


def send(log: streamlog.Log, topic: str, first: int, last: int) -> None:
    with log.producer(linger_ms=0) as producer:
        for n in range(first, last):
            producer.send(topic, b"v%d" % n, key=b"k%d" % (n % 3)).result()


def test_erasing_leaves_no_file_with_the_key_and_neighbours_where_they_were(
    log: streamlog.Log, tmp_path: Path
) -> None:
    log.create_topic("t")
    send(log, "t", 0, 12)
    log.maintainer().run(actions=("merge",))
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        seen = [record.offset for record in consumer.poll(timeout_ms=500, max_records=4)]
        (done,) = log.eraser("t", ["k1"]).run(purge=True)
        assert (done.records, done.left) == (4, ())
        # A reader in the middle goes on with the neighbours, each once.
        for _ in range(20):
            seen += [record.offset for record in consumer.poll(timeout_ms=50)]
    assert seen == [0, *seen[1:]]
    assert [offset for offset in seen if offset >= 4] == [5, 6, 8, 9, 11]
    for path in tmp_path.rglob("topics/t/0/*.parquet"):
        assert b"k1" not in pq.read_table(path)["key"].to_pylist()


def test_a_purge_takes_what_earlier_merges_left_and_nothing_of_an_append_under_way(
    log: streamlog.Log, tmp_path: Path
) -> None:
    log.create_topic("t")
    send(log, "t", 0, 40)
    log.maintainer().run(actions=("merge",))
    table = tmp_path / "root/topics/t/0"
    assert len(list(table.glob("*.parquet"))) == 41
    (old,) = table.glob(f"{1:020d}-*.parquet")
    # As a writer leaves it between its two puts: it begins at the head.
    pending = table / f"{40:020d}-{'0' * 32}.parquet"
    pending.write_bytes(old.read_bytes())
    (done,) = log.eraser("t", ["k1"]).run(purge=True)
    assert done.left == ("topics/t/0/" + pending.name,)
    held = [
        path for path in table.glob("*.parquet") if b"k1" in pq.read_table(path)["key"].to_pylist()
    ]
    assert held == [pending]


def test_a_file_that_cannot_be_read_is_no_proof_and_goes_only_when_nobody_can_commit_it(
    log: streamlog.Log, tmp_path: Path
) -> None:
    """As a killed writer leaves it on a disk; or one that is writing it just now."""
    log.create_topic("t")
    send(log, "t", 0, 12)
    table = tmp_path / "root/topics/t/0"
    cut = table / f"{1:020d}-{'0' * 32}.parquet"
    cut.write_bytes(b"PAR1 k1")
    staged = tmp_path / "root" / paths.STAGING_DIR / "query" / "0.arrow"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"")
    (done,) = log.eraser("t", ["k1"]).run(purge=True)
    assert done.left == ("topics/t/0/" + cut.name,)
    assert log.eraser("t", ["k1"]).staged() == (f"{paths.STAGING_DIR}/query/0.arrow",)
    long_ago = time.time() - 1000
    os.utime(cut, (long_ago, long_ago))
    (done,) = log.eraser("t", ["k1"]).run(purge=True)
    assert done.left == ()
    assert not cut.exists()


def test_a_root_that_is_gone_is_said(log: streamlog.Log, tmp_path: Path) -> None:
    log.create_topic("t")
    (tmp_path / "root").rename(tmp_path / "elsewhere")
    with pytest.raises(RootError, match="there is no log"):
        log.maintain()


def test_no_key_is_no_request(log: streamlog.Log) -> None:
    log.create_topic("t")
    with pytest.raises(InvalidRequestError, match="no key given"):
        log.eraser("t", [])


def test_cleaning_writes_the_checkpoint_that_is_owed(log: streamlog.Log, tmp_path: Path) -> None:
    log.create_topic("t")
    send(log, "t", 0, 120)
    (cleaned,) = log.maintainer().clean()
    assert cleaned.checkpoint == 120
    assert list(tmp_path.rglob("*.checkpoint.parquet"))
    assert log.maintainer().clean()[0].checkpoint is None
    assert log.describe("t").records == 120


def test_a_round_in_figures(log: streamlog.Log) -> None:
    log.create_topic("t")
    send(log, "t", 0, 40)
    done = log.maintain()
    numbers = done.numbers()
    assert (numbers["files_replaced"], numbers["files_written"]) == (40, 1)
    assert numbers["bytes_written"] < numbers["bytes_read"]
    assert "40 files became 1" in str(done)
    assert done.to_dict()["outcomes"][0]["status"] == "done"
