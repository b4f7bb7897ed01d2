"""The members of a group as its coordinator knows them, and what is said to and by them. Pure values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

from streamlog.broker.kafka_errors import Code

# Whatever the caller wants to find again in an answer.
Ticket = object
Protocols = tuple[tuple[str, bytes], ...]


class Phase(Enum):
    """What a group is about, in Kafka's words."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A member that wants to come in, or to take part in the next generation. Times in seconds."""

    member: str
    # The id that it gets if it has none.
    new_id: str
    instance: str | None = None
    client_id: str = ""
    host: str = ""
    session: float = 10.0
    rebalance: float = 60.0
    protocol_type: str = "consumer"
    protocols: Protocols = ()
    # KIP-394: it learns its id before it becomes a member, so that a lost answer leaves no ghost.
    id_first: bool = False
    # KIP-814: it can be the leader without computing an assignment.
    can_skip: bool = False
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to a join. `members` (id, instance, metadata) are for the leader alone."""

    code: Code = Code.NONE
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    member: str = ""
    skip: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The answer to a sync: what the member has to read."""

    code: Code = Code.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True, kw_only=True)
class Member:
    """One member."""

    id: str
    instance: str | None
    client_id: str
    host: str
    session: float
    rebalance: float
    protocols: Protocols
    joined_ms: int = 0
    assignment: bytes = b""
    # When it is taken for dead, unless it is heard of; it is not while it waits for an answer.
    deadline: float = 0.0
    # It has not got through a join yet, so it does not beat.
    fresh: bool = True
    joining: Ticket | None = None
    syncing: Ticket | None = None

    @staticmethod
    def of(member_id: str, wish: Join, deadline: float) -> Member:
        """A new member."""
        return Member(
            id=member_id,
            instance=wish.instance,
            client_id=wish.client_id,
            host=wish.host,
            session=wish.session,
            rebalance=wish.rebalance,
            protocols=wish.protocols,
            joined_ms=wish.at_ms,
            deadline=deadline,
        )

    @property
    def waits(self) -> bool:
        """Whether a request of it is parked."""
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str | None) -> bytes:
        """What it said about a protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def frozen(self, protocol: str | None) -> SavedMember:
        """The member as the table gets it."""
        return SavedMember(
            id=self.id,
            instance=self.instance,
            client_id=self.client_id,
            host=self.host,
            session=self.session,
            rebalance=self.rebalance,
            strategies=tuple(name for name, _ in self.protocols),
            joined_ms=self.joined_ms,
            metadata=self.metadata(protocol),
            assignment=self.assignment,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedMember:
    """A member that outlives its coordinator."""

    id: str
    instance: str | None
    client_id: str
    host: str
    session: float
    rebalance: float
    strategies: tuple[str, ...]
    joined_ms: int
    metadata: bytes
    assignment: bytes

    def thawed(self, protocol: str | None, now: float) -> Member:
        """The member at its new coordinator; only the chosen protocol of it was saved."""
        return Member(
            id=self.id,
            instance=self.instance,
            client_id=self.client_id,
            host=self.host,
            session=self.session,
            rebalance=self.rebalance,
            protocols=((protocol or "", self.metadata),),
            joined_ms=self.joined_ms,
            assignment=self.assignment,
            deadline=now + self.session,
            fresh=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A group that outlives its coordinator: one completed generation, or an empty group."""

    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    members: tuple[SavedMember, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Answer:
    """A parked request is to be answered."""

    ticket: Ticket
    reply: Joined | Synced


@dataclass(frozen=True, slots=True)
class Save:
    """The group is to be saved; `saved` or `not_saved` tells how that went."""

    number: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a coordinator allows. In seconds."""

    initial_delay: float = 0.3
    max_members: int = 1000


def common(members: Iterable[Member]) -> set[str]:
    """The protocols that all have."""
    found: set[str] | None = None
    for member in members:
        names = {name for name, _ in member.protocols}
        found = names if found is None else found & names
    return found or set()


def vote(members: Collection[Member]) -> str:
    """The protocol that all have and most prefer; of several, the first by name."""
    allowed = common(members)
    votes = Counter(
        next(name for name, _ in member.protocols if name in allowed) for member in members
    )
    return min(votes, key=lambda name: (-votes[name], name))
