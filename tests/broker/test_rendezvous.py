"""Who serves what: evenly spread, and few moves when a broker comes or goes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.rendezvous import Spread, pick

NODES = st.sets(st.integers(1, 10_000), min_size=1, max_size=12).map(sorted)


def leaders(topic: str, partitions: int, nodes: list[int]) -> list[int]:
    spread = Spread(topic, nodes)
    return [spread.node(number) for number in range(partitions)]


@given(st.text(max_size=20), NODES)
def test_one_thing_moves_only_with_its_broker(thing: str, nodes: list[int]) -> None:
    chosen = pick(thing, nodes)
    assert chosen == pick(thing, nodes[::-1])
    for gone in nodes:
        rest = [node for node in nodes if node != gone]
        if rest and gone != chosen:
            assert pick(thing, rest) == chosen


def test_many_things_spread_evenly() -> None:
    count = Counter(pick(f"group/{number}", [1, 2, 3, 4, 5]) for number in range(5_000))
    assert all(850 < count[node] < 1_150 for node in (1, 2, 3, 4, 5)), count


@given(st.text(max_size=20), st.integers(1, 100), NODES)
def test_no_broker_leads_more_than_its_bounded_share_of_a_topic(
    topic: str, partitions: int, nodes: list[int]
) -> None:
    count = Counter(leaders(topic, partitions, nodes))
    assert max(count.values()) <= -(-5 * partitions // (4 * len(nodes)))


@given(st.text(max_size=20), NODES, st.integers(0, 60))
def test_a_partition_s_leader_depends_on_the_brokers_alone(
    topic: str, nodes: list[int], number: int
) -> None:
    # Not on the order in which they are listed, nor on how many partitions the topic has or was asked for.
    fresh = Spread(topic, nodes[::-1])
    assert fresh.node(number) == leaders(topic, number + 10, nodes)[number]
    assert fresh.node(0) == leaders(topic, 1, nodes)[0]


def test_few_partitions_move_when_a_broker_goes() -> None:
    for nodes, partitions, most in (([1, 2, 3], 12, 1.6), ([1, 2, 3, 4, 5], 50, 1.8)):
        moved = 0
        for topic in range(100):
            before = leaders(f"t{topic}", partitions, nodes)
            after = leaders(f"t{topic}", partitions, nodes[:-1])
            moved += sum(a != b for a, b in zip(before, after, strict=True))
        # A share of 1/n has to move at the least.
        assert moved / (100 * partitions / len(nodes)) < most
