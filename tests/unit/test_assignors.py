"""Assignors: one owner a partition, balance, the fewest changes of owner, the same for any order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.consumer.assignors import (
    ASSIGNORS,
    COOPERATIVE_STICKY,
    RANGE,
    ROUND_ROBIN,
    STICKY,
    Assignment,
    Assignor,
    Member,
    choose,
    resolve,
    validate,
)
from streamlog.errors import InvalidRequestError
from streamlog.model import TopicPartition

every_assignor = pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS.keys())


@dataclass(frozen=True)
class Group:
    members: list[Member]
    partitions: dict[str, int]

    @property
    def readable(self) -> list[TopicPartition]:
        """All partitions that must have an owner."""
        read = {topic for member in self.members for topic in member.topics}
        return [
            TopicPartition(topic, p)
            for topic in sorted(read & self.partitions.keys())
            for p in range(self.partitions[topic])
        ]


@st.composite
def groups(
    draw: st.DrawFn,
    *,
    members: int = 7,
    topics: int = 4,
    partitions: int = 7,
    same: bool = False,
    owning: bool = True,
) -> Group:
    """A group; `same`: all subscribe alike. What is owned is anything, but nothing twice."""
    names = [f"t{i}" for i in range(draw(st.integers(1, topics)))]
    counts = {name: draw(st.integers(0, partitions)) for name in names}
    how_many = draw(st.integers(1, members))
    some = st.frozensets(st.sampled_from([*names, "gone"]))
    common = draw(some)
    found = [
        Member(
            id=f"m{i}",
            topics=common if same else draw(some),
            instance=draw(st.none() | st.just(f"i{9 - i}")),
        )
        for i in range(how_many)
    ]
    if owning:
        # Also partitions that are gone, and topics somebody does not read any more.
        everything = [TopicPartition(t, p) for t in [*names, "gone"] for p in range(partitions + 1)]
        few = draw(st.integers(0, how_many))  # so that some groups are far out of balance
        size = len(everything)
        owners = [b % (few + 1) - 1 for b in draw(st.binary(min_size=size, max_size=size))]
        owned: dict[int, set[TopicPartition]] = {}
        for tp, owner in zip(everything, owners, strict=True):
            owned.setdefault(owner, set()).add(tp)
        found = [replace(m, owned=frozenset(owned.get(i, ()))) for i, m in enumerate(found)]
    return Group(draw(st.permutations(found)), counts)


def after(members: Sequence[Member], assignment: Mapping[str, Sequence[TopicPartition]]) -> Any:
    """The members as they are once they own what they were given."""
    return [replace(m, owned=frozenset(assignment.get(m.id, ()))) for m in members]


def owners_of(assignment: Assignment) -> dict[TopicPartition, str]:
    return {tp: member for member, tps in assignment.items() for tp in tps}


def kept(group: Group, assignment: Assignment) -> int:
    return sum(len(m.owned & set(assignment[m.id])) for m in group.members)


def loads(assignment: Assignment) -> list[int]:
    return sorted(len(tps) for tps in assignment.values())


def alike(*ids: str, topics: str = "t") -> list[Member]:
    return [Member(name, frozenset(topics.split())) for name in ids]


def texts(assignment: Assignment) -> dict[str, str]:
    return {member: " ".join(map(str, tps)) for member, tps in assignment.items()}


# ---------------------------------------------------------------------------------- every strategy


@every_assignor
@settings(max_examples=50)
@given(group=groups())
def test_every_partition_has_exactly_one_owner_who_subscribes(
    assignor: Assignor, group: Group
) -> None:
    found = assignor.assign(group.members, group.partitions)
    assert found.keys() == {member.id for member in group.members}
    assert sorted(tp for tps in found.values() for tp in tps) == group.readable
    for member in group.members:
        assert {tp.topic for tp in found[member.id]} <= member.topics
        assert found[member.id] == sorted(found[member.id])


@every_assignor
@settings(max_examples=50)
@given(group=groups(), data=st.data())
def test_the_order_of_members_and_topics_does_not_matter(
    assignor: Assignor, group: Group, data: st.DataObject
) -> None:
    members = data.draw(st.permutations(group.members))
    partitions = dict(data.draw(st.permutations(list(group.partitions.items()))))
    assert assignor.assign(members, partitions) == assignor.assign(group.members, group.partitions)


@every_assignor
@settings(max_examples=50)
@given(members=st.integers(1, 12), partitions=st.integers(0, 12))
def test_members_beyond_the_partitions_are_idle(
    assignor: Assignor, members: int, partitions: int
) -> None:
    found = assignor.assign(alike(*(f"m{i:02}" for i in range(members))), {"t": partitions})
    each, extra = divmod(partitions, members)
    assert loads(found) == [each] * (members - extra) + [each + 1] * extra


@every_assignor
def test_a_static_member_keeps_its_place_through_a_restart(assignor: Assignor) -> None:
    topics = frozenset({"t"})
    before = [
        Member("a-1", topics, instance="x"),
        Member("b-1", topics, instance="y"),
        Member("0", topics),
    ]
    restarted = [
        Member("z-2", topics, instance="x"),
        Member("b-1", topics, instance="y"),
        Member("0", topics),
    ]
    old = assignor.assign(before, {"t": 5})
    new = assignor.assign(restarted, {"t": 5})
    assert [new[m] for m in ("z-2", "b-1", "0")] == [old[m] for m in ("a-1", "b-1", "0")]
    assert len(old["0"]) == 1  # who has no instance id comes last, whatever its id


@every_assignor
def test_nobody_and_nothing_are_assigned(assignor: Assignor) -> None:
    assert assignor.assign([], {"t": 3}) == {}
    assert assignor.assign(alike("a", "b"), {}) == {"a": [], "b": []}
    assert assignor.assign(alike("a", "b"), {"t": 0}) == {"a": [], "b": []}
    assert assignor.assign(alike("a", "b"), {"other": 3}) == {"a": [], "b": []}


@every_assignor
def test_two_members_of_one_id_are_refused(assignor: Assignor) -> None:
    with pytest.raises(InvalidRequestError, match="two members have the id 'b'"):
        assignor.assign(alike("a", "b", "b"), {"t": 3})


@every_assignor
@pytest.mark.parametrize("topics", [1, 100])
def test_a_large_group_is_assigned_at_once(assignor: Assignor, topics: int) -> None:
    """100 members, 10,000 partitions; with many topics, each member reads most but not all."""
    partitions = {f"t{i:03}": 10_000 // topics for i in range(topics)}
    members = [
        Member(
            f"m{i:03}",
            frozenset(t for n, t in enumerate(partitions) if topics == 1 or (n * 7 + i) % 10),
        )
        for i in range(100)
    ]
    first = assignor.assign(members[:90], partitions)
    started = time.perf_counter()
    found = assignor.assign(after(members, first), partitions)
    assert time.perf_counter() - started < 1
    assert sum(loads(found)) == 10_000


# ------------------------------------------------------------------------------ range, round robin


@given(group=groups(owning=False))
def test_range_cuts_each_topic_into_contiguous_pieces_in_the_order_of_members(group: Group) -> None:
    found = RANGE.assign(group.members, group.partitions)
    ordered = sorted(group.members, key=lambda m: (m.instance is None, m.instance or m.id))
    for topic, count in group.partitions.items():
        readers = [m.id for m in ordered if topic in m.topics]
        pieces = [[tp.partition for tp in found[m] if tp.topic == topic] for m in readers]
        if readers:
            assert [p for piece in pieces for p in piece] == list(range(count))
            sizes = [len(piece) for piece in pieces]
            assert sizes == sorted(sizes, reverse=True)
            assert sizes[0] - sizes[-1] <= 1


@given(members=st.integers(1, 8), count=st.integers(0, 20), topics=st.integers(2, 4))
def test_range_lines_up_topics_of_the_same_size(members: int, count: int, topics: int) -> None:
    names = [f"t{i}" for i in range(topics)]
    group = alike(*(f"m{i}" for i in range(members)), topics=" ".join(names))
    for tps in RANGE.assign(group, dict.fromkeys(names, count)).values():
        pieces = [{tp.partition for tp in tps if tp.topic == name} for name in names]
        assert all(one == other for one, other in pairwise(pieces))


def test_range_gives_what_kafka_gives() -> None:
    found = RANGE.assign(alike("C0", "C1", topics="t0 t1"), {"t0": 3, "t1": 3})
    assert texts(found) == {"C0": "t0-0 t0-1 t1-0 t1-1", "C1": "t0-2 t1-2"}


def test_round_robin_gives_what_kafka_gives() -> None:
    same = ROUND_ROBIN.assign(alike("C0", "C1", topics="t0 t1"), {"t0": 3, "t1": 3})
    assert texts(same) == {"C0": "t0-0 t0-2 t1-1", "C1": "t0-1 t1-0 t1-2"}
    members = [
        Member("C0", frozenset({"t0"})),
        Member("C1", frozenset({"t0", "t1"})),
        Member("C2", frozenset({"t0", "t1", "t2"})),
    ]
    different = ROUND_ROBIN.assign(members, {"t0": 1, "t1": 2, "t2": 3})
    assert texts(different) == {"C0": "t0-0", "C1": "t1-0", "C2": "t1-1 t2-0 t2-1 t2-2"}


@given(group=groups(same=True))
def test_round_robin_is_balanced_within_one_over_all_topics(group: Group) -> None:
    found = loads(ROUND_ROBIN.assign(group.members, group.partitions))
    assert found[-1] - found[0] <= 1


# ------------------------------------------------------------------------------------------ sticky


def best_by_trying_all(group: Group) -> tuple[int, int]:
    """The smallest sum of squared loads, and the most partitions kept at that."""
    tps = group.readable
    choices = [[m for m in group.members if tp.topic in m.topics] for tp in tps]
    best = []
    for owners in product(*choices):
        counts = Counter(owner.id for owner in owners)
        stay = sum(tp in owner.owned for tp, owner in zip(tps, owners, strict=True))
        best.append((sum(n * n for n in counts.values()), -stay))
    squares, stay = min(best)
    return squares, -stay


@given(group=groups(members=4, topics=3, partitions=2))
def test_sticky_finds_the_best_balance_and_then_moves_the_least(group: Group) -> None:
    found = STICKY.assign(group.members, group.partitions)
    squares = sum(n * n for n in loads(found))
    assert (squares, kept(group, found)) == best_by_trying_all(group)


def best_by_adding_one_by_one(group: Group) -> tuple[int, int]:
    """The same for larger groups: each partition takes the cheapest way in, displacing others.

    Successive shortest paths of a flow of minimum cost; shares nothing with the code under test.
    """
    owned = {m.id: m.owned for m in group.members}
    owner: dict[TopicPartition, str] = {}
    counts = dict.fromkeys(owned, 0)
    for new in group.readable:
        price_of: dict[TopicPartition, int] = {new: 0}
        price_at: dict[str, int] = {}
        through: dict[str, TopicPartition] = {}
        queue = [new]
        while queue:
            tp = queue.pop(0)
            for m in group.members:
                price = price_of[tp] + (tp not in m.owned)
                if tp.topic not in m.topics or price >= price_at.get(m.id, price + 1):
                    continue
                price_at[m.id], through[m.id] = price, tp
                for other in [other for other, held_by in owner.items() if held_by == m.id]:
                    displaced = price - (other not in m.owned)
                    if displaced < price_of.get(other, displaced + 1):
                        price_of[other] = displaced
                        queue.append(other)
        end: str | None = min(price_at, key=lambda m: (counts[m], price_at[m]))
        counts[str(end)] += 1
        while end is not None:
            tp = through[end]
            owner[tp], end = end, owner.get(tp)
    return sum(n * n for n in counts.values()), sum(tp in owned[m] for tp, m in owner.items())


def scattered(rng: Random) -> Group:
    """A group of some size whose members read different topics, often one that was in balance."""
    partitions = {f"t{i}": rng.randint(0, 8) for i in range(rng.randint(2, 7))}
    ids = [f"m{i}" for i in range(rng.randint(2, 9))]
    reads, skew = rng.choice([0.3, 0.5, 0.8]), rng.choice([0.1, 0.5, 0.9])
    owned: Assignment = {name: [] for name in ids}
    for topic, count in partitions.items():
        for p in range(count):
            owner = rng.choice([*ids, None]) if rng.random() < skew else ids[0]
            if owner is not None:
                owned[owner].append(TopicPartition(topic, p))
    members = [
        Member(name, frozenset(t for t in partitions if rng.random() < reads)) for name in ids
    ]
    members = after(members, owned)
    if rng.random() < 0.5:
        balanced = after(members, STICKY.assign(members, partitions))
        members = [
            replace(m, topics=m.topics ^ {"t0"}) if rng.random() < 0.2 else m for m in balanced[1:]
        ]
    return Group(members, partitions)


def test_sticky_finds_the_best_in_larger_groups_that_read_different_topics() -> None:
    for seed in range(300):
        group = scattered(Random(seed))
        found = STICKY.assign(group.members, group.partitions)
        squares = sum(n * n for n in loads(found))
        best = best_by_adding_one_by_one(group)
        assert (squares, kept(group, found)) == best, f"seed {seed}"


@given(group=groups(members=12, topics=6, partitions=20, same=True))
def test_sticky_is_balanced_within_one_and_moves_only_surplus_and_orphans(group: Group) -> None:
    found = STICKY.assign(group.members, group.partitions)
    sizes = loads(found)
    assert sizes[-1] - sizes[0] <= 1
    # Nobody can keep more than its share, and only `extra` of them can keep one more.
    share, extra = divmod(len(group.readable), len(group.members))
    owned = [len(m.owned & set(group.readable)) for m in group.members]
    above = sum(n > share for n in owned)
    assert kept(group, found) == sum(min(n, share) for n in owned) + min(above, extra)


@given(group=groups(members=12, topics=8, partitions=12))
def test_sticky_leaves_no_partition_that_could_go_to_somebody_with_two_less(group: Group) -> None:
    found = STICKY.assign(group.members, group.partitions)
    for tps in found.values():
        for topic in {tp.topic for tp in tps}:
            for member in group.members:
                if topic in member.topics:
                    assert len(tps) - len(found[member.id]) < 2


@given(group=groups(members=12, topics=8, partitions=12))
def test_sticky_changes_nothing_of_its_own_result(group: Group) -> None:
    found = STICKY.assign(group.members, group.partitions)
    assert STICKY.assign(after(group.members, found), group.partitions) == found


@given(group=groups(members=10, topics=5, partitions=20, same=True), data=st.data())
def test_when_members_leave_only_their_partitions_move(group: Group, data: st.DataObject) -> None:
    before = STICKY.assign(group.members, group.partitions)
    staying = data.draw(st.integers(1, len(group.members)))
    members = after(group.members, before)[:staying]
    found = STICKY.assign(members, group.partitions)
    for member in members:
        assert member.owned <= set(found[member.id])


@given(group=groups(members=10, topics=5, partitions=20, same=True))
def test_a_joining_member_takes_its_share_and_nobody_else_gains(group: Group) -> None:
    before = STICKY.assign(group.members, group.partitions)
    newcomer = Member("new", group.members[0].topics)
    found = STICKY.assign([*after(group.members, before), newcomer], group.partitions)
    for member in group.members:
        assert set(found[member.id]) <= set(before[member.id])
    assert len(found["new"]) == len(group.readable) // (len(group.members) + 1)


@given(group=groups(members=8, topics=3, partitions=10, same=True), more=st.integers(1, 10))
def test_partitions_added_to_a_topic_leave_the_old_ones_where_they_are(
    group: Group, more: int
) -> None:
    before = STICKY.assign(group.members, group.partitions)
    grown = {topic: count + more for topic, count in group.partitions.items()}
    found = STICKY.assign(after(group.members, before), grown)
    for member, tps in before.items():
        assert set(tps) <= set(found[member])


@given(group=groups(members=8, topics=4, partitions=8), data=st.data())
def test_what_two_members_claim_is_given_once(group: Group, data: st.DataObject) -> None:
    members = [
        replace(m, owned=m.owned | data.draw(st.frozensets(st.sampled_from(group.readable))))
        if group.readable
        else m
        for m in group.members
    ]
    found = STICKY.assign(members, group.partitions)
    assert sorted(tp for tps in found.values() for tp in tps) == group.readable
    assert STICKY.assign(members[::-1], group.partitions) == found


def test_what_two_members_claim_goes_to_the_one_with_less() -> None:
    tps = [TopicPartition("t", p) for p in range(5)]
    a, b, c = alike("a", "b", "c")
    members = [
        replace(a, owned=frozenset({tps[0], tps[1], tps[2]})),
        replace(b, owned=frozenset({tps[3]})),
        replace(c, owned=frozenset({tps[2], tps[4]})),
    ]
    found = STICKY.assign(members, {"t": 5})
    assert texts(found) == {"a": "t-0 t-1", "b": "t-3", "c": "t-2 t-4"}


def test_what_does_not_exist_any_more_is_not_kept() -> None:
    gone = {TopicPartition("t", 2), TopicPartition("gone", 0), TopicPartition("left", 0)}
    a, b = alike("a", "b")
    members = [replace(a, owned=frozenset(gone)), replace(b, topics=frozenset({"t", "left"}))]
    found = STICKY.assign(members, {"t": 2, "left": 1})
    assert texts(found) == {"a": "t-0 t-1", "b": "left-0"}


def test_a_chain_of_handovers_balances_what_no_single_one_can() -> None:
    """a reads x, b reads both, c reads y: a's surplus reaches c only through b."""
    x = [TopicPartition("x", p) for p in range(3)]
    y = [TopicPartition("y", p) for p in range(3)]
    members = [
        Member("a", frozenset({"x"}), frozenset(x)),
        Member("b", frozenset({"x", "y"}), frozenset(y[:2])),
        Member("c", frozenset({"y"}), frozenset(y[2:])),
    ]
    found = STICKY.assign(members, {"x": 3, "y": 3})
    assert loads(found) == [2, 2, 2]
    assert kept(Group(members, {}), found) == 4


def test_who_gives_away_keeps_some_of_each_topic() -> None:
    alone = alike("a", topics="t u")
    members = after(alike("a", "b", topics="t u"), STICKY.assign(alone, {"t": 4, "u": 4}))
    found = STICKY.assign(members, {"t": 4, "u": 4})
    assert texts(found) == {"a": "t-0 t-1 u-0 u-1", "b": "t-2 t-3 u-2 u-3"}


def test_a_new_group_is_dealt_each_topic_in_turn() -> None:
    found = STICKY.assign(alike("a", "b", topics="t u"), {"t": 3, "u": 3})
    assert texts(found) == {"a": "t-0 t-2 u-1", "b": "t-1 u-0 u-2"}


@given(group=groups())
def test_cooperative_sticky_assigns_as_sticky_does(group: Group) -> None:
    assert COOPERATIVE_STICKY.assign(group.members, group.partitions) == STICKY.assign(
        group.members, group.partitions
    )


def test_only_cooperative_sticky_lets_go_on_reading() -> None:
    assert {name: assignor.cooperative for name, assignor in ASSIGNORS.items()} == {
        "range": False,
        "roundrobin": False,
        "sticky": False,
        "cooperative-sticky": True,
    }
    assert all(name == assignor.name for name, assignor in ASSIGNORS.items())


# ------------------------------------------------------------------------------- choose, resolve


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [
        ([["range"]], "range"),
        ([["range", "sticky"], ["sticky", "range"]], "range"),
        ([["sticky", "range"], ["range", "sticky"]], "sticky"),
        ([["range", "sticky"], ["sticky", "range"], ["sticky", "range"]], "sticky"),
        ([["range", "sticky"], ["sticky"]], "sticky"),
        # What only some have gets no vote: the next preference of those members counts.
        (
            [["mine", "range", "sticky"], ["sticky", "range"], ["other", "sticky", "range"]],
            "sticky",
        ),
    ],
)
def test_the_strategy_most_members_prefer_is_chosen(
    strategies: list[list[str]], expected: str
) -> None:
    assert choose(strategies) == expected


def test_members_without_a_common_strategy_are_told_what_each_has() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        choose([["range", "sticky"], ["roundrobin"], ["range", "sticky"]])
    assert "2 members have range, sticky; 1 member has roundrobin" in str(caught.value)
    with pytest.raises(InvalidRequestError, match="without members"):
        choose([])
    with pytest.raises(InvalidRequestError, match="1 member has none"):
        choose([["range"], []])


class First:
    """A user's own strategy: all to the first member that reads the topic."""

    def __init__(self, name: Any = "first", cooperative: Any = False) -> None:
        self.name = name
        self.cooperative = cooperative

    def assign(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Assignment:
        found: Assignment = {member.id: [] for member in members}
        for topic, count in partitions.items():
            for member in [m for m in members if topic in m.topics][:1]:
                found[member.id] += [TopicPartition(topic, p) for p in range(count)]
        return found


def test_settings_are_names_or_objects_one_or_several() -> None:
    mine = First()
    assert resolve("sticky") == [STICKY]
    assert resolve(mine) == [mine]
    assert resolve(RANGE) == [RANGE]
    assert resolve(["cooperative-sticky", mine, "range"]) == [COOPERATIVE_STICKY, mine, RANGE]
    assert resolve(("range", ROUND_ROBIN)) == [RANGE, ROUND_ROBIN]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("round-robin", "no strategy 'round-robin'; did you mean 'roundrobin'"),
        ("Sticky", "did you mean 'sticky'"),
        ("cooperative_sticky", "did you mean 'cooperative-sticky'"),
        ("xyz", "known: range, roundrobin, sticky, cooperative-sticky"),
        ([], "is empty; known: range"),
        (["range", "range"], "has 'range' twice"),
        (["sticky", STICKY], "has 'sticky' twice"),
        ([First(), First()], "has 'first' twice"),
        (First, r"has the class First; give an object of it: First\(\)"),
        (First(name=""), r"lacks name \(a text that is not empty\);"),
        (First(name=3), r"lacks name \(a text"),
        (First(cooperative=1), r"lacks cooperative \(True or False\);"),
        (None, r"None is no strategy, it lacks name .*, cooperative .*, assign \(a method"),
        (First(name="range"), "is called 'range', which is a strategy of streamlog"),
    ],
)
def test_a_wrong_setting_is_refused(setting: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        resolve(setting)


# ---------------------------------------------------------------------------------------- validate


@given(group=groups())
def test_a_right_assignment_is_valid(group: Group) -> None:
    for assignor in (*ASSIGNORS.values(), First()):
        validate(assignor.assign(group.members, group.partitions), group.members, group.partitions)


@given(group=groups(owning=False), data=st.data())
def test_a_partition_lost_or_doubled_is_noticed(group: Group, data: st.DataObject) -> None:
    found = STICKY.assign(group.members, group.partitions)
    if not group.readable:
        validate(found, group.members, group.partitions)
        return
    tp = data.draw(st.sampled_from(group.readable))
    owner = owners_of(found)[tp]
    found[owner].remove(tp)
    with pytest.raises(InvalidRequestError, match=f"gives {tp} to nobody"):
        validate(found, group.members, group.partitions)
    readers = sorted(m.id for m in group.members if tp.topic in m.topics)
    other = data.draw(st.sampled_from(readers))
    found[owner].append(tp)
    found[other].append(tp)
    with pytest.raises(InvalidRequestError, match="twice" if other == owner else "and to"):
        validate(found, group.members, group.partitions)


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: None, "the assignment returned None; return a dict"),
        (lambda: {"a": [T0, T1]}, "has no entry for member 'b'; .* an empty list"),
        (lambda: {"a": [T0], "b": [], "c": [T1]}, "entry for 'c', who is no member; members: a, b"),
        (lambda: {"a": [T0, T1], "b": None}, "gives member 'b' None; give it a list"),
        (lambda: {"a": [T0, ("t", 1)], "b": []}, r"gives member 'a' \('t', 1\); .*TopicPartition"),
        (lambda: {"a": [T0, TopicPartition("t", True)], "b": []}, "partition=True"),
        (lambda: {"a": [T0], "b": [T1]}, "t-1 to member 'b', who does not subscribe to 't'"),
        (lambda: {"a": [T0, T1, TopicPartition("t", 2)], "b": []}, "t-2 .* not exist; .* has 2"),
        (lambda: {"a": [T0, T1, TopicPartition("t", -1)], "b": []}, "does not exist"),
        (lambda: {"a": [T0, T1, TopicPartition("gone", 0)], "b": []}, "'gone' has 0 partitions"),
        (lambda: {"a": [T0, T1, T0], "b": []}, "gives t-0 to 'a' twice"),
        (lambda: {"a": [T0], "b": []}, "gives t-1 to nobody; give it to a member that"),
    ],
)
def test_what_a_user_defined_strategy_did_wrong_is_said(
    make: Callable[[], Any], message: str
) -> None:
    members = [Member("a", frozenset({"t", "gone"})), Member("b", frozenset({"u"}))]
    validate({"a": [T0, T1], "b": []}, members, {"t": 2, "unread": 4})
    with pytest.raises(InvalidRequestError, match=message):
        validate(make(), members, {"t": 2, "unread": 4})
