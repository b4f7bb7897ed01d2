"""`streamlog retention`, `compact`, `maintain`, `erase`, `doctor`: what they plan, do and say."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from integration.program import (
    Wrong,
    all_refused,
    ok,
    on_terminal,
    run,
    running,
    topic_with,
    values,
)

import streamlog

pytestmark = pytest.mark.processes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Topic `t` with forty records, a file each."""
    root = tmp_path / "root"
    topic_with(root, "t", *(b"v%d" % n for n in range(40)))
    return root


def files(root: Path, topic: str = "t") -> int:
    with streamlog.connect(root, create=False) as log:
        return log.describe(topic).files


def test_a_dry_run_prints_the_plan_that_a_run_executes(root: Path) -> None:
    plan = json.loads(ok(root, "compact", "--dry-run", "--json").out)
    assert [item["status"] for item in plan] == ["planned"]
    assert files(root) == 40
    done = json.loads(ok(root, "compact", "--json").out)
    assert [item["status"] for item in done] == ["done"]
    for item in (*plan, *done):
        item.pop("status"), item.pop("bytes_after")
    assert plan == done
    assert (plan[0]["files_before"], plan[0]["files_after"], len(plan[0]["files"])) == (40, 1, 40)
    assert files(root) == 1
    assert values(root, "t") == [b"v%d" % n for n in range(40)]


def test_a_table_says_what_was_done_and_nothing_due_is_said(root: Path) -> None:
    head, row = ok(root, "compact", "t").lines
    assert head.split("\t")[:4] == ["PARTITION", "ACTION", "OFFSETS", "FILES"]
    assert row.split("\t")[:4] == ["t-0", "merge", "0..39", "40 > 1"]
    again = ok(root, "compact", "t")
    assert again.out == b""
    assert again.err == "compaction: nothing is due\n"
    assert "plan of retention: nothing is due" in ok(root, "retention", "--dry-run").err


def test_retention_removes_what_is_past_its_time(root: Path) -> None:
    ok(root, "topic", "alter", "t", "--config", "retention.ms=0")
    plan = json.loads(ok(root, "retention", "--dry-run", "--json").out)
    assert (plan[0]["records_dropped"], plan[0]["reason"]) == (39, "older than retention.ms=0")
    assert files(root) == 40
    ok(root, "retention")
    with streamlog.connect(root, create=False) as log:
        (part,) = log.describe("t").partitions
    assert (part.start, part.end, part.files) == (39, 40, 1)


def test_a_group_that_has_not_read_holds_the_data(root: Path) -> None:
    ok(root, "topic", "alter", "t", "-c", "retention.ms=0", "-c", "retention.hold.groups=hold")
    with streamlog.connect(root, create=False) as log:
        with log.consumer(group_id="slow") as consumer:
            consumer.assign([("t", 0)])
            consumer.seek(("t", 0), 10)
            consumer.commit()
        (done,) = log.maintainer().run()
        assert (done.last, done.note) == (9, "more is held for slow")
        assert log.describe("t").partitions[0].start == 10
        log.alter_topic("t", {"retention.hold.max.ms": 0, "retention.ms": 1})
        (done,) = log.maintainer().run()
        assert (done.last, done.note) == (38, "unread by slow")


def test_maintain_does_all_and_writes_metrics(root: Path, tmp_path: Path) -> None:
    metrics = tmp_path / "m.prom"
    body = json.loads(ok(root, "maintain", "--metrics", str(metrics), "--json").out)
    assert (body["steps"], body["files_replaced"], body["files_written"]) == (1, 40, 1)
    assert body["errors"] == []
    text = metrics.read_text()
    assert "streamlog_maintenance_files_replaced 40\n" in text
    assert "# TYPE streamlog_maintenance_last_run_timestamp_seconds gauge\n" in text
    assert ok(root, "maintain").lines[-1].startswith("0 steps: 0 files became 0")


def test_a_loop_holds_the_lease_and_another_takes_over(root: Path) -> None:
    with running(root, "maintain", "--every", "200ms", "--json") as first:
        assert json.loads(first.line())["steps"] == 1
        with running(root, "maintain", "--every", "200ms", "--json") as second:
            assert second.process.stderr is not None
            said = second.process.stderr.readline().decode()
            assert "maintains this root; standing by" in said
            first.process.send_signal(signal.SIGTERM)
            assert first.finish().code == 0
            assert json.loads(second.line())["steps"] == 0
            second.interrupt()
            assert second.finish().code == 0


def test_an_erased_key_is_gone_from_the_log_and_then_from_storage(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with streamlog.connect(root) as log:
        log.create_topic("t", partitions=2)
        with log.producer() as producer:
            for n in range(20):
                producer.send("t", b"v%d" % n, key=b"k%d" % (n % 5))
        before = log.describe("t").records
    held = run(root, "erase", "t", "--key", "k3", "--check", "--json")
    assert (held.code, len(json.loads(held.out)["left"])) == (1, 1)
    first = run(root, "erase", "t", "--key", "k3", "--yes", "--json")
    body = json.loads(first.out)
    assert (first.code, body["records"], len(body["left"])) == (1, 4, 1)
    with streamlog.connect(root, create=False) as log:
        assert log.describe("t").records == before - 4
        with log.consumer("t", auto_offset_reset="earliest") as consumer:
            left = [record for _ in range(4) for record in consumer.poll(timeout_ms=200)]
    assert {record.key for record in left} == {b"k0", b"k1", b"k2", b"k4"}
    second = ok(root, "erase", "t", "--key", "k2", "--key", "k1", "--yes", "--purge")
    assert second.lines[0].startswith("erased 8 records of t, in ")
    assert second.lines[1:] == ["no file on storage holds the key"]


def test_the_doctor_says_what_to_run(root: Path) -> None:
    well = ok(root, "doctor")
    assert any("put-if-absent had one winner" in line for line in well.lines)
    ok(root, "topic", "alter", "t", "--config", "retention.ms=0")
    found = json.loads(ok(root, "doctor", "t", "--json").out)
    assert [item["todo"] for item in found if item["severity"] == "warning"] == [
        "streamlog retention t"
    ]
    (log_file,) = root.rglob("t/0/_delta_log/*39.json")
    log_file.write_bytes(b"")
    ill = run(root, "doctor", "--json")
    assert ill.code == 1
    (error,) = [item for item in json.loads(ill.out) if item["severity"] == "error"]
    assert error["where"] == "t-0"
    assert "version 39 is empty" in error["what"]
    # The others are maintained all the same, and the exit code tells.
    failed = run(root, "compact", "--json")
    assert failed.code == 1
    assert [item["status"] for item in json.loads(failed.out)] == ["failed"]


def test_wrong_calls_are_refused(root: Path) -> None:
    all_refused(
        root,
        [
            Wrong("compact nope", 1, "there is no topic 'nope'"),
            Wrong("maintain --every soon", 2, "'soon' is no duration"),
            Wrong("maintain --every 1m --dry-run", 2, "do not go together"),
            Wrong("erase t --yes", 2, "say which with --key KEY"),
            Wrong("erase t --key k", 2, "add --yes to do it"),
            Wrong("erase nope --key k --yes", 1, "there is no topic 'nope'"),
        ],
    )


def test_on_a_terminal_a_bar_and_a_table_and_a_question(root: Path) -> None:
    code, seen = on_terminal(root, "compact")
    assert code == 0
    assert "40 > 1" in seen
    code, seen = on_terminal(root, "erase", "t", "--key", "k", answers=[("Erase all", b"n\n")])
    assert code == 1
    assert "nothing was changed" in seen
