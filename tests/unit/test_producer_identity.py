"""Stable producer ids: the sequence goes on after a restart, and one id has one live holder."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import streamlog
from streamlog import Log
from streamlog.clock import Runtime
from streamlog.errors import (
    ClosedError,
    FencedError,
    InvalidRequestError,
    PartitionNotFoundError,
    StreamlogError,
    UnknownOutcomeError,
)
from streamlog.model import RecordMetadata
from streamlog.producer import sequence as sequences
from streamlog.storage.open import open_objects
from tests.fault.faulty import AFTER, BEFORE, FaultyObjects, Rule, Script, commits

_names = itertools.count()
LONG = 60_000


@pytest.fixture
def log() -> Iterator[Log]:
    with streamlog.connect(f"memory://producer-identity-{next(_names)}") as opened:
        yield opened


def values(log: Log) -> list[bytes | None]:
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        ends = sum(consumer.end_offsets(list(consumer.assignment())).values())
        found: list[bytes | None] = []
        while len(found) < ends:
            found += [record.value for record in consumer.poll(timeout_ms=1000)]
    return found


def test_a_sequence_goes_on_after_a_restart(log: Log) -> None:
    log.create_topic("t", partitions=2)
    with log.producer(producer_id="p") as producer:
        assert producer.sequence("t", 0) == 0
        for i in range(3):
            producer.send("t", b"%d" % i, partition=0)
        producer.flush()
        assert producer.sequence("t", 0) == 3
        producer.send_batch("t", pa.table({"value": [b"x"] * 4, "partition": [1] * 4})).result(30)
    with log.producer(producer_id="p") as producer:
        assert (producer.sequence("t", 0), producer.sequence("t", 1)) == (3, 4)
        producer.send("t", b"3", partition=0).result(30)
        assert producer.sequence("t", 0) == 4
    with log.producer(producer_id="other") as producer:
        assert producer.sequence("t", 0) == 0


def test_a_second_holder_fences_the_first(log: Log) -> None:
    log.create_topic("t")
    with log.producer(producer_id="p", linger_ms=LONG) as old:
        old.send("t", b"old").result(30)
        with log.producer(producer_id="p") as new:
            new.send("t", b"new").result(30)
            with pytest.raises(FencedError, match=r"'p'.*newer producer"):
                old.send("t", b"late").result(30)
            with pytest.raises(FencedError, match="'p'"):
                old.send("t", b"later")
            with pytest.raises(FencedError):
                old.sequence("t", 0)
            assert new.send("t", b"new").result(30).offset == 2
    assert values(log) == [b"old", b"new", b"new"]


def test_a_second_holder_fences_the_first_before_it_writes(log: Log) -> None:
    log.create_topic("t")
    with log.producer(producer_id="p") as old:
        old.send("t", b"old").result(30)
        with log.producer(producer_id="p") as new:
            assert new.sequence("t", 0) == 1
            assert isinstance(old.send("t", b"late").exception(30), FencedError)
            assert new.sequence("t", 0) == 1
    assert values(log) == [b"old"]


def test_a_holder_that_comes_late_to_a_partition_is_fenced_there(log: Log) -> None:
    log.create_topic("t", partitions=2)
    with log.producer(producer_id="p") as old, log.producer(producer_id="p") as new:
        new.send("t", b"new", partition=1).result(30)
        error = old.send("t", b"late", partition=1).exception(30)
        assert isinstance(error, FencedError)
        assert "epoch 1" in str(error)
        assert "epoch 2" in str(error)


def test_all_that_a_fenced_producer_accepted_has_its_answer(log: Log) -> None:
    """Also batches that were still open when another topic found out; nobody has to ask."""
    log.create_topic("t")
    log.create_topic("u")
    old = log.producer(producer_id="p", linger_ms=LONG)
    old.send("t", b"old").result(30)
    seen: list[StreamlogError | None] = []
    called = threading.Event()

    def callback(metadata: RecordMetadata | None, error: StreamlogError | None) -> None:
        seen.append(error)
        called.set()

    old.send("u", b"open").add_callback(callback)
    with log.producer(producer_id="p") as new:
        new.send("t", b"new").result(30)
        assert isinstance(old.send("t", b"late").exception(30), FencedError)
        assert called.wait(30)
    assert isinstance(seen[0], FencedError)
    old.close()
    assert old.metrics()["buffered_bytes"] == 0


def test_without_an_id_there_is_no_sequence(log: Log) -> None:
    log.create_topic("t")
    with log.producer() as producer:
        producer.send("t", b"v").result(30)
        with pytest.raises(InvalidRequestError, match="only a producer with a producer_id"):
            producer.sequence("t", 0)


def test_a_sequence_of_no_partition_is_refused(log: Log) -> None:
    log.create_topic("t")
    with (
        log.producer(producer_id="p") as producer,
        pytest.raises(PartitionNotFoundError, match="no partition 1"),
    ):
        producer.sequence("t", 1)


def test_a_sequence_asked_for_while_closing_is_refused(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamlog.producer.lane import Lane

    log.create_topic("t")
    hold, came = threading.Event(), threading.Event()
    append = Lane.append

    def slow(lane: Lane, group: object) -> object:
        came.set()
        hold.wait(30)
        return append(lane, group)  # type: ignore[arg-type]

    monkeypatch.setattr(Lane, "append", slow)
    producer = log.producer(producer_id="p", linger_ms=0)
    producer.send("t", b"v")
    assert came.wait(30)
    caught: list[Exception] = []

    def ask() -> None:
        try:
            producer.sequence("t", 0)
        except StreamlogError as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    with pytest.raises(StreamlogError):
        producer.close(timeout=0)
    thread.join(10)
    answered = not thread.is_alive()
    hold.set()
    assert answered
    assert isinstance(caught[0], ClosedError)


@pytest.mark.parametrize("fault", [AFTER, BEFORE])
@pytest.mark.parametrize("skip", range(4))
def test_lost_replies_move_the_sequence_once(fault: object, skip: int) -> None:
    runtime = Runtime()
    objects = open_objects(f"memory://producer-identity-{next(_names)}", None, runtime)
    Log(objects, runtime, "test").create_topic("t")
    script = Script(Rule("put_if_absent", fault, commits, skip=skip, times=2))  # type: ignore[arg-type]
    log = Log(FaultyObjects(objects, script), runtime, "test")
    with log.producer(producer_id="p") as producer:
        for i in range(5):
            assert producer.send("t", b"%d" % i).result(30).offset == i
        assert producer.sequence("t", 0) == 5
    assert script.exhausted
    assert values(log) == [b"%d" % i for i in range(5)]


def test_an_unknown_outcome_never_reuses_its_sequence() -> None:
    """The append may still arrive; another one with its mark would pass for it."""
    runtime = Runtime()
    objects = open_objects(f"memory://producer-identity-{next(_names)}", None, runtime)
    Log(objects, runtime, "test").create_topic("t")
    store = FaultyObjects(objects, Script())
    log = Log(store, runtime, "test")
    with log.producer(producer_id="p", delivery_timeout_ms=60) as producer:
        producer.send("t", b"0").result(30)
        # The put takes effect, but its answer is lost, and then nothing can be read.
        store.plan = Script(
            Rule("put_if_absent", AFTER, commits, times=1),
            Rule("put_if_absent", BEFORE, commits, times=1_000_000),
            Rule("get", BEFORE, commits, times=1_000_000),
        )
        error = producer.send("t", b"unknown").exception(30)
        assert isinstance(error, UnknownOutcomeError)
        store.plan = Script()
        assert producer.sequence("t", 0) == 2
        assert producer.send("t", b"after").result(30).offset == 2
    assert values(log) == [b"0", b"unknown", b"after"]
    with log.producer(producer_id="p") as producer:
        assert producer.sequence("t", 0) == 3


def test_a_sequence_that_is_used_up_takes_a_new_epoch(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "SEQUENCES", 10)
    log.create_topic("t", partitions=2)
    with log.producer(producer_id="p", batch_records=3) as producer:
        for i in range(24):
            producer.send("t", b"%d" % i, partition=i % 2).result(30)
        assert len(values(log)) == 24
        with log.producer(producer_id="p") as newer:
            newer.send("t", b"x", partition=0).result(30)
            assert isinstance(producer.send("t", b"y", partition=0).exception(30), FencedError)


def test_a_used_up_sequence_does_not_take_the_epoch_of_another_holder(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "SEQUENCES", 3)
    log.create_topic("t")
    with log.producer(producer_id="p") as old:
        old.send("t", b"0").result(30)
        old.send("t", b"1").result(30)
        with log.producer(producer_id="p"):
            error = old.send("t", b"2").exception(30)
        assert isinstance(error, FencedError)
        assert "epoch 1" in str(error)
    assert values(log) == [b"0", b"1"]


WRITER = """
import sys
import streamlog
log = streamlog.connect(sys.argv[1])
producer = log.producer(producer_id="p", acks=1, linger_ms=0, batch_records=7)
number = producer.sequence("t", 0)
print("from", number, flush=True)
while True:
    producer.send("t", b"%d" % number)
    number += 1
    if number % 50 == 0:
        producer.flush()
        print(number, flush=True)
"""


@pytest.mark.processes
def test_a_killed_process_goes_on_where_the_log_ends(tmp_path: Path) -> None:
    log = streamlog.connect(tmp_path)
    log.create_topic("t")
    acknowledged = 0
    for kill_after in (1, 3, 2):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            start = int(process.stdout.readline().split()[1])
            assert start >= acknowledged
            for _ in range(kill_after):
                acknowledged = int(process.stdout.readline())
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
    found = [int(value or b"") for value in values(log)]
    assert len(found) >= acknowledged
    assert found == list(range(len(found)))
    with log.producer(producer_id="p") as producer:
        assert producer.sequence("t", 0) == len(found)
