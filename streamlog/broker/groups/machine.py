"""One group's coordinator as a machine: requests and times go in, answers and things to save come out. Pure.

It is Kafka's classic protocol: members *join* (all of them, or the round's time is over), which makes the
next generation; its *leader* computes who reads what and hands that in with its *sync*; it is saved, and
only then each sync is answered with that member's part.

    empty ── join ──▶ preparing ── all joined ──▶ completing ── leader's sync, saved ──▶ stable
    stable or completing ── join, leave, death ──▶ preparing; the last one left ──▶ empty

Nothing here waits or looks at a clock: every call has the time (in seconds) as `now`, whoever must wait
hands in a `Ticket`, and `drain` gives the answers that are due. The caller calls `tick` at `next_deadline`.

C1  In a generation a member gets one assignment, the one that its leader handed in for that generation
    and that was saved; a save that failed is answered as an error and the members join again.
C2  The generation rises at every completed join, and when the group becomes empty. After a takeover it
    leaps, over numbers that the former coordinator may have given out without saving them.
C3  Every ticket is answered exactly once, at the latest by `fail`.
C4  Of the members with one instance id, one is in the group; the former is told that it is fenced.
C5  Who waits for an answer is not taken for dead; who has joined and was never heard of again is.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.broker.groups.members import (
    Answer,
    Join,
    Joined,
    Limits,
    Member,
    Phase,
    Save,
    Snapshot,
    Synced,
    Ticket,
    common,
    vote,
)
from streamlog.broker.groups.protocol import CONSUMER, topics_of
from streamlog.broker.kafka_errors import Code

_LEAP = 10
# A new member does not beat before its first join is answered; Kafka waits as long for it.
_FRESH_SECONDS = 300.0


class Machine:
    """One group."""

    def __init__(self, limits: Limits, snapshot: Snapshot | None = None, now: float = 0.0) -> None:
        """A group begins, or goes on as it was saved: everybody's session starts afresh."""
        saved = snapshot or Snapshot()
        self._limits = limits
        self.generation = saved.generation
        self._next = saved.generation + (1 + _LEAP if saved.generation else 1)
        self.protocol_type = saved.protocol_type
        self.protocol = saved.protocol
        self.leader = saved.leader
        self.members: dict[str, Member] = {
            member.id: member.thawed(saved.protocol, now) for member in saved.members
        }
        self.phase = Phase.STABLE if self.members else Phase.EMPTY
        self._instances = {m.instance: m.id for m in self.members.values() if m.instance}
        # Ids that were given out and have not joined yet, and until when they may.
        self._pending: dict[str, float] = {}
        self._join_deadline = 0.0
        # While a group's first members gather: until when at most, and whether one came lately.
        self._gather_until: float | None = None
        self._came = False
        self._sync_deadline = 0.0
        self._unsynced: set[str] = set()
        self._saves = 0
        self._handing_out: int | None = None
        self._after_save: dict[int, list[tuple[Ticket, Joined]]] = {}
        self._out: list[Answer | Save] = []

    def drain(self) -> list[Answer | Save]:
        """What is to be done since the last time, in order."""
        out, self._out = self._out, []
        return out

    @property
    def idle(self) -> bool:
        """Whether nobody is in the group nor about to be."""
        return not self.members and not self._pending

    # joining

    def join(self, now: float, wish: Join, ticket: Ticket) -> None:
        """A member comes, or comes again."""
        code = self._refusal(wish)
        if code is not Code.NONE:
            self._refuse(ticket, code, wish.member)
        elif wish.member:
            self._join_known(now, wish, ticket)
        elif wish.instance is not None and wish.instance in self._instances:
            self._replace_static(now, wish, ticket)
        elif wish.instance is None and wish.id_first:
            self._pending[wish.new_id] = now + wish.session
            self._refuse(ticket, Code.MEMBER_ID_REQUIRED, wish.new_id)
        else:
            self._add(now, wish.new_id, wish, ticket)

    def _refusal(self, wish: Join) -> Code:
        if self.phase is Phase.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        names = {name for name, _ in wish.protocols}
        known = wish.member or self._instances.get(wish.instance or "", "")
        others = [member for member in self.members.values() if member.id != known]
        if not wish.protocol_type or not names:
            return Code.INCONSISTENT_GROUP_PROTOCOL
        if self.members and wish.protocol_type != self.protocol_type:
            return Code.INCONSISTENT_GROUP_PROTOCOL
        if others and not names & common(others):
            return Code.INCONSISTENT_GROUP_PROTOCOL
        if known in self.members or known in self._pending:
            return Code.NONE
        if len(self.members) + len(self._pending) >= self._limits.max_members:
            return Code.GROUP_MAX_SIZE_REACHED
        return Code.NONE

    def _join_known(self, now: float, wish: Join, ticket: Ticket) -> None:
        if wish.member in self._pending:
            del self._pending[wish.member]
            self._add(now, wish.member, wish, ticket)
            return
        code = self._check_member(wish.member, wish.instance)
        if code is not Code.NONE:
            self._refuse(ticket, code, wish.member)
            return
        member = self.members[wish.member]
        same = member.protocols == wish.protocols
        again = self.phase is Phase.COMPLETING or (
            self.phase is Phase.STABLE and member.id != self.leader
        )
        if same and again:
            # The answer got lost on its way, or a follower asks once more: nothing changed.
            self._update(member, wish)
            member.deadline = now + member.session
            self._out.append(Answer(ticket, self._joined(member)))
            return
        self._update(member, wish)
        self._park_join(member, ticket)
        self._prepare(now)

    def _add(self, now: float, member_id: str, wish: Join, ticket: Ticket) -> None:
        member = Member.of(member_id, wish, now + _FRESH_SECONDS)
        if not self.members:
            self.protocol_type = wish.protocol_type
        if self.leader is None:
            self.leader = member_id
        self.members[member_id] = member
        if wish.instance is not None:
            self._instances[wish.instance] = member_id
        self._came = True
        self._park_join(member, ticket)
        self._prepare(now)

    def _replace_static(self, now: float, wish: Join, ticket: Ticket) -> None:
        """C4: a static member is back under a new id; if nothing changes, nobody else notices."""
        assert wish.instance is not None
        former = self.members.pop(self._instances[wish.instance])
        self._release(former, Code.FENCED_INSTANCE_ID)
        member = Member.of(wish.new_id, wish, now + wish.session)
        member.assignment, member.fresh = former.assignment, former.fresh
        self.members[member.id] = member
        self._instances[wish.instance] = member.id
        self._unsynced.discard(former.id)
        former_leader = self.leader
        if former_leader == former.id:
            self.leader = member.id
        if (
            self.phase is Phase.STABLE
            and vote(self.members.values()) == self.protocol
            and self._same_topics(former, member)
        ):
            reply = self._joined(member)
            if self.leader == member.id and not wish.can_skip:
                # It must not compute anything: it is told that somebody else is the leader.
                reply = self._joined(member, leader=former_leader)
            self._save([(ticket, reply)])
            return
        self._park_join(member, ticket)
        if self.phase is Phase.PREPARING:
            self._try_complete(now)
        else:
            self._prepare(now)

    def _same_topics(self, former: Member, member: Member) -> bool:
        if self.protocol_type != CONSUMER:
            return former.metadata(self.protocol) == member.metadata(self.protocol)
        return topics_of(former.metadata(self.protocol)) == topics_of(
            member.metadata(self.protocol)
        )

    def _update(self, member: Member, wish: Join) -> None:
        member.protocols = wish.protocols
        member.session, member.rebalance = wish.session, wish.rebalance
        member.client_id, member.host = wish.client_id, wish.host

    def _park_join(self, member: Member, ticket: Ticket) -> None:
        if member.joining is not None:
            # Its former request is of no use to anybody; it must not hang all the same.
            self._refuse(member.joining, Code.REBALANCE_IN_PROGRESS, member.id)
        member.joining = ticket

    # rebalancing

    def _prepare(self, now: float) -> None:
        """All members are to join again; a round that is under way goes on."""
        if self.phase is Phase.PREPARING:
            self._try_complete(now)
            return
        longest = max((member.rebalance for member in self.members.values()), default=0.0)
        self._gather_until = None
        self._join_deadline = now + longest
        if self.phase is Phase.EMPTY and self._limits.initial_delay > 0:
            # The others of a group that starts are probably on their way.
            self._gather_until = now + longest
            self._join_deadline = now + min(self._limits.initial_delay, longest)
            self._came = False
        if self.phase is Phase.COMPLETING:
            self._abort_syncs(Code.REBALANCE_IN_PROGRESS)
        self.phase = Phase.PREPARING
        self._try_complete(now)

    def _try_complete(self, now: float) -> None:
        if self.phase is not Phase.PREPARING or self._pending:
            return
        if self.members and self._gather_until is not None:
            return
        if all(member.joining is not None for member in self.members.values()):
            self._complete(now)

    def _complete(self, now: float) -> None:
        """The round is over: the next generation, of those who joined and of static members."""
        for member in list(self.members.values()):
            if member.joining is None and member.instance is None:
                self._remove(member, Code.UNKNOWN_MEMBER_ID)
        joined = [member for member in self.members.values() if member.joining is not None]
        if self.members and not joined:
            # Static members that are all away: they have until their sessions end.
            longest = max(member.rebalance for member in self.members.values())
            self._join_deadline, self._gather_until = now + longest, None
            return
        self.generation, self._next = self._next, self._next + 1
        self._gather_until = None
        if not joined:
            self.phase = Phase.EMPTY
            self.protocol, self.leader = None, None
            self._save([])
            return
        if self.leader is None or self.members[self.leader].joining is None:
            self.leader = joined[0].id
        self.protocol = vote(self.members.values())
        self.phase = Phase.COMPLETING
        self._handing_out = None
        self._unsynced = {member.id for member in joined}
        self._sync_deadline = now + max(member.rebalance for member in self.members.values())
        for member in self.members.values():
            member.assignment = b""
        for member in joined:
            ticket, member.joining = member.joining, None
            member.fresh = False
            member.deadline = now + member.session
            assert ticket is not None
            self._out.append(Answer(ticket, self._joined(member)))

    def _joined(self, member: Member, leader: str | None = None) -> Joined:
        leader = leader or self.leader or ""
        leads = member.id == leader
        return Joined(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=leader,
            member=member.id,
            skip=leads and self.phase is Phase.STABLE,
            members=tuple(
                (other.id, other.instance, other.metadata(self.protocol))
                for other in self.members.values()
            )
            if leads
            else (),
        )

    # syncing

    def sync(
        self,
        now: float,
        ticket: Ticket,
        *,
        member: str,
        generation: int,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
        assignments: Mapping[str, bytes] | None = None,
    ) -> None:
        """A member wants its part; the leader brings everybody's."""
        code = self._check(member, instance, generation)
        if code is Code.NONE and self.phase is Phase.PREPARING:
            code = Code.REBALANCE_IN_PROGRESS
        if code is Code.NONE and (
            protocol_type not in (None, self.protocol_type) or protocol not in (None, self.protocol)
        ):
            code = Code.INCONSISTENT_GROUP_PROTOCOL
        if code is not Code.NONE:
            self._out.append(Answer(ticket, Synced(code=code)))
            return
        found = self.members[member]
        found.deadline = now + found.session
        self._unsynced.discard(member)
        if self.phase is Phase.STABLE:
            self._out.append(Answer(ticket, self._synced(found)))
            return
        if found.syncing is not None:
            self._out.append(Answer(found.syncing, Synced(code=Code.REBALANCE_IN_PROGRESS)))
        found.syncing = ticket
        if member == self.leader and self._handing_out is None:
            for other in self.members.values():
                other.assignment = (assignments or {}).get(other.id, b"")
            self._handing_out = self._save([])

    def saved(self, now: float, number: int) -> None:
        """A save got through."""
        for ticket, reply in self._after_save.pop(number, ()):
            self._out.append(Answer(ticket, reply))
        if number != self._handing_out:
            return
        self._handing_out = None
        if self.phase is not Phase.COMPLETING:
            return
        self.phase = Phase.STABLE
        for member in self.members.values():
            if member.syncing is not None:
                ticket, member.syncing = member.syncing, None
                member.deadline = now + member.session
                self._out.append(Answer(ticket, self._synced(member)))

    def not_saved(self, now: float, number: int, code: Code) -> None:
        """A save failed: what depended on it is refused, and an assignment is asked for again (C1)."""
        for ticket, reply in self._after_save.pop(number, ()):
            self._refuse(ticket, code, reply.member)
        if number == self._handing_out and self.phase is Phase.COMPLETING:
            self._abort_syncs(code)
            self._prepare(now)

    def resave(self) -> None:
        """Asks for another save: the last one failed and nobody waits for it."""
        self._save([])

    def snapshot(self) -> Snapshot:
        """The group as it would be saved now."""
        return Snapshot(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            members=tuple(member.frozen(self.protocol) for member in self.members.values()),
        )

    def _save(self, after: list[tuple[Ticket, Joined]]) -> int:
        self._saves += 1
        if after:
            self._after_save[self._saves] = after
        self._out.append(Save(self._saves, self.snapshot()))
        return self._saves

    def _synced(self, member: Member) -> Synced:
        return Synced(
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            assignment=member.assignment,
        )

    def _abort_syncs(self, code: Code) -> None:
        self._handing_out = None
        self._unsynced = set()
        for member in self.members.values():
            member.assignment = b""
            if member.syncing is not None:
                ticket, member.syncing = member.syncing, None
                self._out.append(Answer(ticket, Synced(code=code)))

    # living and leaving

    def heartbeat(self, now: float, member: str, instance: str | None, generation: int) -> Code:
        """A member lives; it is told whether it should join again."""
        code = self._check(member, instance, generation)
        if code is not Code.NONE:
            return code
        self._touch(now, member)
        return Code.REBALANCE_IN_PROGRESS if self.phase is Phase.PREPARING else Code.NONE

    def check_commit(self, now: float, member: str, instance: str | None, generation: int) -> Code:
        """Whether somebody may commit offsets now. Who is no member may, to an empty group."""
        if self.phase is Phase.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and not member and instance is None:
            return Code.NONE if self.phase is Phase.EMPTY else Code.UNKNOWN_MEMBER_ID
        code = self._check_member(member, instance)
        if code is Code.NONE and generation != self.generation:
            code = Code.ILLEGAL_GENERATION
        if code is not Code.NONE:
            return code
        self._touch(now, member)
        # What is committed now belongs to the generation before, which is over.
        return Code.REBALANCE_IN_PROGRESS if self.phase is Phase.COMPLETING else Code.NONE

    def leave(self, now: float, member: str, instance: str | None) -> Code:
        """A member goes, or is sent away by its instance id."""
        if instance is not None and not member:
            member = self._instances.get(instance, "")
        if self._pending.pop(member, None) is not None:
            self._try_complete(now)
            return Code.NONE
        code = self._check_member(member, instance)
        if code is Code.NONE:
            self._remove(self.members[member], Code.UNKNOWN_MEMBER_ID)
            self._prepare(now)
        return code

    def tick(self, now: float) -> None:
        """Time went by: who is silent for too long is out, and rounds end."""
        late = [member for member, until in self._pending.items() if until <= now]
        for member_id in late:
            del self._pending[member_id]
        gone = [member for member in self.members.values() if self._is_dead(member, now)]
        for member in gone:
            self._remove(member, Code.UNKNOWN_MEMBER_ID)
        if self._awaits_syncs and self._sync_deadline <= now:
            # C5: they joined, and never asked for their part.
            for member_id in list(self._unsynced):
                if member_id in self.members:
                    self._remove(self.members[member_id], Code.UNKNOWN_MEMBER_ID)
            self._prepare(now)
        elif gone and self.phase in (Phase.STABLE, Phase.COMPLETING):
            self._prepare(now)
        if self.phase is Phase.PREPARING and self._join_deadline <= now:
            self._end_round(now)
        elif late or gone:
            self._try_complete(now)

    def _end_round(self, now: float) -> None:
        until = self._gather_until
        if until is not None and self._came and now < until:
            self._came = False
            self._join_deadline = min(now + self._limits.initial_delay, until)
            return
        self._complete(now)

    def next_deadline(self) -> float | None:
        """When `tick` is to be called at the latest; None while nothing can happen by itself."""
        times = [*self._pending.values()]
        times += [m.deadline for m in self.members.values() if m.fresh or not m.waits]
        if self.phase is Phase.PREPARING:
            times.append(self._join_deadline)
        if self._awaits_syncs:
            times.append(self._sync_deadline)
        return min(times, default=None)

    def delay(self, seconds: float) -> None:
        """The coordinator itself was away: nobody could reach it for so long."""
        self._pending = {member: until + seconds for member, until in self._pending.items()}
        for member in self.members.values():
            member.deadline += seconds
        self._join_deadline += seconds
        self._sync_deadline += seconds
        if self._gather_until is not None:
            self._gather_until += seconds

    def fail(self, code: Code) -> None:
        """The end of this coordinator: whoever waits is told to look for another (C3)."""
        for member in self.members.values():
            self._release(member, code)
        for waiting in self._after_save.values():
            for ticket, reply in waiting:
                self._refuse(ticket, code, reply.member)
        self._after_save = {}
        self._pending = {}
        self.phase = Phase.DEAD

    def _is_dead(self, member: Member, now: float) -> bool:
        return member.deadline <= now and (member.fresh or not member.waits)

    @property
    def _awaits_syncs(self) -> bool:
        return self.phase in (Phase.COMPLETING, Phase.STABLE) and bool(self._unsynced)

    def _touch(self, now: float, member: str) -> None:
        found = self.members[member]
        found.deadline = now + found.session

    def _remove(self, member: Member, code: Code) -> None:
        self._release(member, code)
        del self.members[member.id]
        self._unsynced.discard(member.id)
        if member.instance is not None:
            self._instances.pop(member.instance, None)
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    def _release(self, member: Member, code: Code) -> None:
        if member.joining is not None:
            ticket, member.joining = member.joining, None
            self._refuse(ticket, code, member.id)
        if member.syncing is not None:
            ticket, member.syncing = member.syncing, None
            self._out.append(Answer(ticket, Synced(code=code)))

    def _refuse(self, ticket: Ticket, code: Code, member: str) -> None:
        self._out.append(Answer(ticket, Joined(code=code, member=member)))

    def _check_member(self, member: str, instance: str | None) -> Code:
        if self.phase is Phase.DEAD:
            return Code.COORDINATOR_NOT_AVAILABLE
        if instance is not None:
            current = self._instances.get(instance)
            if current is None:
                return Code.UNKNOWN_MEMBER_ID
            if current != member:
                return Code.FENCED_INSTANCE_ID
        return Code.NONE if member in self.members else Code.UNKNOWN_MEMBER_ID

    def _check(self, member: str, instance: str | None, generation: int) -> Code:
        code = self._check_member(member, instance)
        if code is Code.NONE and generation != self.generation:
            return Code.ILLEGAL_GENERATION
        return code
