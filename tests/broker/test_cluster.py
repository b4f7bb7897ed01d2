"""Several brokers over one root: they agree on who leads what, and take over from those that go."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from broker.asking import Seen, ask
from broker.harness import running_broker
from broker.processes import SECONDS, BrokerProcess, broker_process
from integration.program import refused

import streamlog

PARTITIONS = 24
# Brokers that beat fast, and are still not taken for dead on a machine that is busy with other things.
QUICK = ("-X", "heartbeat_seconds=0.25", "-X", "missed_heartbeats=16")
STEADY: dict[str, Any] = {"heartbeat_seconds": 0.1, "missed_heartbeats": 100}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    with streamlog.connect(root) as log:
        log.create_topic("t", partitions=PARTITIONS)
    return root


def until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.05)


def agreed(addresses: list[str], nodes: set[int]) -> Seen:
    """Waits until all say the same, and name exactly these brokers."""
    deadline = time.monotonic() + SECONDS
    while True:
        said = [ask(address, "t") for address in addresses]
        if all(one == said[0] for one in said) and set(said[0].brokers) == nodes:
            return said[0]
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


@contextmanager
def processes(root: Path, *each: tuple[str, ...]) -> Iterator[list[BrokerProcess]]:
    """Brokers that start at the same time, one for each list of arguments."""
    with ExitStack() as stack, ThreadPoolExecutor(len(each)) as pool:
        starts = [broker_process(root, *QUICK, *arguments) for arguments in each]
        yield list(pool.map(stack.enter_context, starts))


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_three_brokers_agree_and_two_take_over_from_one_that_is_killed(root: Path) -> None:
    with processes(root, ("--maintain",), ("--rack", "b"), ("--maintain",)) as brokers:
        by_node = {broker.node: broker for broker in brokers}
        assert set(by_node) == {1, 2, 3}
        before = agreed([broker.address for broker in brokers], {1, 2, 3})
        assert before.epoch >= 3
        assert {rack for _, _, rack in before.brokers.values()} == {None, "b"}
        assert {port for _, port, _ in before.brokers.values()} == {b.port for b in brokers}
        count = Counter(before.leaders)
        # Nobody has more than a quarter above its share.
        assert set(count) == {1, 2, 3}
        assert max(count.values()) <= 10
        # The controller is one of those that maintain.
        assert before.controller in (brokers[0].node, brokers[2].node)

        victim = by_node.pop(before.controller)
        victim.kill()
        left = [broker.address for broker in by_node.values()]
        after = agreed(left, set(by_node))
        assert after.epoch > before.epoch
        assert after.controller in (brokers[0].node, brokers[2].node)
        assert after.controller != before.controller
        assert max(Counter(after.leaders).values()) <= 15
        stayed = sum(a == b for a, b in zip(before.leaders, after.leaders, strict=True))
        assert stayed >= PARTITIONS // 3

        # One that stops gracefully is gone at once: long before it would be missed.
        leaver = by_node.pop(next(node for node in by_node if node != after.controller))
        assert leaver.stop() == 0
        last = agreed([broker.address for broker in by_node.values()], set(by_node))
        assert last.epoch > after.epoch
        assert set(last.leaders) == set(by_node)


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_node_id_has_one_holder(root: Path) -> None:
    mine = (*QUICK, "-X", "node_id=7")
    with broker_process(root, *mine) as first:
        assert first.node == 7
        said = refused(root, "broker", "--listen", "127.0.0.1:0", *mine)
        assert f"node_id 7 is held by a broker that lives at 127.0.0.1:{first.port}" in said
        # Fast asleep, it cannot be told from a dead one: the next holder takes its place.
        first.signal(signal.SIGSTOP)
        with broker_process(root, *mine) as second:
            agreed([second.address], {7})
            first.signal(signal.SIGCONT)
            assert first.process.wait(SECONDS) == 1
            assert "another broker took node_id 7" in first.logs()
            found = agreed([second.address], {7})
            assert found.brokers[7][1] == second.port
            second.kill()
        with broker_process(root, *mine) as third:
            assert agreed([third.address], {7}).brokers[7][1] == third.port


def test_brokers_that_come_and_go_at_the_same_time_end_up_agreeing(root: Path) -> None:
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(6))
        enter = [stack.enter_context] * 6
        many = list(
            pool.map(
                lambda enter_one: enter_one(running_broker(root, **STEADY)),
                enter,
            )
        )
        nodes = {broker.broker.cluster.me.node_id for broker in many}
        assert nodes == {1, 2, 3, 4, 5, 6}
        assert agreed([broker.address for broker in many], nodes).epoch >= 6
        with running_broker(root, **STEADY) as late:
            assert late.broker.cluster.me.node_id == 7
            agreed([broker.address for broker in (*many, late)], nodes | {7})
        found = agreed([broker.address for broker in many], nodes)
        assert found.epoch >= 8
        assert max(Counter(found.leaders).values()) <= 5
    # All left, and views that are long past went with them.
    views = sorted(int(path.name) for path in (root / "__brokers/epochs").iterdir())
    assert views[-1] >= 14
    assert views[0] > 1
    assert not list((root / "__brokers/live").iterdir())


@pytest.mark.processes
def test_a_restart_at_the_same_address_replaces_what_was_there(root: Path) -> None:
    with broker_process(root, *QUICK) as first:
        first.kill()
        # Nobody has to wait until the dead one is missed.
        with broker_process(root, *QUICK, listen=first.address) as second:
            found = ask(second.address, "t")
    assert second.node == 2
    assert (found.epoch, set(found.brokers), set(found.leaders)) == (2, {2}, {2})


def test_a_client_s_rack_is_served_by_a_broker_in_it(root: Path) -> None:
    with (
        running_broker(root, **STEADY, rack="a") as one,
        running_broker(root, **STEADY, rack="b") as two,
        running_broker(root, **STEADY, rack="b") as three,
    ):
        agreed([broker.address for broker in (one, two, three)], {1, 2, 3})
        cluster = one.broker.cluster
        near_b = [cluster.near("b", "topic", number) for number in range(PARTITIONS)]
        assert {info.node_id for info in near_b} == {2, 3}
        assert {cluster.near("a", "topic", number).node_id for number in range(9)} == {1}
        for number, info in enumerate(near_b):
            leader = cluster.leader_of("topic", number)
            assert leader.rack == "a" or info == leader
            # No broker there, or no rack told: the leader.
            assert cluster.near("c", "topic", number) == leader
            assert cluster.near(None, "topic", number) == leader
        assert cluster.coordinator_of("g") == two.broker.cluster.coordinator_of("g")


def test_those_who_ask_are_told_of_changes(root: Path) -> None:
    changed = threading.Event()
    with running_broker(root, **STEADY) as one:
        one.broker.cluster.on_change(changed.set)
        assert not changed.is_set()
        with running_broker(root, **STEADY):
            assert changed.wait(SECONDS)


def test_a_storage_that_is_silent_makes_a_broker_unhealthy_not_dead(root: Path) -> None:
    with running_broker(root, heartbeat_seconds=0.1, missed_heartbeats=5) as one:
        assert one.broker.unhealthy() is None
        hidden = root.with_name("hidden")
        # An unmounted disk: nothing can be listed or written any more.
        root.rename(hidden)
        root.write_text("not a folder")
        until(lambda: "storage is silent" in (one.broker.unhealthy() or ""))
        assert [b.node_id for b in one.broker.cluster.brokers()] == [1]
        root.unlink()
        hidden.rename(root)
        until(lambda: one.broker.unhealthy() is None)
