"""`streamlog topic …` and the program itself: options, help, exit codes, completion, terminals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from integration.program import (
    SECONDS,
    Wrong,
    all_refused,
    command,
    environment,
    ok,
    on_terminal,
    refused,
    run,
    topic_with,
)

import streamlog

pytestmark = pytest.mark.processes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


# A topic's life


def test_a_topic_is_made_listed_described_altered_truncated_and_deleted(root: Path) -> None:
    made = ok(root, "topic", "create", "orders", "-p", "2", "--config", "retention.ms=86400000")
    assert made.lines == ["created topic orders with 2 partitions"]

    heading, row = ok(root, "topic", "list").lines
    assert heading.split("\t") == ["TOPIC", "PARTITIONS", "CONFIG", "CREATED"]
    assert row.split("\t")[:3] == ["orders", "2", "retention.ms=86400000"]
    assert ok(root, "topic", "list", "--quiet").lines == ["orders"]

    ok(root, "produce", "orders", "-p", "1", stdin=b"a\nb\nc\n")
    described = ok(root, "topic", "describe", "orders").lines
    assert "records\t3" in described
    assert any(line.startswith("1\t0\t3\t3\t") for line in described)
    assert "retention.ms\t86400000\tset" in described
    assert "segment.bytes\t134217728\tdefault" in described

    altered = ok(root, "topic", "alter", "orders", "-c", "retention.ms=5000", "--partitions", "3")
    assert altered.lines == ["altered topic orders: 3 partitions, config retention.ms=5000"]
    reset = ok(root, "topic", "alter", "orders", "--delete-config", "retention.ms")
    assert reset.lines == ["altered topic orders: 3 partitions, config all default"]

    cut = ok(root, "topic", "truncate", "orders", "--partition", "1", "--before", "2")
    assert cut.lines == ["orders-1 now starts at offset 2"]
    assert ok(root, "consume", "orders", "-e").out == b"c\n"

    assert ok(root, "topic", "delete", "orders", "--yes").lines == ["deleted topic orders"]
    assert ok(root, "topic", "list", "-q").out == b""


def test_json_of_every_topic_command_is_one_value_a_line(root: Path) -> None:
    made = json.loads(ok(root, "topic", "create", "t", "-p", "2", "--json").out)
    assert (made["name"], made["partitions"], made["config"]) == ("t", 2, {})
    topic_with(root, "u", b"12345")

    # Before the command it means the same.
    listed = json.loads(ok(root, "--json", "topic", "list").out)
    assert [topic["name"] for topic in listed] == ["t", "u"]
    assert listed[0]["id"] == made["id"]

    described = json.loads(ok(root, "topic", "describe", "u", "--json").out)
    assert described["records"] == 1
    assert described["partition_details"][0]["end"] == 1
    assert described["effective_config"]["cleanup.policy"] == "delete"

    altered = json.loads(ok(root, "topic", "alter", "u", "-c", "retention.ms=1", "--json").out)
    assert altered["config"] == {"retention.ms": "1"}
    cut = json.loads(ok(root, "topic", "truncate", "u", "-p", "0", "--before", "1", "--json").out)
    assert cut == {"topic": "u", "partition": 0, "start": 1}
    gone = json.loads(ok(root, "topic", "delete", "u", "-y", "--json").out)
    assert gone == {"name": "u", "deleted": True}

    failed = run(root, "topic", "describe", "u", "--json")
    assert failed.code == 1
    error = json.loads(failed.err)["error"]
    assert error["type"] == "TopicNotFoundError"
    assert "there is no topic 'u'" in error["message"]


def test_a_topic_made_twice_is_refused_unless_it_may_exist(root: Path) -> None:
    ok(root, "topic", "create", "orders", "-p", "3")
    message = refused(root, "topic", "create", "orders")
    assert "orders" in message
    assert "exists" in message
    again = ok(root, "topic", "create", "orders", "-p", "1", "--if-not-exists")
    assert again.lines == ["topic orders with 3 partitions"]


def test_a_wrong_topic_command_says_why_and_changes_nothing(root: Path) -> None:
    topic_with(root, "orders", b"1", b"2", partitions=2)
    all_refused(
        root,
        [
            Wrong("topic create t -c retention.m=3", 1, "did you mean 'retention.ms'?"),
            Wrong("topic create t -c retention.ms=soon", 1, "retention.ms"),
            Wrong("topic create t -c retention.ms", 2, "must have the form KEY=VALUE"),
            Wrong("topic create no/slash", 1, "no/slash"),
            Wrong("topic create t -p 0", 1, "partitions"),
            Wrong("topic create t -p many", 2, "--partitions"),
            Wrong("topic alter orders", 2, "nothing to alter"),
            Wrong("topic alter orders -p 1", 1, "partitions"),
            Wrong(
                "topic alter orders -c compression=lz4",
                1,
                "did you mean 'compression.type'?",
            ),
            Wrong(
                "topic alter orders -c retention.ms=1 --delete-config retention.ms",
                2,
                "both set by --config and removed",
            ),
            Wrong("topic describe order", 1, "there is no topic 'order'; did you mean 'orders'?"),
            Wrong("topic delete order -y", 1, "there is no topic 'order'"),
            Wrong("topic delete orders", 2, "add --yes"),
            Wrong("topic truncate orders -p 7 --before 0", 1, "has no partition 7"),
            Wrong("topic truncate orders -p 0 --before -1", 1, "offset -1"),
            Wrong("topic truncate orders -p 0 --before 9", 1, "offset 9"),
        ],
    )
    with streamlog.connect(root, create=False) as log:
        (info,) = log.topics()
        assert (info.name, info.partitions, info.config.to_dict()) == ("orders", 2, {})
        assert log.describe("orders").partitions[0].start == 0


# The program


def test_the_root_is_told_before_the_command_and_overrides_the_environment(
    root: Path, tmp_path: Path
) -> None:
    topic_with(root, "here")
    other = tmp_path / "other"
    topic_with(other, "there")
    assert ok(None, "--root", str(root), "topic", "list", "-q").lines == ["here"]
    assert ok(other, "topic", "list", "-q").lines == ["there"]
    assert ok(other, "--root", str(root), "topic", "list", "-q").lines == ["here"]
    assert "before the command" in refused(None, "topic", "list", "--root", str(root), code=2)
    assert "no root given: put --root" in refused(None, "topic", "list", code=2)


def test_version_help_and_unknown_words(root: Path) -> None:
    assert ok(None, "--version").out.decode() == f"streamlog {streamlog.__version__}\n"
    helped = ok(None, "--help").out.decode()
    assert "produce" in helped
    assert "\x1b" not in helped
    bare = run(None)
    assert (bare.code, bare.out) == (2, b"")
    assert bare.err.startswith("Usage: streamlog")
    assert "Did you mean 'topic'?" in refused(None, "topi", code=2)
    assert "--from-begining" in refused(root, "consume", "t", "--from-begining", code=2)


def test_listing_topics_loads_only_what_it_needs(root: Path) -> None:
    topic_with(root, "orders")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command("topic", "list")[1:]],
        capture_output=True,
        text=True,
        env=environment(root),
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pyarrow.parquet" in loaded
    assert not loaded & {"pyarrow.dataset", "deltalake", "rich", "pyspark"}


def test_debug_shows_where_an_error_came_from(root: Path) -> None:
    done = subprocess.run(
        command("topic", "list"),
        capture_output=True,
        text=True,
        env=environment(root, {"STREAMLOG_DEBUG": "1"}),
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "RootError" in done.stderr


def test_the_shell_completes_commands_and_topics(root: Path) -> None:
    topic_with(root, "orders")
    with streamlog.connect(root) as log:
        log.create_topic("order.items")
        log.create_topic("clicks")

    def completed(line: str, root: Path | None = root) -> list[str]:
        asked = {
            "_STREAMLOG_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
        return ok(root, variables=asked).out.decode().split()

    assert completed("streamlog pro") == ["produce"]
    assert sorted(completed("streamlog consume ord")) == ["order.items", "orders"]
    assert completed(f"streamlog --root {root} topic describe cl", None) == ["clicks"]
    # A log that is not there yields no names, no words about it, and is not made.
    assert completed("streamlog consume x", root.parent / "none") == []
    assert not (root.parent / "none").exists()
    script = ok(None, "--show-completion", "bash").out
    assert b"_STREAMLOG_COMPLETE=complete_bash" in script


# The terminal


def test_tables_are_drawn_on_a_terminal(root: Path) -> None:
    topic_with(root, "orders", b"x")
    code, shown = on_terminal(root, "topic", "describe", "orders")
    assert code == 0
    assert "───" in shown
    assert "\x1b[1;36mpartition" in shown
    assert "retention.ms" in shown
    code, plain = on_terminal(root, "topic", "list", variables={"NO_COLOR": "1"})
    assert code == 0
    assert "orders" in plain
    assert "\x1b[1;36m" not in plain


def test_an_error_is_red_and_an_empty_list_a_hint_on_a_terminal(root: Path) -> None:
    topic_with(root, "t")
    code, shown = on_terminal(root, "topic", "describe", "nope")
    assert code == 1
    assert shown.startswith("\x1b[31merror:\x1b[0m there is no topic 'nope'")
    ok(root, "topic", "delete", "t", "-y")
    code, shown = on_terminal(root, "topic", "list")
    assert code == 0
    assert "no topics yet: streamlog topic create NAME makes one" in shown
    code, shown = on_terminal(root)
    assert code == 2
    assert "Usage:" in shown
    assert "error:" not in shown


@pytest.mark.parametrize(
    ("typed", "code", "left"),
    [
        (b"y\n", 0, []),
        (b"n\n", 1, ["orders"]),
        (b"\x03", 130, ["orders"]),
        (b"\x04", 1, ["orders"]),
    ],
    ids=["yes", "no", "ctrl-c", "ctrl-d"],
)
def test_deleting_asks_on_a_terminal(root: Path, typed: bytes, code: int, left: list[str]) -> None:
    topic_with(root, "orders")
    ended, shown = on_terminal(
        root, "topic", "delete", "orders", answers=[("all its records? [y/N]: ", typed)]
    )
    assert ended == code
    assert ("deleted topic orders" in shown) == (not left)
    assert ("aborted, nothing was changed" in shown) == bool(left)
    with streamlog.connect(root) as log:
        assert [info.name for info in log.topics()] == left


# The pipe


@pytest.mark.parametrize(
    "arguments", [["topic", "list"], ["--version"], ["consume", "orders", "-e"]]
)
def test_a_full_disk_behind_stdout_is_an_error(root: Path, arguments: list[str]) -> None:
    topic_with(root, "orders", b"x")
    with open("/dev/full", "wb") as full:
        done = run(root, *arguments, stdout=full)
    assert done.code == 1
    assert done.err == "error: cannot write to stdout: No space left on device\n"


def test_closed_standard_streams_are_no_crash(root: Path) -> None:
    topic_with(root, "orders", b"x")
    line = " ".join(command("topic", "list"))
    for closing, err in ((">&-", b""), (">&- 2>&-", b""), ("<&-", b"")):
        done = subprocess.run(
            ["sh", "-c", f"{line} {closing}"],
            capture_output=True,
            env=environment(root),
            timeout=SECONDS,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, err)
    # Nothing that was meant for stdout went into a file of the log instead.
    assert ok(root, "consume", "orders", "-e").out == b"x\n"
