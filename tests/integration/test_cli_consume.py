"""`streamlog consume`: where it begins and ends, how it prints, and what it says of a bad log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from integration.program import (
    SECONDS,
    Wrong,
    all_refused,
    command,
    environment,
    files,
    ok,
    refused,
    run,
    running,
    topic_with,
    values,
)

import streamlog

pytestmark = pytest.mark.processes

BASE_MS = 1_700_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log whose topic `t` holds a0 … a5 in partition 0 and b0 … b2 in partition 1, a second apart."""
    root = tmp_path / "root"
    with streamlog.connect(root) as log:
        log.create_topic("t", partitions=2)
        with log.producer() as producer:
            for partition, letter, count in ((0, "a", 6), (1, "b", 3)):
                for i in range(count):
                    producer.send(
                        "t",
                        f"{letter}{i}".encode(),
                        key=b"key" if i else None,
                        headers=[("h", b"1"), ("n", None)] if i == 1 else None,
                        partition=partition,
                        timestamp=BASE_MS + 1000 * i,
                    )
    return root


# Where it begins


def test_records_come_from_where_they_were_asked_for(root: Path) -> None:
    cases: list[tuple[list[str], str]] = [
        (["-e"], "a0 a1 a2 a3 a4 a5 b0 b1 b2"),
        (["--from-beginning", "--exit-at-end"], "a0 a1 a2 a3 a4 a5 b0 b1 b2"),
        (["-e", "-o", "earliest", "-p", "1"], "b0 b1 b2"),
        (["-e", "-o", "latest"], ""),
        (["-e", "-o", "2"], "a2 a3 a4 a5 b2"),
        (["-e", "-o", "-1"], "a5 b2"),
        (["-e", "--offset=-1000000", "-p", "1"], "b0 b1 b2"),
        (["-e", "-o", f"@{BASE_MS + 1500}"], "a2 a3 a4 a5 b2"),
        (["-e", "-o", "@2023-11-14T22:13:24Z"], "a4 a5"),
        (["-e", "-o", "@2023-11-15T00:13:24+02:00"], "a4 a5"),
        (["-e", "-o", "@253402300799999"], ""),
        (["-e", "-p", "0", "-p", "1", "-p", "0", "-o", "2"], "a2 a3 a4 a5 b2"),
        (["--from-beginning", "--max-messages", "2", "-p", "0"], "a0 a1"),
        (["--from-beginning", "-c", "9", "--follow"], "a0 a1 a2 a3 a4 a5 b0 b1 b2"),
        (["--from-beginning", "-c", "4", "-p", "0", "--max-poll-records", "3"], "a0 a1 a2 a3"),
    ]
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        runs = pool.map(lambda case: ok(root, "consume", "t", *case[0]), cases)
        for (options, expected), done in zip(cases, runs, strict=True):
            assert sorted(done.lines) == expected.split(), options
            assert done.err == ""


def test_a_wrong_consume_command_says_why(root: Path) -> None:
    all_refused(
        root,
        [
            Wrong("consume t -o 7 -p 0", 1, "offset 7 is not in t-0, which goes from 0 to 6"),
            Wrong("consume t -o 4", 1, "offset 4 is not in t-1, which goes from 0 to 3"),
            Wrong(
                "consume t -o 9223372036854775808", 2, "offset 9223372036854775808 is out of range"
            ),
            Wrong("consume t -o -9223372036854775808", 2, "is out of range"),
            Wrong("consume t -o soon", 2, "--offset: 'soon' is no offset: give a number"),
            Wrong("consume t -o @-1", 2, "--offset: timestamp -1 is out of range"),
            Wrong(
                "consume t -o @253402300800000", 2, "run from 0 to 253402300799999 (the year 9999)"
            ),
            Wrong("consume t -o @tomorrow", 2, "'tomorrow' is no time: give milliseconds"),
            Wrong("consume t -o @1969-12-31", 2, "timestamp 1969-12-31 is out of range"),
            Wrong("consume t -p 2", 1, "topic 't' has no partition 2; allowed: 0 to 1"),
            Wrong("consume t -p -1", 1, "has no partition -1"),
            Wrong("consume tt", 1, "there is no topic 'tt'; did you mean 't'?"),
            Wrong("consume t --max-messages 0", 2, "--max-messages"),
            Wrong("consume t --follow -e", 2, "--follow and --exit-at-end exclude each other"),
            Wrong("consume t --from-beginning -o 1", 2, "--from-beginning and --offset exclude"),
            Wrong("consume t -f %q", 2, "--format: unknown token '%q'"),
            Wrong("consume t -f %", 2, "--format: unknown token '%'"),
            Wrong("consume t -f '\\q'", 2, "unknown escape '\\q'"),
            Wrong("consume 't(' --pattern", 2, "'t(' is no regular expression"),
        ],
    )


# How it prints


def test_with_json_an_error_is_json_too(root: Path) -> None:
    done = run(root, "consume", "t", "-f", "%s", "--json")
    assert (done.code, done.out) == (2, b"")
    assert json.loads(done.err)["error"] == {
        "type": "WrongUsageError",
        "message": "--json and --format exclude each other",
    }


def test_every_token_of_kcat_is_known(root: Path) -> None:
    text = r"%t|%p|%o|%k|%s|%T|%h|%S|%K|%%\t\x21\n"
    done = ok(root, "consume", "t", "-e", "-p", "0", "-c", "2", "--format", text)
    assert done.out == (
        f"t|0|0||a0|{BASE_MS}||2|-1|%\t!\nt|0|1|key|a1|{BASE_MS + 1000}|h=1,n=|2|3|%\t!\n".encode()
    )
    nulls = ok(root, "consume", "t", "-e", "-p", "0", "-c", "2", "--null", "-f", "%k %h;").out
    assert nulls == b"NULL ;key h=1,n=NULL;"
    framed = ok(root, "consume", "t", "-e", "-p", "1", "-f", "%R%s").out
    assert framed == b"\0\0\0\x02b0\0\0\0\x02b1\0\0\0\x02b2"


def test_json_prints_an_object_a_record(root: Path) -> None:
    first, second = ok(root, "consume", "t", "-p", "1", "-e", "-c", "2", "--json").lines
    assert json.loads(first) == {
        "topic": "t",
        "partition": 1,
        "offset": 0,
        "tstype": "create",
        "ts": BASE_MS,
        "headers": [],
        "key": None,
        "payload": "b0",
    }
    assert json.loads(second)["headers"] == ["h", "1", "n", None]
    assert json.loads(second)["key"] == "key"


def test_several_topics_and_patterns(root: Path) -> None:
    with streamlog.connect(root) as log:
        log.create_topic("u")
        with log.producer() as producer:
            producer.send("u", b"u0")
    both = ok(root, "consume", "t", "u", "-e", "-o", "-1", "-f", "%t:%s\\n")
    assert sorted(both.lines) == ["t:a5", "t:b2", "u:u0"]
    matched = ok(root, "consume", "--pattern", "[uv]", "-e")
    assert matched.lines == ["u0"]


# While others write


def test_a_consumer_follows_a_producer_that_is_still_running(root: Path) -> None:
    with (
        running(root, "consume", "t", "--follow", "--from-beginning", "-p", "1") as consumer,
        running(root, "produce", "t", "-p", "1") as producer,
    ):
        assert [consumer.line() for _ in range(3)] == ["b0", "b1", "b2"]
        for i in range(5):
            producer.write(f"live-{i}\n".encode())
            # Each line crosses both processes before the next one is written.
            assert consumer.line() == f"live-{i}"
        assert producer.process.poll() is None
        assert producer.finish().code == 0
        consumer.interrupt()
        done = consumer.finish()
    assert (done.code, done.out, done.err) == (130, b"", "")


def test_a_shell_pipe_of_produce_and_consume_copies_a_topic(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    topic_with(copy, "t", partitions=2)
    reader = " ".join(command("--root", str(root), "consume", "t", "-e", "--json"))
    writer = " ".join(command("--root", str(copy), "produce", "t", "--format", "json", "-q"))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {reader} | {writer}"],
        capture_output=True,
        env=environment(None),
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert values(copy, "t") == values(root, "t")


def test_ctrl_c_ends_a_waiting_consumer_at_once_and_silently(root: Path) -> None:
    with running(root, "consume", "t", "-o", "-1") as consumer:
        assert sorted([consumer.line(), consumer.line()]) == ["a5", "b2"]
        before = time.monotonic()
        consumer.interrupt()
        done = consumer.finish()
        assert time.monotonic() - before < 5
    assert (done.code, done.out, done.err) == (130, b"", "")


@pytest.mark.parametrize("options", [["--follow"], ["-e"]])
def test_a_reader_that_goes_away_ends_the_consumer(root: Path, options: list[str]) -> None:
    line = " ".join(command("consume", "t", "-p", "0", "--from-beginning", *options))
    before = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", f"{line} | head -n 1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        env=environment(root),
        timeout=SECONDS,
        check=False,
    )
    # Nothing is written to the topic meanwhile: the consumer notices by itself.
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a0\n", b"")
    assert time.monotonic() - before < 30


def test_a_reader_that_goes_away_in_the_middle_of_much_output(tmp_path: Path) -> None:
    root = tmp_path / "root"
    topic_with(root, "t")
    ok(root, "produce", "t", stdin=b"0123456789" * 10 + b"\n" + b"y" * 100 + b"\n" * 20_000)
    with running(root, "consume", "t", "--from-beginning", "-f", "%s%s%s%s\\n") as consumer:
        assert consumer.line() == "0123456789" * 40
        assert consumer.process.stdout is not None
        consumer.process.stdout.close()
        assert consumer.process.wait(timeout=SECONDS) == 0
        assert consumer.process.stderr is not None
        assert consumer.process.stderr.read() == b""


def test_a_topic_deleted_while_it_is_read_is_an_error(root: Path) -> None:
    with running(root, "consume", "t", "-o", "-1", "-p", "0") as consumer:
        assert consumer.line() == "a5"
        with streamlog.connect(root) as log:
            log.delete_topic("t")
        done = consumer.finish()
    assert done.code == 1
    assert "deleted" in done.err
    assert "t" in done.err


# Roots and logs that are not as they should be


@pytest.mark.parametrize(
    "arguments",
    [["topic", "list"], ["consume", "t", "-e"], ["produce", "t"], ["topic", "delete", "t", "-y"]],
)
def test_a_missing_root_is_an_error_and_is_not_made(tmp_path: Path, arguments: list[str]) -> None:
    missing = tmp_path / "missing"
    message = refused(missing, *arguments, stdin=b"x\n")
    assert f"there is no log at {missing}" in message
    assert "to make a log there, create a topic in it" in message
    assert not missing.exists()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"")
    assert "there is no log at" in refused(tmp_path, "topic", "list")
    message = refused(tmp_path, "topic", "create", "t")
    assert "is not a root of streamlog" in message
    assert "photo.jpg" in message
    assert os.listdir(tmp_path) == ["photo.jpg"]


def test_a_path_that_cannot_be_a_root_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert "Not a directory" in refused(file, "topic", "create", "t")
    assert "Not a directory" in refused(file / "below", "topic", "create", "t")
    assert "there is no log at" in refused(file, "topic", "list")
    assert "File name too long" in refused(tmp_path / ("x" * 300), "topic", "create", "t")
    assert "unknown scheme 'ftp'" in refused("ftp://host/x", "topic", "list")


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        (b'{"format_version": 99, "cluster_id": "x"}', "has format version 99, and this streamlog"),
        (b'{"format_version": 1', "_streamlog.json is not readable"),
        (b'{"cluster_id": "x"}', "_streamlog.json is not readable"),
        (b"\xff\xfe", "_streamlog.json is not readable"),
    ],
    ids=["newer", "cut", "no version", "binary"],
)
def test_a_root_of_another_format_is_refused(root: Path, marker: bytes, words: str) -> None:
    (root / "_streamlog.json").write_bytes(marker)
    assert words in refused(root, "topic", "list")
    assert words in refused(root, "produce", "t", stdin=b"x\n")


@pytest.fixture
def commits(tmp_path: Path) -> tuple[Path, list[Path], list[Path]]:
    """A log whose topic `t` holds four commits, a record each; its commits and its data files."""
    root = tmp_path / "log"
    topic_with(root, "t", b"0", b"1", b"2", b"3")
    folder = root / "topics" / "t"
    data = sorted(folder.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    return root, files(folder, "*.json"), data


def _consume_fails(root: Path) -> str:
    """The message of consume, which got no further than the fault."""
    done = run(root, "consume", "t", "-e")
    assert done.code == 1
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert all(line in "0123" for line in done.lines)
    assert len(done.lines) < 4
    return done.err


def test_a_truncated_parquet_file_is_named(commits: tuple[Path, list[Path], list[Path]]) -> None:
    root, _, data = commits
    whole = data[1].read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"not parquet at all"):
        data[1].write_bytes(content)
        assert data[1].name in _consume_fails(root)


def test_a_missing_parquet_file_is_named(commits: tuple[Path, list[Path], list[Path]]) -> None:
    root, _, data = commits
    data[1].unlink()
    assert data[1].name in _consume_fails(root)


def test_a_commit_that_is_not_json_is_named(commits: tuple[Path, list[Path], list[Path]]) -> None:
    root, logs, _ = commits
    for content in (b'{"add": {"path": ', b"\x00\xff\x00", b""):
        logs[-1].write_bytes(content)
        message = _consume_fails(root)
        assert f"version {int(logs[-1].stem)} is" in message
        failed = refused(root, "produce", "t", stdin=b"x\n")
        assert f"version {int(logs[-1].stem)} is" in failed
        # Said once: the library's own warning would repeat it.
        assert "\n" not in failed


def test_a_hole_in_the_versions_is_named(commits: tuple[Path, list[Path], list[Path]]) -> None:
    root, logs, _ = commits
    logs[2].unlink()
    assert f"version {int(logs[2].stem)}" in _consume_fails(root)


def test_a_broken_registry_is_named(root: Path) -> None:
    for file in root.rglob("*.parquet"):
        if "topics/t" not in str(file):
            file.write_bytes(file.read_bytes()[:50])
            broken = file.name
    message = refused(root, "topic", "list")
    assert broken in message
    assert "is not a readable Parquet file" in message


def test_a_consumer_that_is_killed_leaves_the_log_as_it_was(root: Path) -> None:
    with running(root, "consume", "t", "--from-beginning") as consumer:
        consumer.line()
        consumer.process.send_signal(signal.SIGTERM)
        assert consumer.process.wait(timeout=SECONDS) == -signal.SIGTERM
    assert len(values(root, "t")) == 9
