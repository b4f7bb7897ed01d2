"""Numbered views, heartbeats and node ids: pure rules, and their objects in a root."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.liveness import Liveness
from streamlog.broker.members import Member, View, without_dead
from streamlog.broker.roster import Roster
from streamlog.clock import Runtime
from streamlog.errors import CorruptLogError
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects


def member(node: int, claim: int = 1, *, maintain: bool = False) -> Member:
    return Member(node, claim, "127.0.0.1", 9000 + node, maintain=maintain)


MEMBERS = st.builds(
    Member,
    st.integers(1, 1 << 30),
    st.integers(1, 100),
    st.text(max_size=10),
    st.integers(0, 65535),
    st.none() | st.text(max_size=5),
    st.booleans(),
)


@pytest.fixture
def objects(request: pytest.FixtureRequest) -> Objects:
    return open_objects(f"memory://{request.node.name}", None, Runtime())


@given(st.lists(MEMBERS, max_size=5, unique_by=lambda m: m.node))
def test_a_view_is_read_as_it_was_written(members: list[Member]) -> None:
    view = View(16).next(members)
    assert view.epoch == 17
    assert View.from_bytes("epochs/17", view.to_bytes()) == view
    assert (view.controller is None) == (not members)


def test_what_is_no_view_is_refused_by_name() -> None:
    for data in (b"", b"{}", b"[]", b'{"epoch": 1, "members": [3], "controller": null}'):
        with pytest.raises(CorruptLogError, match="epochs/3 does not tell"):
            View.from_bytes("epochs/3", data)


def test_a_broker_enters_by_itself_and_the_dead_are_taken_out_by_anybody() -> None:
    one, two, three = member(1), member(2), member(3)
    first = without_dead(View(), one, set())
    assert first is not None
    assert (first.epoch, first.members) == (1, (one,))
    assert without_dead(first, one, set()) is None
    both = without_dead(first, two, set())
    assert both is not None
    assert both.members == (one, two)
    # That a third one beats makes nobody else bring it in: only its own doing does.
    assert without_dead(both, one, set()) is None
    alone = without_dead(both, two, {one.key, three.key})
    assert alone is not None
    assert (alone.epoch, alone.members) == (3, (two,))


def test_a_later_holder_of_a_node_id_replaces_the_former() -> None:
    view = View(4, (member(1), member(2)), 2)
    following = without_dead(view, member(1, claim=2), set())
    assert following is not None
    assert following.members == (member(1, claim=2), member(2))


def test_the_controller_stays_until_it_dies_or_another_would_maintain() -> None:
    view = View().next([member(1)])
    assert view.controller == 1
    view = view.next([member(1), member(2), member(3)])
    assert view.controller == 1
    keeper = view.next([member(1), member(2), member(3, maintain=True)])
    assert keeper.controller == 3
    more = keeper.next([*keeper.members, member(4, maintain=True)])
    assert more.controller == 3
    assert more.next([member(1), member(4, maintain=True)]).controller == 4
    assert more.next([member(1)]).controller == 1
    # The same number, but another broker: it was not the controller.
    assert more.next([member(3, 2, maintain=True)]).controller == 3


def test_a_heartbeat_that_stands_still_for_long_enough_is_dead() -> None:
    watch: Liveness[str] = Liveness(3)
    for beat in ("a", "b", "b", "b"):
        watch.look({"x": beat}, ())
        assert watch.dead() == set()
    watch.look({"x": "b"}, ())
    assert watch.dead() == {"x"}
    watch.look({"x": "c"}, ())
    assert watch.dead() == set()


def test_a_missing_heartbeat_is_dead_at_the_second_look() -> None:
    watch: Liveness[str] = Liveness(6)
    watch.look({"x": "a"}, ("x", "y"))
    assert watch.dead() == set()
    watch.look({"x": "b"}, ("x", "y"))
    assert watch.dead() == {"y"}
    watch.look({"x": "c"}, ())
    assert watch.dead() == set()


def test_node_ids_are_never_given_twice(objects: Objects) -> None:
    roster = Roster(objects)
    assert roster.claim_new("a") == (1, 1)
    assert roster.claim_new("b") == (2, 1)
    assert roster.claim(40, 1, "c")
    assert not roster.claim(40, 1, "d")
    assert roster.claim(40, 2, "d")
    assert roster.claims(40) == [1, 2]
    assert roster.claim_new("e") == (41, 1)


def test_one_look_shows_beats_and_the_newest_view(objects: Objects) -> None:
    roster = Roster(objects)
    assert roster.look().epoch == 0
    view = View()
    for _ in range(12):
        view = view.next([member(1), member(2)])
        assert roster.propose(view)
    assert not roster.propose(View(11).next([member(7)]))
    roster.beat(member(1), 1, "i", 1.0)
    look = roster.look()
    assert (look.epoch, list(look.beats), look.old) == (12, [(1, 1)], (1, 2, 3, 4))
    assert roster.view(12) == view
    roster.beat(member(1), 2, "i", 1.0)
    assert roster.look().beats != look.beats
    assert roster.holder((1, 1)) == (member(1), 1.0)
    roster.forget_views(look.old)
    roster.forget([(1, 1)])
    assert roster.view(4) is None
    assert roster.look().old == ()
    assert roster.look().beats == {}
