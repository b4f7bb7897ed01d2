"""The coordinator's state machine by itself: requests and times in, answers and saves out."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from streamlog.broker.groups.machine import Machine
from streamlog.broker.groups.members import Answer, Join, Joined, Limits, Phase, Save, Synced
from streamlog.broker.groups.protocol import subscription
from streamlog.broker.kafka_errors import Code

RANGE = (("range", b"r"),)
BOTH = (("range", b"r"), ("sticky", b"s"))


class Desk:
    """A machine with the answers it gave, by ticket."""

    def __init__(self, machine: Machine | None = None, **limits: float) -> None:
        self.machine = machine or Machine(Limits(**{"initial_delay": 0.0, **limits}))
        self.now = 0.0
        self.answers: dict[object, Joined | Synced] = {}
        self.saves: list[Save] = []
        self._ids = 0

    def drain(self) -> None:
        for effect in self.machine.drain():
            if isinstance(effect, Save):
                self.saves.append(effect)
            else:
                assert isinstance(effect, Answer)
                assert effect.ticket not in self.answers, "answered twice"
                self.answers[effect.ticket] = effect.reply

    def join(self, ticket: object, member: str = "", **wish: object) -> Joined | None:
        self._ids += 1
        given = {"new_id": f"m{self._ids}", "protocols": RANGE, **wish}
        self.machine.join(self.now, Join(member=member, **given), ticket)  # type: ignore[arg-type]
        self.drain()
        found = self.answers.get(ticket)
        assert found is None or isinstance(found, Joined)
        return found

    def sync(
        self, ticket: object, member: str, parts: Iterable[str] = (), **more: object
    ) -> Synced | None:
        given = {"generation": self.machine.generation, **more}
        assignments = {name: name.encode() for name in parts}
        self.machine.sync(self.now, ticket, member=member, assignments=assignments, **given)  # type: ignore[arg-type]
        self.drain()
        found = self.answers.get(ticket)
        assert found is None or isinstance(found, Synced)
        return found

    def save(self, *, ok: bool = True) -> Save:
        last = self.saves.pop(0)
        if ok:
            self.machine.saved(self.now, last.number)
        else:
            self.machine.not_saved(self.now, last.number, Code.COORDINATOR_NOT_AVAILABLE)
        self.drain()
        return last

    def wait(self, seconds: float) -> None:
        """Time goes by; the machine is called whenever it asked to be."""
        until = self.now + seconds
        while (due := self.machine.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.machine.tick(self.now)
            self.drain()
        self.now = until

    def joined(self, ticket: object) -> Joined:
        found = self.answers[ticket]
        assert isinstance(found, Joined)
        return found

    def synced(self, ticket: object) -> Synced:
        found = self.answers[ticket]
        assert isinstance(found, Synced)
        return found

    def beat(self, member: str, **more: object) -> Code:
        given = {"instance": None, "generation": self.machine.generation, **more}
        return self.machine.heartbeat(self.now, member, **given)  # type: ignore[arg-type]


def stable(*members: str, **wish: object) -> Desk:
    """A group of members m1, m2, … that all have their assignment."""
    desk = Desk(initial_delay=0.1)
    for name in members:
        desk.join(name, new_id=name, **wish)
    desk.wait(1)
    for name in members[1:]:
        desk.sync(f"{name}-sync", name)
    desk.sync("leader-sync", members[0], members)
    desk.save()
    assert desk.machine.phase is Phase.STABLE
    return desk


def test_a_single_member_becomes_the_leader_of_generation_one() -> None:
    desk = Desk()
    answer = desk.join("a")
    assert answer is not None
    assert (answer.code, answer.generation, answer.leader, answer.member) == (0, 1, "m1", "m1")
    assert answer.members == (("m1", None, b"r"),)
    assert desk.sync("s", "m1", ["m1"]) is None
    assert desk.save().snapshot.members[0].assignment == b"m1"
    assert desk.synced("s") == Synced(protocol_type="consumer", protocol="range", assignment=b"m1")


def test_first_members_are_waited_for_and_each_newcomer_extends_that() -> None:
    desk = Desk(initial_delay=1.0)
    desk.join("a")
    desk.wait(0.9)
    desk.join("b")
    desk.wait(0.9)
    assert not desk.answers
    desk.wait(0.2)
    assert desk.joined("a").generation == desk.joined("b").generation == 1
    assert len(desk.joined("a").members) == 2
    assert desk.joined("b").members == ()


def test_gathering_ends_with_the_rebalance_timeout() -> None:
    desk = Desk(initial_delay=1.0)
    for number in range(20):
        desk.join(number, rebalance=3.0)
        desk.wait(0.5)
        if desk.answers:
            break
    assert 2.0 <= desk.now <= 4.0


def test_an_assignment_is_handed_out_only_when_it_is_saved() -> None:
    desk = stable("x", "y")
    assert desk.synced("leader-sync").assignment == b"x"
    assert desk.synced("y-sync").assignment == b"y"


def test_a_failed_save_is_an_error_for_all_and_everybody_joins_again() -> None:
    desk = Desk(initial_delay=0.1)
    for name in "xy":
        desk.join(name, new_id=name)
    desk.wait(1)
    desk.sync("ys", "y")
    desk.sync("xs", "x", "xy")
    desk.save(ok=False)
    assert desk.synced("xs").code == desk.synced("ys").code == Code.COORDINATOR_NOT_AVAILABLE
    assert desk.machine.phase is Phase.PREPARING
    assert desk.beat("x") is Code.REBALANCE_IN_PROGRESS


def test_a_newcomer_makes_everybody_join_again() -> None:
    desk = stable("x", "y")
    assert desk.join("z", new_id="z") is None
    assert desk.beat("x") is Code.REBALANCE_IN_PROGRESS
    desk.join("x2", "x")
    assert "z" not in desk.answers
    desk.join("y2", "y")
    assert {desk.joined(t).generation for t in ("x2", "y2", "z")} == {2}
    assert desk.joined("z").leader == "x"
    assert desk.beat("x", generation=1) is Code.ILLEGAL_GENERATION


def test_who_does_not_join_in_time_is_out() -> None:
    desk = stable("x", "y", rebalance=5.0, session=60.0)
    desk.join("z", new_id="z", rebalance=5.0, session=60.0)
    desk.join("x2", "x", rebalance=5.0, session=60.0)
    desk.wait(5.1)
    assert desk.joined("x2").generation == 2
    assert set(desk.machine.members) == {"x", "z"}
    assert desk.beat("y") is Code.UNKNOWN_MEMBER_ID


def test_who_is_silent_is_out_and_the_others_go_on() -> None:
    desk = stable("x", "y", session=10.0)
    for _ in range(4):
        desk.wait(3)
        assert desk.beat("x") in (Code.NONE, Code.REBALANCE_IN_PROGRESS)
    assert set(desk.machine.members) == {"x"}
    assert desk.machine.phase is Phase.PREPARING
    desk.join("again", "x")
    assert desk.joined("again").generation == 2


def test_the_last_one_gone_leaves_an_empty_group_that_is_saved() -> None:
    desk = stable("x")
    assert desk.machine.leave(desk.now, "x", None) is Code.NONE
    desk.drain()
    assert desk.machine.phase is Phase.EMPTY
    saved = desk.save().snapshot
    assert (saved.generation, saved.members, saved.protocol) == (2, (), None)
    assert desk.beat("x") is Code.UNKNOWN_MEMBER_ID
    assert desk.machine.idle


def test_who_joined_and_never_syncs_is_out() -> None:
    desk = Desk(initial_delay=0.1)
    for name in "xy":
        desk.join(name, new_id=name, session=60.0, rebalance=5.0)
    desk.wait(1)
    desk.sync("xs", "x", "xy")
    desk.save()
    for _ in range(3):
        desk.wait(2)
        desk.beat("y")
    assert set(desk.machine.members) == {"x"}


def test_an_id_is_given_out_first_and_expires_unused() -> None:
    desk = Desk()
    answer = desk.join("a", id_first=True, session=10.0)
    assert answer is not None
    assert answer.code is Code.MEMBER_ID_REQUIRED
    assert not desk.machine.members
    again = desk.join("b", answer.member, id_first=True)
    assert again is not None
    assert again.generation == 1
    late = desk.join("c", id_first=True, session=10.0)
    assert late is not None
    desk.wait(11)
    refused = desk.join("d", late.member, id_first=True)
    assert refused is not None
    assert refused.code is Code.UNKNOWN_MEMBER_ID


def test_a_protocol_must_be_common_to_all_and_the_most_wanted_wins() -> None:
    desk = Desk(initial_delay=0.1)
    desk.join("a", protocols=BOTH)
    desk.join("b", protocols=(("sticky", b""), ("range", b"")))
    desk.join("c", protocols=(("sticky", b""), ("range", b"")))
    other = desk.join("d", protocols=(("roundrobin", b""),))
    assert other is not None
    assert other.code is Code.INCONSISTENT_GROUP_PROTOCOL
    wrong = desk.join("e", protocols=BOTH, protocol_type="connect")
    assert wrong is not None
    assert wrong.code is Code.INCONSISTENT_GROUP_PROTOCOL
    empty = desk.join("f", protocols=())
    assert empty is not None
    assert empty.code is Code.INCONSISTENT_GROUP_PROTOCOL
    desk.wait(1)
    assert desk.joined("a").protocol == "sticky"
    refused = desk.sync("s", desk.joined("a").member, protocol="range")
    assert refused is not None
    assert refused.code is Code.INCONSISTENT_GROUP_PROTOCOL


def test_a_lost_answer_can_be_asked_for_again() -> None:
    desk = Desk()
    desk.join("a", new_id="x")
    again = desk.join("b", "x")
    assert again is not None
    assert (again.generation, again.leader, len(again.members)) == (1, "x", 1)


def test_a_follower_that_joins_unchanged_disturbs_nobody_but_a_leader_does() -> None:
    desk = stable("x", "y")
    follower = desk.join("y2", "y")
    assert follower is not None
    assert follower.generation == 1
    assert desk.machine.phase is Phase.STABLE
    synced = desk.sync("ys", "y")
    assert synced is not None
    assert synced.assignment == b"y"
    assert desk.join("x2", "x") is None
    assert desk.machine.phase is Phase.PREPARING


def test_joining_twice_answers_the_first_request_too() -> None:
    desk = stable("x", "y")
    desk.join("z", new_id="z")
    assert desk.join("x2", "x") is None
    assert desk.join("x3", "x") is None
    assert desk.joined("x2").code is Code.REBALANCE_IN_PROGRESS


def test_a_rebalance_during_the_save_is_told_to_those_who_wait() -> None:
    desk = Desk(initial_delay=0.1)
    for name in "xy":
        desk.join(name, new_id=name)
    desk.wait(1)
    desk.sync("xs", "x", "xy")
    desk.join("z", new_id="z")
    assert desk.synced("xs").code is Code.REBALANCE_IN_PROGRESS
    desk.save()
    assert desk.machine.phase is Phase.PREPARING


def test_the_group_has_a_greatest_size() -> None:
    desk = Desk(initial_delay=10.0, max_members=2)
    desk.join("a")
    desk.join("b")
    refused = desk.join("c")
    assert refused is not None
    assert refused.code is Code.GROUP_MAX_SIZE_REACHED


# static members


def subscribed(*topics: str) -> tuple[tuple[str, bytes], ...]:
    return (("range", subscription(topics)),)


def test_a_static_member_that_comes_back_keeps_its_part_and_nobody_notices() -> None:
    desk = stable("x", "y", protocols=subscribed("t"))
    desk.join("s", new_id="s1", instance="i", protocols=subscribed("t"))
    desk.join("x2", "x", protocols=subscribed("t"))
    desk.join("y2", "y", protocols=subscribed("t"))
    desk.sync("xs", "x", ("x", "y", "s1"))
    desk.sync("ss", "s1", instance="i")
    desk.save()
    assert desk.join("back", new_id="s2", instance="i", protocols=subscribed("t")) is None
    assert desk.machine.phase is Phase.STABLE
    assert {member.id for member in desk.save().snapshot.members} == {"x", "y", "s2"}
    assert (desk.joined("back").generation, desk.joined("back").member) == (2, "s2")
    synced = desk.sync("ss2", "s2", instance="i")
    assert synced is not None
    assert synced.assignment == b"s1"
    assert desk.beat("s1", instance="i") is Code.FENCED_INSTANCE_ID
    assert desk.beat("s1") is Code.UNKNOWN_MEMBER_ID
    fenced = desk.sync("old", "s1", instance="i")
    assert fenced is not None
    assert fenced.code is Code.FENCED_INSTANCE_ID
    code = desk.machine.check_commit(desk.now, "s1", "i", 2)
    assert code is Code.FENCED_INSTANCE_ID
    assert desk.machine.leave(desk.now, "s1", "i") is Code.FENCED_INSTANCE_ID


def test_a_static_member_that_comes_back_with_other_topics_starts_a_rebalance() -> None:
    desk = stable("x", protocols=subscribed("t"), instance="i")
    assert desk.join("back", new_id="x2", instance="i", protocols=subscribed("u")) is not None
    assert desk.joined("back").generation == 2


@pytest.mark.parametrize("can_skip", [False, True])
def test_a_static_leader_that_comes_back_computes_nothing(can_skip: bool) -> None:
    desk = stable("x", protocols=subscribed("t"), instance="i")
    desk.join("b", new_id="x2", instance="i", protocols=subscribed("t"), can_skip=can_skip)
    desk.save()
    answer = desk.joined("b")
    assert answer.skip is can_skip
    assert (answer.leader == answer.member) is can_skip
    assert bool(answer.members) is can_skip


def test_two_of_one_instance_at_the_same_time_fence_the_first() -> None:
    desk = Desk(initial_delay=1.0)
    desk.join("a", new_id="x", instance="i")
    desk.join("b", new_id="y", instance="i")
    assert desk.joined("a").code is Code.FENCED_INSTANCE_ID
    desk.wait(2)
    assert desk.joined("b").generation == 1


def test_an_absent_static_member_keeps_its_place_until_its_session_ends() -> None:
    desk = stable("x", "y", session=30.0, rebalance=5.0)
    desk.join("s", new_id="s", instance="i", session=30.0, rebalance=5.0)
    desk.join("x2", "x", session=30.0, rebalance=5.0)
    desk.join("y2", "y", session=30.0, rebalance=5.0)
    desk.sync("x3", "x", "xys")
    desk.sync("y3", "y")
    desk.sync("s3", "s", instance="i")
    desk.save()
    desk.machine.leave(desk.now, "y", None)
    desk.drain()
    desk.join("x4", "x", session=30.0, rebalance=5.0)
    desk.wait(5.1)
    assert desk.joined("x4").generation == 3
    assert {member for member, _, _ in desk.joined("x4").members} == {"x", "s"}
    desk.sync("x5", "x", "xs")
    desk.save()
    desk.wait(15)
    assert desk.beat("x") is Code.NONE
    assert set(desk.machine.members) == {"x", "s"}
    desk.wait(10)
    assert desk.beat("x") is Code.REBALANCE_IN_PROGRESS
    assert set(desk.machine.members) == {"x"}


def test_a_static_member_is_sent_away_by_its_instance_id() -> None:
    desk = stable("x", instance="i")
    assert desk.machine.leave(desk.now, "", "other") is Code.UNKNOWN_MEMBER_ID
    assert desk.machine.leave(desk.now, "", "i") is Code.NONE
    assert desk.machine.phase is Phase.EMPTY


# offsets


def test_offsets_are_committed_by_members_of_this_generation() -> None:
    desk = stable("x", "y")
    check = desk.machine.check_commit
    assert check(desk.now, "x", None, 1) is Code.NONE
    assert check(desk.now, "x", None, 0) is Code.ILLEGAL_GENERATION
    assert check(desk.now, "q", None, 1) is Code.UNKNOWN_MEMBER_ID
    assert check(desk.now, "", None, -1) is Code.UNKNOWN_MEMBER_ID
    desk.join("z", new_id="z")
    # A rebalance began: what they have read so far is still theirs to commit.
    assert check(desk.now, "x", None, 1) is Code.NONE
    desk.join("x2", "x")
    desk.join("y2", "y")
    assert check(desk.now, "x", None, 2) is Code.REBALANCE_IN_PROGRESS


def test_who_is_no_member_commits_only_to_an_empty_group() -> None:
    desk = Desk()
    assert desk.machine.check_commit(0.0, "", None, -1) is Code.NONE
    assert desk.machine.check_commit(0.0, "x", None, 3) is Code.UNKNOWN_MEMBER_ID


# takeovers


def test_a_takeover_goes_on_with_the_same_generation_and_new_sessions() -> None:
    before = stable("x", "y", session=10.0)
    desk = Desk(Machine(Limits(), before.machine.snapshot(), 100.0))
    desk.now = 100.0
    assert desk.machine.phase is Phase.STABLE
    assert desk.beat("x") is Code.NONE
    synced = desk.sync("s", "y")
    assert synced is not None
    assert synced.assignment == b"y"
    desk.wait(9)
    assert desk.beat("x") is Code.NONE
    desk.wait(2)
    assert set(desk.machine.members) == {"x"}


def test_after_a_takeover_no_generation_is_given_out_that_the_former_may_have_given_out() -> None:
    former = stable("x")
    saved = former.machine.snapshot()
    former.join("x2", "x")
    assert former.joined("x2").generation == 2
    desk = Desk(Machine(Limits(), saved, 0.0))
    desk.join("x3", "x")
    assert desk.joined("x3").generation > 2


def test_the_end_answers_everybody() -> None:
    desk = stable("x", "y", instance=None)
    desk.join("z", new_id="z")
    desk.join("x2", "x")
    desk.machine.fail(Code.NOT_COORDINATOR)
    desk.drain()
    assert desk.joined("z").code is desk.joined("x2").code is Code.NOT_COORDINATOR
    assert desk.beat("x") is Code.COORDINATOR_NOT_AVAILABLE
    assert desk.machine.next_deadline() is None or desk.machine.phase is Phase.DEAD


def test_a_coordinator_that_slept_gives_the_time_back() -> None:
    desk = stable("x", session=10.0)
    desk.machine.delay(100.0)
    desk.now += 100.0
    desk.machine.tick(desk.now)
    desk.drain()
    assert set(desk.machine.members) == {"x"}
