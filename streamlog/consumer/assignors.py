"""Who reads what: the partitions of a group's topics shared out among its members. Pure functions.

    range               each topic in contiguous pieces, so that equally cut topics line up
    roundrobin          all partitions in turn over all members
    sticky              balanced, and as few partitions as possible change their owner
    cooperative-sticky  the same; partitions that stay are never paused

A1  Every partition of a topic somebody subscribes to has exactly one owner, who subscribes to it.
A2  Every member has an entry, empty if there is nothing for it.
A3  The answer depends on the set of members, never on their order: whoever computes it gets the same.
A4  Sticky: no chain of handovers, nor a single one, could bring two members closer; among all such
    assignments it is one with the fewest changes of owner. Given its own result it changes nothing.

>>> two = [Member("a", frozenset({"orders"})), Member("b", frozenset({"orders"}))]
>>> [str(tp) for tp in RANGE.assign(two, {"orders": 3})["a"]]
['orders-0', 'orders-1']
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from streamlog.errors import InvalidRequestError
from streamlog.model import TopicPartition

Assignment = dict[str, list[TopicPartition]]
Counts = npt.NDArray[np.int64]

_NEVER: Final = 2**60  # the price of a handover that is not possible


@dataclass(frozen=True, slots=True)
class Member:
    """What an assignor sees of a member.

    `topics` are those it subscribes to, patterns already resolved; `owned` is what it owns now, in the
    same generation as everybody else's; `instance` is its `group_instance_id`, if it has one.
    """

    id: str
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    instance: str | None = None


class Assignor(Protocol):
    """A way to share out partitions; a user's own needs no more than this.

    `cooperative` promises that a member goes on reading, through a rebalance, what it keeps.
    """

    name: str
    cooperative: bool

    def assign(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Assignment:
        """Sorted partitions by member id; `partitions` says how many each topic has."""
        ...


class _Range:
    name: str = "range"
    cooperative: bool = False

    def assign(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Assignment:
        ordered = _ordered(members)
        found: Assignment = {member.id: [] for member in ordered}
        for topic in _subscribed(ordered, partitions):
            readers = [member.id for member in ordered if topic in member.topics]
            each, extra = divmod(partitions[topic], len(readers))
            first = 0
            for place, reader in enumerate(readers if each else readers[:extra]):
                end = first + each + (place < extra)
                found[reader].extend(TopicPartition(topic, p) for p in range(first, end))
                first = end
        return found


class _RoundRobin:
    name: str = "roundrobin"
    cooperative: bool = False

    def assign(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Assignment:
        ordered = _ordered(members)
        found: Assignment = {member.id: [] for member in ordered}
        turn = 0
        for topic in _subscribed(ordered, partitions):
            for partition in range(partitions[topic]):
                while topic not in ordered[turn].topics:
                    turn = (turn + 1) % len(ordered)
                found[ordered[turn].id].append(TopicPartition(topic, partition))
                turn = (turn + 1) % len(ordered)
        return found


class _Sticky:
    def __init__(self, name: str, *, cooperative: bool) -> None:
        self.name = name
        self.cooperative = cooperative

    def assign(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Assignment:
        ordered = _ordered(members)
        found: Assignment = {member.id: [] for member in ordered}
        if pools := _pools(ordered, partitions):
            counts = _sticky_counts(len(ordered), pools)
            for pool, column in zip(pools, counts.T, strict=True):
                wanted = {place: int(column[place]) for place in np.flatnonzero(column).tolist()}
                for place, share in pool.share(wanted).items():
                    found[ordered[place].id].extend(share)
        return {member: sorted(tps) for member, tps in found.items()}


RANGE: Final[Assignor] = _Range()
ROUND_ROBIN: Final[Assignor] = _RoundRobin()
STICKY: Final[Assignor] = _Sticky("sticky", cooperative=False)
# A group computes the next assignment before anything is revoked, and revokes only what changes its
# owner: one rebalance does what needs two in Kafka, and the algorithm is the same.
COOPERATIVE_STICKY: Final[Assignor] = _Sticky("cooperative-sticky", cooperative=True)
ASSIGNORS: Final[dict[str, Assignor]] = {
    assignor.name: assignor for assignor in (RANGE, ROUND_ROBIN, STICKY, COOPERATIVE_STICKY)
}


# ------------------------------------------------------------------------------------------- settings


def choose(strategies: Sequence[Sequence[str]]) -> str:
    """The strategy a group uses, given what each member supports, the preferred first.

    As in Kafka, each member votes for the first of its own that all support; the first member's order
    decides between equals.
    """
    if not strategies:
        raise InvalidRequestError("a group without members has no assignment strategy to choose")
    common = [name for name in strategies[0] if all(name in names for names in strategies)]
    if not common:
        kinds = Counter(", ".join(names) or "none" for names in strategies)
        have = "; ".join(
            f"{count} {'member has' if count == 1 else 'members have'} {names}"
            for names, count in kinds.items()
        )
        raise InvalidRequestError(
            f"the members of the group have no assignment strategy in common: {have}; "
            "add one to partition_assignment_strategy that all of them have"
        )
    votes = Counter(next(name for name in names if name in common) for names in strategies)
    return max(common, key=lambda name: votes[name])  # max keeps the first of equals


def resolve(setting: str | Assignor | Sequence[str | Assignor]) -> list[Assignor]:
    """The assignors that `partition_assignment_strategy` names or holds, the preferred first."""
    given = list(setting) if isinstance(setting, list | tuple) else [setting]
    if not given:
        raise InvalidRequestError(
            f"partition_assignment_strategy is empty; known: {', '.join(ASSIGNORS)}"
        )
    found: dict[str, Assignor] = {}
    for item in given:
        assignor = _named(item) if isinstance(item, str) else _user_defined(item)
        if assignor.name in found:
            raise InvalidRequestError(
                f"partition_assignment_strategy has {assignor.name!r} twice; name each strategy once"
            )
        found[assignor.name] = assignor
    return list(found.values())


def _named(name: str) -> Assignor:
    if name in ASSIGNORS:
        return ASSIGNORS[name]
    near = difflib.get_close_matches(name.lower(), ASSIGNORS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ASSIGNORS)}"
    raise InvalidRequestError(
        f"partition_assignment_strategy: there is no strategy {name!r}; {hint}"
    )


def _user_defined(item: Any) -> Assignor:
    if isinstance(item, type):
        raise InvalidRequestError(
            f"partition_assignment_strategy has the class {item.__name__}; "
            f"give an object of it: {item.__name__}()"
        )
    name = getattr(item, "name", None)
    wrong = []
    if not isinstance(name, str) or not name:
        wrong.append("name (a text that is not empty)")
    if not isinstance(getattr(item, "cooperative", None), bool):
        wrong.append("cooperative (True or False)")
    if not callable(getattr(item, "assign", None)):
        wrong.append("assign (a method of members and partitions)")
    if wrong:
        raise InvalidRequestError(
            f"partition_assignment_strategy: {item!r} is no strategy, it lacks {', '.join(wrong)}; "
            f"give such an object or a name: {', '.join(ASSIGNORS)}"
        )
    assignor: Assignor = item
    # Other members know a strategy by its name only: this one would stand for two algorithms.
    if ASSIGNORS.get(assignor.name, assignor) is not assignor:
        raise InvalidRequestError(
            f"partition_assignment_strategy: {item!r} is called {name!r}, "
            "which is a strategy of streamlog; choose another name"
        )
    return assignor


def validate(
    assignment: Assignment, members: Sequence[Member], partitions: Mapping[str, int]
) -> None:
    """Refuse an assignment that breaks A1 or A2, saying what a user-defined assignor did wrong."""
    if not isinstance(assignment, dict):
        raise _broken(f"returned {assignment!r}", "return a dict of member ids to partitions")
    known = {member.id: member for member in members}
    for member_id in known:
        if member_id not in assignment:
            raise _broken(
                f"has no entry for member {member_id!r}",
                "give every member one, an empty list if there is nothing for it",
            )
    owners: dict[TopicPartition, str] = {}
    for member_id, tps in assignment.items():
        member = known.get(member_id)
        if member is None:
            raise _broken(
                f"has an entry for {member_id!r}, who is no member",
                f"members: {', '.join(sorted(known)) or 'none'}",
            )
        if not isinstance(tps, list):
            raise _broken(f"gives member {member_id!r} {tps!r}", "give it a list of TopicPartition")
        for tp in tps:
            _check_share(member, tp, partitions)
            if tp in owners:
                other = owners[tp]
                whom = "twice" if other == member_id else f"and to {other!r}"
                raise _broken(f"gives {tp} to {member_id!r} {whom}", "give it to one member, once")
            owners[tp] = member_id
    for topic in _subscribed(members, partitions):
        for partition in range(partitions[topic]):
            tp = TopicPartition(topic, partition)
            if tp not in owners:
                raise _broken(
                    f"gives {tp} to nobody", f"give it to a member that subscribes to {topic!r}"
                )


def _check_share(member: Member, tp: Any, partitions: Mapping[str, int]) -> None:
    if not isinstance(tp, TopicPartition) or type(tp.partition) is not int:
        raise _broken(f"gives member {member.id!r} {tp!r}", "give it TopicPartition(topic, number)")
    if tp.topic not in member.topics:
        raise _broken(
            f"gives {tp} to member {member.id!r}, who does not subscribe to {tp.topic!r}",
            f"it subscribes to: {', '.join(sorted(member.topics)) or 'nothing'}",
        )
    count = partitions.get(tp.topic, 0)
    if not 0 <= tp.partition < count:
        raise _broken(
            f"gives {tp} to member {member.id!r}, which does not exist",
            f"topic {tp.topic!r} has {count} partitions, numbered from 0",
        )


def _broken(what: str, action: str) -> InvalidRequestError:
    return InvalidRequestError(f"the assignment {what}; {action}")


# ------------------------------------------------------------------------------------- common ground


def _ordered(members: Sequence[Member]) -> list[Member]:
    """Members in the order all strategies use: static ones first, who keep it through restarts."""
    if len({member.id for member in members}) < len(members):
        ids = Counter(member.id for member in members)
        raise InvalidRequestError(
            f"two members have the id {ids.most_common(1)[0][0]!r}; ids must differ"
        )
    return sorted(members, key=lambda m: (m.instance is None, m.instance or "", m.id))


def _subscribed(members: Sequence[Member], partitions: Mapping[str, int]) -> list[str]:
    """Topics that exist and that somebody reads, sorted."""
    return sorted(frozenset().union(*(member.topics for member in members)) & partitions.keys())


# --------------------------------------------------------------------------------------------- sticky
#
# Partitions of topics with the same readers are interchangeable: it is enough to settle how many of
# such a pool each member gets, and then to keep as many as possible where they are. If all members
# subscribe to the same topics there is one pool and a water level; else it is a flow problem, small
# because its nodes are members, not partitions.


@dataclass(slots=True)
class _Pool:
    """The partitions of all topics that have the same readers; `owned` goes by the owner's place."""

    readers: tuple[bool, ...]
    owned: dict[int, list[TopicPartition]]
    free: list[TopicPartition]
    size: int = 0

    def share(self, counts: Mapping[int, int]) -> dict[int, list[TopicPartition]]:
        """Who gets which, given how many: the owned first, what is left dealt in turn."""
        shares: dict[int, list[TopicPartition]] = {place: [] for place in counts}
        free = list(self.free)
        for place, own in self.owned.items():
            count = counts.get(place, 0)
            kept = own if len(own) <= count else _one_a_topic(own)
            shares[place] = kept[:count]
            free.extend(kept[count:])
        free.sort(reverse=True)
        hungry = [place for place, count in counts.items() if len(shares[place]) < count]
        while hungry:
            for place in hungry:
                shares[place].append(free.pop())
            hungry = [place for place in hungry if len(shares[place]) < counts[place]]
        return shares


def _one_a_topic(tps: Sequence[TopicPartition]) -> list[TopicPartition]:
    """One partition of each topic, then a second of each: who gives away the end keeps a mix."""
    rank: dict[str, int] = defaultdict(int)
    keyed = []
    for tp in sorted(tps):
        keyed.append((rank[tp.topic], tp))
        rank[tp.topic] += 1
    return [tp for _, tp in sorted(keyed)]


def _pools(ordered: Sequence[Member], partitions: Mapping[str, int]) -> list[_Pool]:
    """Those with the fewest readers first: they leave the least choice."""
    owners = _owners(ordered, partitions)
    by_readers: dict[tuple[bool, ...], _Pool] = {}
    for topic in _subscribed(ordered, partitions):
        readers = tuple([topic in member.topics for member in ordered])
        pool = by_readers.get(readers)
        if pool is None:
            pool = by_readers[readers] = _Pool(readers, defaultdict(list), [])
        pool.size += partitions[topic]
        for partition in range(partitions[topic]):
            tp = TopicPartition(topic, partition)
            owner = owners.get(tp)
            (pool.free if owner is None else pool.owned[owner]).append(tp)
    return sorted(by_readers.values(), key=lambda pool: sum(pool.readers))


def _owners(ordered: Sequence[Member], partitions: Mapping[str, int]) -> dict[TopicPartition, int]:
    """Who owns what, by place; what is claimed twice goes to the claimant with less."""
    claims: dict[TopicPartition, list[int]] = defaultdict(list)
    for place, member in enumerate(ordered):
        for tp in member.owned:
            if tp.topic in member.topics and 0 <= tp.partition < partitions.get(tp.topic, 0):
                claims[tp].append(place)
    owners = {tp: places[0] for tp, places in claims.items() if len(places) == 1}
    loads = Counter(owners.values())
    for tp in sorted(claims.keys() - owners.keys()):
        owner = min(claims[tp], key=lambda place: (loads[place], place))
        owners[tp] = owner
        loads[owner] += 1
    return owners


def _sticky_counts(members: int, pools: Sequence[_Pool]) -> Counts:
    """How many partitions of each pool (columns) each member (rows) gets.

    The smallest sum of squared loads, and among those the most partitions kept.
    """
    owned = np.zeros((members, len(pools)), np.int64)
    for column, pool in enumerate(pools):
        for place, own in pool.owned.items():
            owned[place, column] = len(own)
    readers = np.array([pool.readers for pool in pools], np.bool_).T

    def price(counts: Counts) -> tuple[int, int]:
        loads = counts.sum(axis=1)
        return int((loads * loads).sum()), -int(np.minimum(counts, owned).sum())

    keeping = _guess(owned, pools, level=False)
    loads = keeping.sum(axis=1)
    if loads.max() - loads.min() <= 1:
        return keeping  # nobody loses anything, and better balance there is none
    levelled = _guess(owned, pools, level=True)
    if len(pools) == 1:
        return levelled
    return _Exchange(min(keeping, levelled, key=price), owned, readers).run()


def _guess(owned: Counts, pools: Sequence[_Pool], *, level: bool) -> Counts:
    """Pool by pool: keep what is owned, spread the rest over those with the least.

    With `level`, nobody keeps more than brings it to the level the whole pool would reach: for a
    single pool that is the solution. Without, it is so if nothing has to move.
    """
    counts = np.zeros_like(owned) if level else owned.copy()
    loads = counts.sum(axis=1)
    for column, pool in enumerate(pools):
        places = np.flatnonzero(pool.readers)
        if level:
            own = owned[places, column]
            room, lucky = _fill(loads[places], pool.size, own)
            keep = np.minimum(own, room)
            keep[lucky] += 1
            counts[places, column] = keep
            loads[places] += keep
        left = pool.size - int(counts[:, column].sum())
        if left:
            more, lucky = _fill(loads[places], left)
            more[lucky] += 1
            counts[places, column] += more
            loads[places] += more
    return counts


def _fill(loads: Counts, count: int, own: Counts | None = None) -> tuple[Counts, Counts]:
    """What each load takes of `count` units that seek the lowest, and who takes one more.

    With `own`, one more is only for those that own more than they take.
    """
    rising = np.sort(loads)
    needed = rising * np.arange(len(rising)) - (np.cumsum(rising) - rising)
    reached = int((needed <= count).sum())  # the water stands as high as this many of the loads
    height, extra = divmod(count + int(rising[:reached].sum()), reached)
    room = np.maximum(height - loads, 0)
    fit = loads <= height if own is None else (loads <= height) & (own > room)
    return room, np.flatnonzero(fit)[:extra]


class _Exchange:
    """Handovers between members until none improves, which proves that there is nothing better.

    A graph whose nodes are the members and a hub. A way from one member to another hands over a
    partition: it costs 1 if the giver owned it, and saves 1 if the taker did. A way through the hub
    closes a chain of handovers, whose end has then one more and its beginning one less: it costs the
    change of the squares of their loads, at a rate that no number of kept partitions outweighs. A
    cycle of negative price improves the assignment; if there is none, it is the best (as for every
    flow of minimum cost).
    """

    def __init__(self, counts: Counts, owned: Counts, readers: npt.NDArray[np.bool_]) -> None:
        self._counts = counts
        self._owned = owned
        self._hub = len(counts)
        # Sets of pools, as the bits of an integer, by member.
        self._reads = [_bits(row) for row in readers]
        self._spare = [0] * self._hub  # holds more than it owned: one can go for nothing
        self._held = [0] * self._hub  # holds no more than it owned
        self._missed = [0] * self._hub  # holds less than it owned
        self._prices = np.full((self._hub + 1, self._hub + 1), _NEVER, np.int64)
        self._reprice(range(self._hub))

    def run(self) -> Counts:
        """The counts, improved as far as possible."""
        while cycle := _negative_cycle(self._prices):
            self._hand_over(cycle)
            self._reprice([node for node in cycle if node != self._hub])
        return self._counts

    def _reprice(self, changed: Sequence[int]) -> None:
        for m in changed:
            counts, owned = self._counts[m], self._owned[m]
            self._spare[m] = _bits(counts > owned)
            self._held[m] = _bits((counts > 0) & (counts <= owned))
            self._missed[m] = _bits(counts < owned)
        members = range(self._hub)
        for m in changed:
            self._prices[m, :-1] = [self._offer(m, taker)[0] for taker in members]
            self._prices[:-1, m] = [self._offer(giver, m)[0] for giver in members]
        loads = self._counts.sum(axis=1)
        rate = self._hub + 1
        self._prices[:-1, self._hub] = rate * (2 * loads + 1)
        self._prices[self._hub, :-1] = rate * (1 - 2 * loads)

    def _offer(self, giver: int, taker: int) -> tuple[int, int]:
        """The price of the cheapest handover between two members, and the pools that have it."""
        spare, held = self._spare[giver], self._held[giver]
        reads, missed = self._reads[taker], self._missed[taker]
        if pools := spare & missed:
            return -1, pools
        if pools := (spare & reads) | (held & missed):
            return 0, pools
        if pools := held & reads:
            return 1, pools
        return _NEVER, 0

    def _hand_over(self, cycle: Sequence[int]) -> None:
        """Follow a cycle as many times as each of them improves."""
        counts, owned = self._counts, self._owned
        times = _NEVER
        steps = []
        for place, giver in enumerate(cycle):
            taker = cycle[(place + 1) % len(cycle)]
            if giver == self._hub:  # `taker` begins the chain, the node before the hub ends it
                gap = int(counts[taker].sum() - counts[cycle[place - 1]].sum())
                times = min(times, max(1, gap // 2))
            elif taker != self._hub:
                _, pools = self._offer(giver, taker)
                pool = (pools & -pools).bit_length() - 1
                steps.append((giver, pool, taker))
                has, had = int(counts[giver, pool]), int(owned[giver, pool])
                times = min(times, has if has <= had else has - had)
                missing = int(owned[taker, pool] - counts[taker, pool])
                times = min(times, missing) if missing > 0 else times
        for giver, pool, taker in steps:
            counts[giver, pool] -= times
            counts[taker, pool] += times


def _bits(row: npt.NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little")


def _negative_cycle(prices: Counts) -> list[int] | None:
    """The nodes of a cycle of negative price, or None if there is none (Bellman and Ford)."""
    nodes = np.arange(len(prices))
    best = np.zeros(len(prices), np.int64)  # the price of the best way to a node,
    before = np.full(len(prices), -1, np.int64)  # and the node before it on that way
    while True:
        ways = best[:, None] + prices
        givers = ways.argmin(axis=0)
        found = ways[givers, nodes]
        better = found < best
        if not better.any():
            return None
        best[better] = found[better]
        before[better] = givers[better]
        if cycle := _cycle(before.tolist()):
            return cycle


def _cycle(before: Sequence[int]) -> list[int] | None:
    """Nodes that lead to one another, in order; best ways do so only if the price is negative."""
    seen_from = [-1] * len(before)
    for start in range(len(before)):
        node = start
        while node >= 0 and seen_from[node] < 0:
            seen_from[node] = start
            node = before[node]
        if node >= 0 and seen_from[node] == start:
            cycle = [node]
            while (node := before[node]) != cycle[0]:
                cycle.append(node)
            return cycle[::-1]
    return None
