"""The controller: one broker maintains the root, and what a deposed one still commits is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from broker.harness import running_broker
from broker.processes import SECONDS
from hypothesis import given, settings
from hypothesis import strategies as st

import streamlog
from streamlog.clock import Runtime
from streamlog.compaction import rewrite
from streamlog.compaction.rewrite import Job
from streamlog.compaction.segments import FAN_IN
from streamlog.errors import FencedError
from streamlog.log.commit import CONTROLLER, Segment
from streamlog.log.partition import PartitionLog
from streamlog.storage.open import open_objects
from tests.partitions import Partition, append

STEADY: dict[str, Any] = {"heartbeat_seconds": 0.1, "missed_heartbeats": 100}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Topic `t` with forty files."""
    root = tmp_path / "root"
    with streamlog.connect(root) as log:
        log.create_topic("t")
        write(log, 40)
    return root


def write(log: streamlog.Log, files: int) -> None:
    with log.producer(linger_ms=0) as producer:
        for number in range(files):
            producer.send("t", b"%d" % number).result(SECONDS)


def epoch_of(root: Path) -> int | None:
    """The controller's epoch in the table."""
    with streamlog.connect(root, create=False) as log:
        topics = log.admin()
        reader = topics.partition_reader(topics.get("t"), 0)
        reader.refresh()
        return reader.mark(CONTROLLER)


def files_of(root: Path) -> int:
    with streamlog.connect(root, create=False) as log:
        return log.describe("t").files


def wait_for_files(root: Path, most: int) -> None:
    deadline = time.monotonic() + SECONDS
    while files_of(root) > most:
        assert time.monotonic() < deadline, "nobody maintains this root"
        time.sleep(0.05)


# through brokers


def test_the_controller_maintains_and_its_successor_goes_on(root: Path) -> None:
    every = {**STEADY, "maintain": True, "maintain_seconds": 0.1}
    with running_broker(root, **every):
        wait_for_files(root, 1)
        assert epoch_of(root) == 1
        with running_broker(root, **every) as second:
            assert second.broker.cluster.controller_epoch is None
            with streamlog.connect(root) as log:
                write(log, 40)
            # Merged while they come: less than so many may stay.
            wait_for_files(root, FAN_IN - 1)
            assert second.broker.cluster.controller.node_id == 1
            assert second.broker.cluster.controller_epoch is None
    # The first one is gone, the second was the controller for a moment: a third takes over from both.
    with running_broker(root, **every) as third:
        assert third.broker.cluster.controller_epoch == third.broker.cluster.epoch
        with streamlog.connect(root) as log:
            write(log, 40)
        wait_for_files(root, FAN_IN - 1)
        assert (epoch_of(root) or 0) >= 4


def test_a_broker_that_was_not_told_to_does_not_maintain(root: Path) -> None:
    with running_broker(root, **STEADY, maintain_seconds=0.1) as broker:
        assert broker.broker.cluster.controller_epoch == 1
        time.sleep(0.5)
        assert files_of(root) == 40
        assert epoch_of(root) is None


def test_a_deposed_controller_is_refused_where_its_successor_has_been(root: Path) -> None:
    with running_broker(root, **STEADY) as broker, streamlog.connect(root) as log:
        found = broker.broker.log.maintain(controller_epoch=7)
        assert (found.failures, found.numbers()["steps"]) == ([], 1)
        assert epoch_of(root) == 7
        write(log, 40)
        # It is the controller by its own view, whose epoch is 1, and does not know better.
        late = broker.broker.controller.turn()
        assert late is not None
        assert len(late.failures) == 1
        assert "epoch 1 is refused" in late.failures[0]
        assert "epoch 7 has been here" in late.failures[0]
        assert files_of(root) == 41
        # Maintenance that is not a broker's goes on as ever, and leaves the epoch alone.
        assert log.maintain().failures == []
        assert files_of(root) <= 2
        assert epoch_of(root) == 7


def test_beside_a_loop_of_the_command_line_the_controller_stands_by(root: Path) -> None:
    with running_broker(root, **STEADY) as broker, streamlog.connect(root) as log:
        lease = log.lease()
        assert lease.hold()
        assert broker.broker.controller.turn() is None
        lease.release()
        assert broker.broker.controller.turn() is not None
        assert not lease.hold()
        # The next controller does not wait for the one before it, a loop does.
        successor = log.lease(controller=True)
        assert successor.hold()
        assert not lease.hold()


def test_the_lease_goes_back_when_a_broker_stops(root: Path) -> None:
    with running_broker(root, **STEADY, maintain=True, maintain_seconds=0.1):
        wait_for_files(root, 1)
    with streamlog.connect(root) as log:
        assert log.lease().hold()


def test_a_broker_that_is_no_longer_the_controller_gives_the_lease_back(root: Path) -> None:
    with running_broker(root, **STEADY) as first:
        assert first.broker.controller.turn() is not None
        with running_broker(root, **STEADY, maintain=True, maintain_seconds=60) as second:
            # The one that maintains is the controller from here on; the first notices at a beat.
            deadline = time.monotonic() + SECONDS
            while first.broker.cluster.controller_epoch is not None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert second.broker.cluster.controller_epoch == 2
            assert first.broker.controller.turn() is None
    newest = max((root / "__maintenance").iterdir())
    assert newest.read_bytes() == b"" or json.loads(newest.read_bytes())["controller"] is True


# the partition's rule by itself


def partition(name: str) -> Partition:
    runtime = Runtime()
    return Partition(open_objects(f"memory://{name}-{runtime.ids.new()}", None, runtime), runtime)


def merge(part: Partition, files: list[Segment]) -> list[Segment]:
    job = Job(part.table, tuple(files), "none", 1 << 30)
    return list(rewrite.merge(part.objects, part.runtime.ids, job).new)


def merge_all(part: Partition, log: PartitionLog, epoch: int | None) -> bool:
    files = list(part.reader().segments)
    return log.rewrite(files, merge(part, files), controller_epoch=epoch)


def test_the_epoch_is_compared_at_the_version_committed_to() -> None:
    part = partition("epoch-race")
    for value in (b"a", b"b", b"c"):
        append(part.log(), value)
    deposed, successor = part.log(), part.log()
    deposed.refresh()
    # The successor commits after the deposed one has looked, and before it commits.
    assert successor.truncate(1, controller_epoch=5) == 1
    before = part.reader().version
    with pytest.raises(FencedError, match="epoch 4 is refused"):
        deposed.truncate(2, controller_epoch=4)
    with pytest.raises(FencedError, match="epoch 5 has been here"):
        merge_all(part, deposed, 4)
    assert part.reader().version == before
    assert part.reader().start == 1
    # The same epoch, a later one and none at all go on.
    assert merge_all(part, successor, 5)
    assert deposed.truncate(2, controller_epoch=6) == 2
    assert part.log().truncate(3) == 3
    assert part.reader().mark(CONTROLLER) == 6


def test_nothing_to_do_commits_no_epoch() -> None:
    part = partition("epoch-idle")
    append(part.log(), b"a")
    version = part.reader().version
    assert part.log().truncate(0, controller_epoch=3) == 0
    assert part.reader().version == version
    assert part.reader().mark(CONTROLLER) is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.none() | st.integers(1, 6), min_size=1, max_size=8))
def test_epochs_in_a_table_never_fall(epochs: list[int | None]) -> None:
    part = partition("epoch-order")
    highest = None
    for number, epoch in enumerate(epochs):
        append(part.log(), b"x")
        start = part.reader().start
        if epoch is not None and highest is not None and epoch < highest:
            with pytest.raises(FencedError):
                part.log().truncate(number + 1, controller_epoch=epoch)
            assert part.reader().start == start
        else:
            assert part.log().truncate(number + 1, controller_epoch=epoch) == number + 1
            highest = epoch if epoch is not None else highest
        assert part.reader().mark(CONTROLLER) == highest
