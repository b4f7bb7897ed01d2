"""`streamlog group …` and `consume --group`: members are real processes, killed, closed and interrupted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from integration.program import (
    SECONDS,
    Done,
    Running,
    Wrong,
    all_refused,
    command,
    environment,
    ok,
    on_terminal,
    refused,
    run,
    running,
    topic_with,
)

import streamlog
from streamlog.consumer.group.admin import GroupDescription

pytestmark = pytest.mark.processes

# A member that is killed is gone after a second and a half instead of ten.
QUICK = ("-X", "session.timeout.ms=1500", "-X", "heartbeat_interval_ms=250")
OFTEN = ("-X", "auto.commit.interval.ms=50")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log whose topic `orders` has four partitions with ten records each: p0-0 … p3-9."""
    root = tmp_path / "root"
    with streamlog.connect(root) as log:
        log.create_topic("orders", partitions=4)
    send(root, 0, 10)
    return root


def send(root: Path, first: int, last: int) -> list[str]:
    """Write records first … last-1 to every partition; returns their values."""
    sent = [(p, f"p{p}-{i}") for p in range(4) for i in range(first, last)]
    with streamlog.connect(root) as log, log.producer() as producer:
        for partition, value in sent:
            producer.send("orders", value, partition=partition)
    return [value for _, value in sent]


def group_of(root: Path, name: str = "billing") -> GroupDescription:
    with streamlog.connect(root, create=False) as log:
        return log.group(name).describe()


def committed(root: Path, name: str = "billing") -> list[int | None]:
    return [part.committed for part in group_of(root, name).partitions]


def names(root: Path) -> list[str]:
    with streamlog.connect(root, create=False) as log:
        return [group.name for group in log.groups()]


def has_read(root: Path, *names: str) -> None:
    """Groups that have read everything there is."""
    with streamlog.connect(root, create=False) as log:
        for name in names:
            with log.consumer("orders", group_id=name, auto_offset_reset="earliest") as consumer:
                count = 0
                while count < 40:
                    count += len(consumer.poll(timeout_ms=1000))


def eventually(what: str, holds: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Member(Running):
    """A `consume` whose lines are collected as they come."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode().rstrip("\n"))

    def end(self, number: int) -> Done:
        """Send a signal, and wait for the end of the process and of its output."""
        self.process.send_signal(number)
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert self.process.stderr is not None
        return Done(self.process.returncode, b"", self.process.stderr.read().decode()).check()


@contextmanager
def member(root: Path, *options: str) -> Iterator[Member]:
    """One more member of group `billing`, which never outlives the block."""
    process = subprocess.Popen(
        command("consume", "orders", "--group", "billing", "--from-beginning", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(root),
    )
    with process:
        try:
            yield Member(process)
        finally:
            process.kill()


def owners(root: Path) -> list[int]:
    """How many partitions each member owns; [] while the group is not settled."""
    try:
        found = group_of(root)
    except streamlog.StreamlogError:
        return []
    return [len(m.partitions) for m in found.members] if found.state == "stable" else []


# A group's work


def test_a_group_goes_on_where_it_stopped_and_another_one_gets_everything(root: Path) -> None:
    first = ok(root, "consume", "orders", "--group", "billing", "--exit-at-end")
    assert len(first.lines) == 40
    assert ok(root, "consume", "orders", "-G", "billing", "-e").lines == []
    new = send(root, 10, 12)

    described = ok(root, "group", "describe", "billing").lines
    assert "state\tempty" in described
    assert "lag\t8" in described
    assert [line.split("\t")[:6] for line in described if line.startswith("orders\t")] == [
        ["orders", str(p), "10", "12", "2", "-"] for p in range(4)
    ]
    rest = ok(root, "consume", "orders", "-G", "billing", "-e", "-f", "%p %o %s\n").lines
    assert sorted(line.split()[2] for line in rest) == sorted(new)
    assert rest[0].split()[1] == "10"
    as_json = ok(root, "consume", "orders", "-G", "audit", "-e", "--json").lines
    assert len(as_json) == 48
    assert {json.loads(line)["topic"] for line in as_json} == {"orders"}

    views = [("list", "-q"), ("list",), ("list", "--json"), ("describe", "billing", "--json")]
    with ThreadPoolExecutor(2) as pool:
        quiet, table, listed, told = pool.map(lambda view: ok(root, "group", *view), views)
    assert quiet.lines == ["audit", "billing"]
    assert table.lines[0] == "GROUP\tSTATE\tMEMBERS\tGENERATION"
    assert [row.split("\t")[:3] for row in table.lines[1:]] == [
        ["audit", "empty", "0"],
        ["billing", "empty", "0"],
    ]
    assert [(g["name"], g["state"], g["members"]) for g in json.loads(listed.out)] == [
        ("audit", "empty", 0),
        ("billing", "empty", 0),
    ]
    group = json.loads(told.out)
    assert (group["lag"], group["members"], group["strategy"]) == (0, [], None)
    assert [(p["partition"], p["committed"], p["lag"]) for p in group["partitions"]] == [
        (p, 12, 0) for p in range(4)
    ]


def test_two_processes_share_a_topic_and_one_takes_over_from_a_killed_one(root: Path) -> None:
    with member(root, *QUICK, *OFTEN) as first, member(root, *QUICK, *OFTEN) as second:
        eventually("two members with two partitions each", lambda: owners(root) == [2, 2])
        listed = json.loads(ok(root, "group", "members", "billing", "--json").out)
        assert sorted(p["partition"] for m in listed for p in m["partitions"]) == [0, 1, 2, 3]
        assert all(m["last_heartbeat"] and m["topics"] == ["orders"] for m in listed)
        rows = ok(root, "group", "members", "billing").lines
        assert rows[0].split("\t")[0] == "MEMBER"
        assert sorted(row.split("\t")[5].count("orders-") for row in rows[1:]) == [2, 2]

        sent = send(root, 10, 30)
        eventually("all printed", lambda: len(first.lines) + len(second.lines) >= 120)
        printed = Counter(first.lines + second.lines)
        assert set(printed.values()) == {1}, "a record was printed twice"
        # What came after both had joined went to both, by partitions.
        theirs = [{v[:2] for v in m.lines if v in sent} for m in (first, second)]
        assert [len(partitions) for partitions in theirs] == [2, 2]
        assert not theirs[0] & theirs[1]
        eventually("all committed", lambda: committed(root) == [30] * 4)

        assert first.end(signal.SIGKILL).code == -signal.SIGKILL
        killed_at = time.monotonic()
        more = send(root, 30, 35)
        eventually("taken over", lambda: set(more) <= set(second.lines))
        # Session timeout, at most 2 s, and room for a busy machine.
        assert time.monotonic() - killed_at < 1.5 + 2 + 4
        assert owners(root) == [4]
        assert set(Counter(second.lines).values()) == {1}

        stopped_at = time.monotonic()
        ended = second.end(signal.SIGTERM)
        assert (ended.code, ended.err) == (128 + signal.SIGTERM, "")
        assert time.monotonic() - stopped_at < 4
    after = group_of(root)
    assert (after.state, after.lag, committed(root)) == ("empty", 0, [35] * 4)


def test_members_that_end_at_the_end_print_each_record_once(root: Path) -> None:
    send(root, 10, 500)
    options = ("consume", "orders", "-G", "billing", "-e", "--max-poll-records", "20")
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: ok(root, *options), range(3)))
    printed = Counter(line for each in done for line in each.lines)
    assert len(printed) == 2000
    assert set(printed.values()) == {1}
    assert committed(root) == [500] * 4


def test_max_messages_commits_what_was_printed_and_no_more(root: Path) -> None:
    seen = ok(root, "consume", "orders", "-G", "billing", "--from-beginning", "-c", "7").lines
    assert len(seen) == 7
    assert sum(offset or 0 for offset in committed(root)) == 7
    rest = ok(root, "consume", "orders", "-G", "billing", "-e").lines
    assert len(rest) == 33
    assert not set(seen) & set(rest)


def test_nothing_is_committed_if_that_was_switched_off(root: Path) -> None:
    options = ("consume", "orders", "-G", "billing", "-e", "-X", "enable.auto.commit=false")
    assert len(ok(root, *options).lines) == 40
    assert len(ok(root, *options).lines) == 40
    assert not any(committed(root))


def test_a_partition_of_a_group_is_read_without_joining_it(root: Path) -> None:
    alone = ("consume", "orders", "--group", "billing", "--partition", "2", "--exit-at-end")
    assert ok(root, *alone).lines == [f"p2-{i}" for i in range(10)]
    assert ok(root, *alone).lines == []
    assert committed(root) == [None, None, 10, None]
    # By interval, while it runs: even a kill -9 loses no more than that.
    with running(root, *alone[:-1], *OFTEN) as one:
        send(root, 10, 11)
        assert one.line() == "p2-10"
        eventually("committed by interval", lambda: committed(root)[2] == 11)
    with member(root, *QUICK):
        eventually("a member is at work", lambda: owners(root) == [4])
        assert "so only they commit its offsets" in refused(root, *alone)


# How a member ends


def test_ctrl_c_on_a_terminal_commits_and_leaves(root: Path) -> None:
    arguments = ("consume", "orders", "--group", "billing", "--from-beginning")
    code, shown = on_terminal(root, *arguments, answers=[("p3-9", b"\x03")])
    assert code == 130
    assert shown.count("p3-9") == 1
    assert group_of(root).members == ()
    printed = [line for line in shown.splitlines() if line.startswith("p")]
    assert sum(offset or 0 for offset in committed(root)) == len(printed)


def test_a_closed_pipe_ends_an_idle_member(root: Path) -> None:
    with running(root, "consume", "orders", "-G", "billing", "--from-beginning") as one:
        lines = [one.line() for _ in range(40)]
        assert len(set(lines)) == 40
        assert one.process.stdout is not None
        one.process.stdout.close()
        assert one.process.wait(SECONDS) == 0
        assert one.process.stderr is not None
        assert one.process.stderr.read() == b""
    assert (group_of(root).state, committed(root)) == ("empty", [10] * 4)


@pytest.mark.parametrize("how", ["closed pipe", "ctrl-c"])
def test_what_could_not_be_written_is_not_committed(root: Path, how: str) -> None:
    topic_with(root, "large", *[bytes([65 + i]) * 99_999 for i in range(8)])
    options = ("--from-beginning", "--max-poll-records", "1")
    with running(root, "consume", "large", "-G", "slow", *options) as one:
        out = one.process.stdout
        assert out is not None
        seen = 0
        while seen < 250_000:
            seen += len(out.read(250_000 - seen))
        # Three records are out, by 64 KiB in the pipe; the fourth waits for somebody to read.
        time.sleep(0.5)
        if how == "ctrl-c":
            one.interrupt()
            assert one.process.wait(SECONDS) == 130
        else:
            out.close()
            assert one.process.wait(SECONDS) == 0
        assert one.process.stderr is not None
        assert one.process.stderr.read() == b""
    found = group_of(root, "slow")
    assert found.members == ()
    assert [part.committed for part in found.partitions] == [3]
    rest = ok(root, "consume", "large", "-G", "slow", "-e", "-f", "%o\n").lines
    assert rest == ["3", "4", "5", "6", "7"]


def test_a_full_disk_behind_stdout_commits_nothing(root: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = run(root, "consume", "orders", "-G", "billing", "-e", stdout=full)
    assert done.code == 1
    assert done.err == "error: cannot write to stdout: No space left on device\n"
    assert not any(committed(root))


# Resets


def test_a_reset_shows_its_plan_and_does_it(root: Path) -> None:
    has_read(root, "billing")
    before = int(time.time() * 1000)
    time.sleep(0.02)
    plan = ["TOPIC\tPARTITION\tFROM\tTO", *[f"orders\t{p}\t10\t0" for p in range(4)]]
    tried = ok(root, "group", "reset", "billing", "--to", "earliest", "--dry-run")
    assert tried.lines == plan
    assert tried.err == "dry run: nothing was changed of group billing\n"
    assert committed(root) == [10] * 4
    done = ok(root, "group", "reset", "billing", "--to", "earliest")
    assert (done.lines, done.err) == (plan, "reset group billing: 4 partitions\n")
    assert committed(root) == [0] * 4

    one = ok(root, "group", "reset", "billing", "--to", "4", "-t", "orders", "-p", "1", "-p", "3")
    assert one.lines[1:] == ["orders\t1\t0\t4", "orders\t3\t0\t4"]
    assert committed(root) == [0, 4, 0, 4]
    ok(root, "group", "reset", "billing", "--to", "2026-01-31T12:00:00Z")
    assert committed(root) == [0] * 4
    ok(root, "group", "reset", "billing", "--to", "@253402300799999")
    assert committed(root) == [10] * 4
    with streamlog.connect(root) as log:
        log.group("billing").reset(3)

    answer = ok(root, "group", "reset", "billing", "--as-of", f"@{before}", "--json")
    told = json.loads(answer.out)
    assert (told["group"], told["dry_run"], answer.err) == ("billing", False, "")
    assert told["moves"] == [
        {"topic": "orders", "partition": p, "from": 3, "to": 10} for p in range(4)
    ]
    assert committed(root) == [10] * 4


def test_a_reset_is_refused_while_a_member_works_unless_it_is_forced(root: Path) -> None:
    with member(root, *QUICK, *OFTEN) as one:
        eventually("all printed", lambda: len(one.lines) == 40)
        eventually("committed", lambda: committed(root) == [10] * 4)
        at_work = "group 'billing' has members at work"
        all_refused(
            root,
            [
                Wrong("group reset billing --to earliest", 1, at_work),
                Wrong("group delete billing --yes", 1, at_work),
            ],
        )
        tried = ok(root, "group", "reset", "billing", "--to", "5", "--dry-run")
        assert "it has members: stop them first, or add --force" in tried.err
        assert committed(root) == [10] * 4
        ok(root, "group", "reset", "billing", "--to", "8", "--force")
        eventually("it joins again and reads on from there", lambda: len(one.lines) == 48)
        assert Counter(one.lines)["p0-8"] == 2
        assert one.end(signal.SIGINT).code == 130
    assert committed(root) == [10] * 4


# Deleting


def test_groups_are_deleted_and_expire(root: Path) -> None:
    has_read(root, "billing", "audit", "old")
    assert ok(root, "group", "delete", "billing", "-y").lines == ["deleted group billing"]
    gone = json.loads(ok(root, "group", "delete", "audit", "-y", "--json").out)
    assert gone == {"name": "audit", "deleted": True}
    assert names(root) == ["old"]

    kept = ok(root, "group", "expire", "--older-than", "1h")
    assert (kept.lines, kept.err) == ([], "no group is without members and silent for 1h\n")
    time.sleep(0.05)
    would = ok(root, "group", "expire", "--older-than", "1ms", "--dry-run")
    assert would.lines == ["would delete group old"]
    told = ok(root, "group", "expire", "--older-than", "1ms", "--json")
    assert json.loads(told.out) == {"groups": ["old"], "dry_run": False}
    assert names(root) == []
    # A group of the same name begins anew.
    has_read(root, "old")


@pytest.mark.parametrize(("typed", "code", "left"), [(b"y\n", 0, []), (b"n\n", 1, ["billing"])])
def test_deleting_asks_on_a_terminal(root: Path, typed: bytes, code: int, left: list[str]) -> None:
    has_read(root, "billing")
    question = "Delete group billing and its committed offsets? [y/N]: "
    ended, shown = on_terminal(root, "group", "delete", "billing", answers=[(question, typed)])
    assert ended == code
    assert ("aborted, nothing was changed" in shown) == bool(left)
    assert names(root) == left


# What is wrong


def test_a_wrong_command_about_groups_says_why_and_changes_nothing(root: Path) -> None:
    has_read(root, "billing")
    reset = "group reset billing"
    all_refused(
        root,
        [
            Wrong(
                "group describe biling", 1, "no consumer group 'biling'; did you mean 'billing'?"
            ),
            Wrong("group members nobody", 1, "there is no consumer group 'nobody'; a group begins"),
            Wrong("group delete billing", 2, "add --yes"),
            Wrong("group describe a/b", 1, "'a/b' cannot be the name of a consumer group"),
            Wrong(reset, 2, "give either --to earliest|latest|OFFSET|TIME, or --as-of TIME"),
            Wrong(f"{reset} --to latest --as-of 2026-01-01", 2, "give either --to"),
            Wrong(f"{reset} --to as-of=2026-01-01", 2, "write --as-of TIME"),
            Wrong(f"{reset} --to soon", 2, "--to: 'soon' is no place: give earliest, latest"),
            Wrong(f"{reset} --to -3", 2, "--to: offset -3 is below 0"),
            Wrong(f"{reset} --to @tomorrow", 2, "--to: 'tomorrow' is no time"),
            Wrong(f"{reset} --as-of never", 2, "--as-of: 'never' is no time"),
            Wrong(f"{reset} --as-of 2001-01-01", 1, "had committed nothing of these topics"),
            Wrong(f"{reset} --to 11", 1, "offset 11 is not in"),
            Wrong(f"{reset} --to latest -p 0", 2, "--partition needs --topic"),
            Wrong(f"{reset} --to latest -t orders -p 7", 1, "has no partition 7"),
            Wrong("group expire --older-than soon", 2, "--older-than: 'soon' is no duration"),
            Wrong("group list --watch 0", 2, "--watch 0: give seconds from 0.1"),
            Wrong("consume orders -G billing -o 5", 2, "begins at its committed offsets"),
            Wrong(
                "consume orders -G b -X session.timeout=3", 1, "did you mean 'session_timeout_ms'?"
            ),
            Wrong(
                "consume orders -G b -X session.timeout.ms=soon", 1, "session_timeout_ms is 'soon'"
            ),
            Wrong("consume orders -X group.id=b", 2, "-X group.id: use --group instead"),
            Wrong("consume orders -X enable.auto.commit=maybe", 1, "enable_auto_commit is 'maybe'"),
            Wrong("produce orders -X linger.ms=3", 2, "-X linger.ms: use --linger-ms instead"),
            Wrong("produce orders -X batch.records=0", 1, "batch_records=0 is not allowed"),
        ],
    )
    assert names(root) == ["billing"]
    assert committed(root) == [10] * 4


def test_a_setting_reaches_the_client(root: Path) -> None:
    chosen = ("-X", "client.id=till-7", "-X", "partition_assignment_strategy=range,roundrobin")
    with member(root, *QUICK, *chosen, "-X", "group.instance.id=till"):
        eventually("joined", lambda: owners(root) == [4])
        found = group_of(root)
        assert found.strategy == "range"
        assert (found.members[0].client_id, found.members[0].instance) == ("till-7", "till")


# What people see


def test_lag_is_coloured_and_redrawn_on_a_terminal(root: Path) -> None:
    has_read(root, "billing")
    send(root, 10, 1100)
    with streamlog.connect(root) as log:
        log.group("billing").reset(1100, partitions=[streamlog.TopicPartition("orders", 0)])
        log.group("billing").reset(1093, partitions=[streamlog.TopicPartition("orders", 1)])
    code, shown = on_terminal(root, "group", "describe", "billing")
    assert code == 0
    for colour, lag in ((32, 0), (33, 7), (31, 1090), (31, 2187)):
        assert re.search(rf"\x1b\[{colour}m *{lag} *\x1b", shown), lag
    code, plain = on_terminal(root, "group", "describe", "billing", variables={"NO_COLOR": "1"})
    assert code == 0
    assert "\x1b[3" not in plain

    watch = ("group", "describe", "billing", "--watch", "0.2")
    code, drawn = on_terminal(root, *watch, answers=[("\x1b[J\x1b[H", b""), ("2187", b"\x03")])
    assert code == 130
    assert drawn.count("\x1b[2J") == 1
    assert drawn.count("\x1b[H") >= 2
    assert "every 0.2 s, Ctrl-C ends" in drawn
    code, said = on_terminal(root, "group", "members", "billing")
    assert (code, "group billing has no members" in said) == (0, True)


def test_a_watch_in_a_pipe_is_a_block_a_look_and_ends_with_the_pipe(root: Path) -> None:
    has_read(root, "billing")
    with running(root, "group", "describe", "billing", "--json", "--watch", "0.1") as seen:
        assert json.loads(seen.line())["lag"] == 0
        send(root, 10, 11)
        eventually("the lag is seen", lambda: json.loads(seen.line())["lag"] == 4)
        assert seen.process.stdout is not None
        seen.process.stdout.close()
        assert seen.process.wait(SECONDS) == 0
    # Without a number it is every two seconds.
    with running(root, "group", "list", "--watch") as seen:
        assert seen.line().startswith("# 20")
        assert seen.line() == "GROUP\tSTATE\tMEMBERS\tGENERATION"
        assert seen.line().startswith("billing\tempty\t0\t")
        assert seen.line() == ""
        assert seen.line().startswith("# 20")
        seen.interrupt()
        assert seen.process.wait(SECONDS) == 130


def test_the_shell_completes_groups(root: Path) -> None:
    has_read(root, "billing", "bills", "audit")

    def completed(line: str) -> list[str]:
        asked = {
            "_STREAMLOG_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
        return sorted(ok(root, variables=asked).out.decode().split())

    assert completed("streamlog group describe bil") == ["billing", "bills"]
    assert completed("streamlog consume orders --group au") == ["audit"]
