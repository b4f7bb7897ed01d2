"""`streamlog user …` and `streamlog acl …`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from integration.program import Wrong, all_refused, ok, on_terminal, refused

import streamlog
from streamlog.broker.users import Users
from streamlog.clock import Runtime

pytestmark = pytest.mark.processes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def matches(root: Path, name: str, password: str) -> bool:
    with streamlog.connect(root, create=False) as log:
        user = Users(log.admin(), Runtime()).read()[name]
    return all(verifier.matches(password) for verifier in user.verifiers)


def test_a_user_is_added_listed_given_another_password_and_deleted(root: Path) -> None:
    made = ok(root, "user", "add", "alice", "--password-stdin", stdin=b"one \nrest\n")
    assert made.lines == ["added user alice"]
    assert matches(root, "alice", "one ")

    heading, row = ok(root, "user", "list").lines
    assert heading.split("\t") == ["USER", "MECHANISMS", "CREATED", "PASSWORD SINCE"]
    assert row.split("\t")[:2] == ["alice", "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"]
    assert ok(root, "user", "list", "-q").lines == ["alice"]
    (listed,) = json.loads(ok(root, "user", "list", "--json").out)
    assert set(listed) == {"name", "mechanisms", "created_at", "changed_at"}

    changed = ok(root, "user", "passwd", "alice", "--password-stdin", stdin=b"two")
    assert changed.lines == ["changed the password of user alice"]
    assert matches(root, "alice", "two")
    assert ok(root, "user", "delete", "alice", "-y").lines == ["deleted user alice"]
    assert ok(root, "user", "list", "-q").lines == []


def test_a_password_is_typed_twice_and_never_shown(root: Path) -> None:
    # The blank after the colon comes once the echo is off; what is typed before is thrown away.
    typed = [("Password of alice: ", b"unseen-1\n"), ("confirmation: ", b"unseen-1\n")]
    code, seen = on_terminal(root, "user", "add", "alice", answers=typed)
    assert code == 0, seen
    assert "unseen-1" not in seen
    assert matches(root, "alice", "unseen-1")
    code, seen = on_terminal(
        root, "user", "delete", "alice", answers=[("Delete user alice?", b"n\n")]
    )
    assert code == 1
    assert matches(root, "alice", "unseen-1")


def test_rules_are_added_listed_and_removed(root: Path) -> None:
    ok(root, "user", "add", "alice", "--password-stdin", stdin=b"x\n")
    added = ok(root, "acl", "add", "alice", "-o", "read", "-t", "orders", "-g", "billing")
    assert added.lines[0].split("\t") == [
        "USER",
        "PERMISSION",
        "OPERATION",
        "KIND",
        "PATTERN",
        "NAME",
        "HOST",
    ]
    assert "rules are in force from now on" in added.err
    again = ok(root, "acl", "add", "alice", "-o", "read", "-t", "orders")
    assert "1 of 1 rules were there already" in again.err
    prefix = ("acl", "add", "bob", "-o", "all", "-t", "sa", "--prefix", "--deny", "--host", "::1")
    assert "there is no user bob yet" in ok(root, *prefix).err
    ok(root, "acl", "add", "*", "-o", "describe", "--cluster", "--json")

    assert len(ok(root, "acl", "list").lines) == 5
    (rule,) = json.loads(ok(root, "acl", "list", "-t", "sales", "--json").out)
    assert rule == {
        "principal": "User:bob",
        "permission": "deny",
        "operation": "all",
        "kind": "topic",
        "pattern": "prefix",
        "name": "sa",
        "host": "::1",
    }
    assert len(json.loads(ok(root, "acl", "list", "--cluster", "--json").out)) == 1
    assert len(json.loads(ok(root, "acl", "list", "-u", "alice", "--json").out)) == 2

    gone = ok(root, "acl", "remove", "alice", "-g", "billing", "-y")
    assert gone.lines == ["removed 1 rule of User:alice"]
    removed = json.loads(ok(root, "acl", "remove", "*", "-y", "--json").out)["removed"]
    assert [rule["kind"] for rule in removed] == ["cluster"]
    assert len(json.loads(ok(root, "acl", "list", "--json").out)) == 2


def test_wrong_commands_say_why_and_change_nothing(root: Path) -> None:
    ok(root, "user", "add", "alice", "--password-stdin", stdin=b"x\n")
    all_refused(
        root,
        [
            Wrong("user add bob", 2, "--password-stdin"),
            Wrong("user add bob --password-stdin", 1, "empty"),
            Wrong("user add bob --password-stdin", 1, "UTF-8", b"\xff\n"),
            Wrong("user add alice --password-stdin", 1, "exists already", b"y\n"),
            Wrong("user add '*' --password-stdin", 1, "another name", b"y\n"),
            Wrong("user passwd bob --password-stdin", 1, "no user 'bob'", b"y\n"),
            Wrong("user delete alice", 2, "--yes"),
            Wrong("user delete bob -y", 1, "no user 'bob'"),
            Wrong("user add bob --password secret", 2, "--password"),
            Wrong("acl add alice -t orders", 2, "--operation"),
            Wrong("acl add alice -o read", 2, "--topic"),
            Wrong("acl add alice -o fly -t orders", 1, "no operation on a topic"),
            Wrong("acl add alice -o write -g billing", 1, "no operation on a group"),
            Wrong("acl add alice -o all --cluster --prefix", 2, "--prefix"),
            Wrong("acl add alice -o read -t orders --host here", 1, "IP address"),
            Wrong("acl remove alice -y", 1, "no rule"),
        ],
    )
    assert ok(root, "user", "list", "-q").lines == ["alice"]
    assert matches(root, "alice", "x")
    assert json.loads(ok(root, "acl", "list", "--json").out) == []
    assert "there is no log" in refused(root.parent / "nowhere", "user", "list")
