"""Batches of Kafka's producers through a storage that fails, and through several brokers at once (rule 3).

A client repeats a batch until it is answered; whatever was lost on the way, it is in the log once.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from streamlog.broker.appends import Appender, Wanted
from streamlog.broker.kafka_errors import Code, code_of
from streamlog.clock import Runtime
from streamlog.log.partition import RegroupError
from streamlog.log.sequences import BatchMark
from streamlog.storage.delta import write_checkpoint
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects
from tests.fakes import FakeClock, any_root, fake_runtime
from tests.fault.faulty import AFTER, BEFORE, Chaos, FaultyObjects, Kind, Rule, Script, commits
from tests.partitions import T0, Partition, append, columns

RATES = {Kind.BEFORE: 0.05, Kind.AFTER: 0.05, Kind.CONFLICT: 0.05}


def partition_commits(path: str) -> bool:
    return commits(path) and path.startswith("topics/t/")


@pytest.fixture(params=["memory", "disk"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return open_objects(any_root(request, tmp_path), None, Runtime())


@pytest.fixture
def partition(objects: Objects) -> Partition:
    return Partition(objects, fake_runtime(clock=FakeClock()))


class Broker:
    """The produce path of one broker over a partition."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.appender = Appender(
            partition.log(), partition.runtime, max_decompressed=1 << 20, commit_seconds=30
        )

    def send(self, *requests: bytes) -> list[int | Code]:
        """Offsets, or the code of the refusal, of requests that are committed together."""
        group = [Wanted(data, durable=True) for data in requests]
        self.appender.append(self.partition.info, group, 0)
        answers: list[int | Code] = []
        for wanted in group:
            if wanted.answer.error is not None:
                answers.append(Code(code_of(wanted.answer.error)))
            else:
                assert wanted.answer.offset is not None
                answers.append(wanted.answer.offset)
        return answers


def batch(producer: int, first: int, *values: bytes, epoch: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer, epoch, first, 1 << 20)
    for index, value in enumerate(values):
        builder.append(index, timestamp=T0, key=None, value=value, headers=[])
    return bytes(builder.build())


def values(partition: Partition) -> list[bytes | None]:
    return [value for _, value in partition.contents()]


def test_a_repeated_batch_is_answered_with_its_first_place(partition: Partition) -> None:
    broker = Broker(partition)
    one, two = batch(7, 0, b"a", b"b"), batch(7, 2, b"c")
    assert broker.send(one, two) == [0, 2]
    assert broker.send(two, one) == [2, 0]
    # Another broker, and one that opened the log anew, know it as well.
    assert Broker(partition).send(one) == [0]
    assert values(partition) == [b"a", b"b", b"c"]


def test_a_gap_an_old_epoch_and_a_damaged_batch_fail_alone(partition: Partition) -> None:
    broker = Broker(partition)
    torn = batch(9, 0, b"torn")[:-1]
    answers = broker.send(batch(7, 0, b"a"), batch(7, 5, b"gap"), torn, batch(8, 0, b"b"))
    assert answers == [0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.CORRUPT_MESSAGE, 1]
    assert broker.send(batch(7, 0, b"new", epoch=1)) == [2]
    assert broker.send(batch(7, 1, b"old", epoch=0)) == [Code.INVALID_PRODUCER_EPOCH]
    assert values(partition) == [b"a", b"b", b"new"]


def test_a_batch_older_than_five_is_a_duplicate_without_a_place(partition: Partition) -> None:
    broker = Broker(partition)
    for number in range(7):
        assert broker.send(batch(7, number, b"%d" % number)) == [number]
    assert broker.send(batch(7, 0, b"0")) == [Code.DUPLICATE_SEQUENCE_NUMBER]
    assert len(values(partition)) == 7


def test_a_lost_answer_is_found_again(partition: Partition) -> None:
    broker = Broker(partition)
    broker.send(batch(7, 0, b"a"))
    weak = FaultyObjects(partition.objects, Script(Rule("put_if_absent", AFTER, partition_commits)))
    assert Broker(partition.over(weak)).send(batch(7, 1, b"b"), batch(8, 0, b"c")) == [1, 2]
    assert weak.fired
    assert values(partition) == [b"a", b"b", b"c"]


def test_a_batch_that_another_broker_wrote_meanwhile_is_not_written_again(
    partition: Partition,
) -> None:
    slow, fast = Broker(partition), Broker(partition)
    assert slow.send(batch(7, 0, b"a")) == [0]
    # The client gave up on the slow broker, and repeats all it has at the other one.
    assert fast.send(batch(7, 1, b"b")) == [1]
    assert slow.send(batch(8, 0, b"x"), batch(7, 1, b"b"), batch(7, 2, b"c")) == [2, 1, 3]
    assert values(partition) == [b"a", b"b", b"x", b"c"]


def test_a_broker_that_lags_behind_does_not_call_the_next_batch_a_gap(partition: Partition) -> None:
    behind, ahead = Broker(partition), Broker(partition)
    assert behind.send(batch(7, 0, b"a")) == [0]
    assert ahead.send(batch(7, 1, b"b")) == [1]
    assert ahead.send(batch(7, 2, b"c")) == [2]
    assert behind.send(batch(7, 3, b"d"), batch(7, 4, b"e")) == [3, 4]
    assert behind.send(batch(7, 9, b"x")) == [Code.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert values(partition) == [b"a", b"b", b"c", b"d", b"e"]


def test_an_append_whose_batches_are_no_longer_next_writes_nothing(partition: Partition) -> None:
    log, other = partition.log(), partition.log()
    mark = BatchMark(7, 0, 0, 0)
    log.refresh()
    other.append(columns(b"a"), durable=True, compression="none", batches=[mark])
    with pytest.raises(RegroupError):
        log.append(columns(b"a"), durable=True, compression="none", batches=[mark])
    assert values(partition) == [b"a"]
    assert [v.judgement for v in log.judge([mark, BatchMark(7, 0, 1, 1)])] == ["duplicate", "next"]


def test_the_marks_survive_checkpoints_and_cleaned_commits(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path / "root"), None, Runtime())
    partition = Partition(objects, Runtime())
    broker = Broker(partition)
    broker.send(batch(7, 0, b"a", b"b"))
    for number in range(5):
        append(partition.log(), b"%d" % number)
    write_checkpoint(objects, partition.table, partition.reader().version)
    log = sorted((tmp_path / "root" / partition.table / "_delta_log").glob("*.json"))
    for commit in log[:-1]:
        commit.unlink()
    assert Broker(partition).send(batch(7, 0, b"a", b"b")) == [Code.DUPLICATE_SEQUENCE_NUMBER]
    assert Broker(partition).send(batch(7, 2, b"c")) == [7]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_storage_and_the_network_lose_each_record_is_there_once(
    objects: Objects, seed: int
) -> None:
    """Three producers, three brokers, each with its own faulty storage; clients repeat until answered."""
    rng = random.Random(seed)
    clock = FakeClock()
    sound = Partition(objects, fake_runtime(clock=clock))
    sound.log().refresh()

    def broker() -> Broker:
        chaos = Chaos(rng.randrange(1 << 30), RATES, where=lambda p: p.startswith("topics/t/"))
        weak = FaultyObjects(objects, chaos, clock)
        return Broker(Partition(weak, fake_runtime(rng.randrange(1 << 30), clock)))

    brokers = [broker() for _ in range(3)]
    queues = {
        producer: [(first, b"%d-%d" % (producer, first)) for first in range(8)]
        for producer in (1, 2, 3)
    }
    placed: dict[bytes, int] = {}
    for _ in range(2000):
        if not any(queues.values()):
            break
        chosen = rng.choice(brokers)
        # Up to three of each producer at once, in order, as clients have several requests under way.
        sending = [
            (producer, *entry)
            for producer, queue in queues.items()
            for entry in queue[: rng.randint(0, 3)]
        ]
        if not sending:
            continue
        answers = chosen.send(
            *[batch(producer, first, value) for producer, first, value in sending]
        )
        failed: set[int] = set()
        for (producer, first, value), answer in zip(sending, answers, strict=True):
            lost = rng.random() < 0.2
            done = isinstance(answer, int) and not isinstance(answer, Code)
            if (
                (done or answer is Code.DUPLICATE_SEQUENCE_NUMBER)
                and not lost
                and producer not in failed
            ):
                queues[producer].remove((first, value))
                if done:
                    assert isinstance(answer, int)
                    assert placed.setdefault(value, answer) == answer
            else:
                failed.add(producer)
        if rng.random() < 0.1:
            brokers[rng.randrange(3)] = broker()
    assert not any(queues.values())
    found = values(sound)
    assert sorted(v for v in found if v) == sorted(
        b"%d-%d" % (producer, first) for producer in (1, 2, 3) for first in range(8)
    )
    for producer in (1, 2, 3):
        mine = [v for v in found if v and v.startswith(b"%d-" % producer)]
        assert mine == [b"%d-%d" % (producer, first) for first in range(8)]
    assert all(found[offset] == value for value, offset in placed.items())


def test_records_without_sequences_that_were_not_written_are_told(partition: Partition) -> None:
    assert Broker(partition).send(b"") == [Code.INVALID_RECORD]
    silent = Script(Rule("put_if_absent", BEFORE, partition_commits, times=10_000))
    broker = Broker(partition.over(FaultyObjects(partition.objects, silent)))
    partition.log().refresh()
    assert broker.send(batch(-1, -1, b"x", epoch=-1)) == [Code.REQUEST_TIMED_OUT]
    assert values(partition) == []
