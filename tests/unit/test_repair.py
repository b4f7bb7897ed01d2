"""A commit that another engine overwrote is put back from what is left of it, or refused; so checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

import streamlog
from streamlog.clock import Runtime
from streamlog.errors import CorruptLogError
from streamlog.storage.delta import write_checkpoint
from streamlog.storage.open import open_objects

OPTIMIZE = {
    "commitInfo": {"operation": "OPTIMIZE", "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}
}


@pytest.fixture
def log(tmp_path: Path) -> streamlog.Log:
    log = streamlog.connect(tmp_path / "root")
    log.create_topic("t")
    with log.producer(linger_ms=0) as producer:
        for number in range(10):
            producer.send("t", b"v%d" % number).result()
    return log


def version(log: streamlog.Log, number: int) -> Path:
    return Path(log.root, "topics/t/0/_delta_log", f"{number:020d}.json")


def overwrite(log: streamlog.Log, number: int) -> None:
    version(log, number).write_text(json.dumps(OPTIMIZE) + "\n")


def values(log: streamlog.Log) -> list[bytes | None]:
    with (
        streamlog.connect(log.root) as fresh,
        fresh.consumer("t", auto_offset_reset="earliest") as c,
    ):
        found: list[bytes | None] = []
        while len(found) < 10:
            found += [record.value for record in c.poll(timeout_ms=1000)]
        return found


def test_a_replaced_append_is_put_back(log: streamlog.Log) -> None:
    overwrite(log, 5)
    with pytest.raises(CorruptLogError, match="run `streamlog doctor --repair`"):
        streamlog.connect(log.root).describe("t")
    (done,) = log.doctor().repair()
    assert (done.severity, done.where) == ("ok", "t-0")
    assert "put version 5 back" in done.what
    assert "offsets 4 to 4" in done.what
    assert values(log) == [b"v%d" % number for number in range(10)]
    # What the other engine wrote there is kept.
    (kept,) = Path(log.root, "__repairs").iterdir()
    assert json.loads(kept.read_text()) == OPTIMIZE
    assert log.doctor().repair() == []


def test_appending_goes_on_after_a_repair(log: streamlog.Log) -> None:
    overwrite(log, 3)
    log.doctor().repair(["t"])
    with streamlog.connect(log.root) as fresh, fresh.producer() as producer:
        assert producer.send("t", b"next").result().offset == 10


def test_a_checkpoint_with_the_replaced_version_in_it_is_dropped(log: streamlog.Log) -> None:
    with log.producer(linger_ms=0) as producer:
        for number in range(110):
            producer.send("t", b"w%d" % number).result()
    assert log.maintainer().clean()[0].checkpoint == 120
    overwrite(log, 50)
    log.doctor().repair()
    assert not list(Path(log.root).rglob("topics/*/*/_delta_log/*.checkpoint.parquet"))
    assert streamlog.connect(log.root).describe("t").records == 120


def test_two_files_that_could_be_it_are_not_guessed_between(log: streamlog.Log) -> None:
    overwrite(log, 5)
    (lost,) = Path(log.root, "topics/t/0").glob(f"{4:020d}-*.parquet")
    lost.with_name(f"{4:020d}-{'0' * 32}.parquet").write_bytes(lost.read_bytes())
    (found,) = log.doctor().repair()
    assert found.severity == "error"
    assert "2 data files could be them" in found.what
    assert json.loads(version(log, 5).read_text()) == OPTIMIZE


def test_a_lost_file_is_said(log: streamlog.Log) -> None:
    overwrite(log, 5)
    for path in Path(log.root, "topics/t/0").glob(f"{4:020d}-*.parquet"):
        path.unlink()
    (found,) = log.doctor().repair()
    assert "0 data files could be them" in found.what


def test_a_replaced_commit_without_records(log: streamlog.Log) -> None:
    log.truncate("t", 0, 0)
    with log.producer(producer_id="p") as producer:
        producer.send("t", b"more").result()
    # A producer's epoch is fenced in by a commit of its own.
    (fence,) = [
        n
        for n in range(12)
        if version(log, n).exists() and b"FENCE" in version(log, n).read_bytes()
    ]
    overwrite(log, fence)
    (done,) = log.doctor().repair()
    assert done.severity == "ok"
    assert streamlog.connect(log.root).describe("t").records == 11


def checkpointed(log: streamlog.Log, *upto: int) -> list[Path]:
    """Checkpoints at these versions, the last of them cut short."""
    sent = 10
    for version in upto:
        with log.producer(linger_ms=0) as producer:
            for number in range(sent, version):
                producer.send("t", b"v%d" % number).result()
        sent = version
        write_checkpoint(open_objects(log.root, None, Runtime()), "topics/t/0", version)
    found = sorted(Path(log.root, "topics/t/0/_delta_log").glob("*.checkpoint.parquet"))
    found[-1].write_bytes(found[-1].read_bytes()[:100])
    return found


def test_a_checkpoint_that_cannot_be_read_is_gone_round_by_an_older_one(log: streamlog.Log) -> None:
    checkpointed(log, 20, 30)
    for number in range(20):  # as cleaning does, upwards
        version(log, number).unlink()
    with streamlog.connect(log.root) as fresh, fresh.producer() as producer:
        assert producer.send("t", b"next").result().offset == 30
    assert streamlog.connect(log.root).describe("t").records == 31


def test_a_checkpoint_that_cannot_be_read_is_reported_and_removed(log: streamlog.Log) -> None:
    *_, damaged = checkpointed(log, 20, 30)
    found = [item for item in log.doctor().examine() if item.severity == "error"]
    assert [item.todo for item in found] == ["streamlog doctor --repair t"]
    assert "checkpoint 30 cannot be read" in found[0].what
    (done,) = log.doctor().repair()
    assert done.what == "removed checkpoint 30, which could not be read"
    assert not damaged.exists()
    assert DeltaTable(str(Path(log.root, "topics/t/0"))).version() == 30
    assert [item for item in log.doctor().examine() if item.severity == "error"] == []


def test_a_checkpoint_that_the_log_needs_is_not_removed(log: streamlog.Log) -> None:
    (damaged,) = checkpointed(log, 20)
    for number in range(20):
        version(log, number).unlink()
    with pytest.raises(CorruptLogError, match="cannot be read at version 20"):
        streamlog.connect(log.root).describe("t")
    (found,) = log.doctor().repair()
    assert found.severity == "error"
    assert "restore it from a backup" in found.what
    assert damaged.exists()
