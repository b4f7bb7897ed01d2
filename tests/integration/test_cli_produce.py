"""`streamlog produce`: what it reads, what it writes, and what it says of input it cannot send."""

from __future__ import annotations

import json
import os
import re
import resource
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from integration.program import (
    Wrong,
    all_refused,
    files,
    obey_permissions,
    ok,
    on_terminal,
    permissions,
    refused,
    run,
    running,
    topic_with,
    values,
)

import streamlog
from streamlog.model import Record

pytestmark = pytest.mark.processes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log with the empty topic `t` of two partitions."""
    topic_with(tmp_path / "root", "t", partitions=2)
    return tmp_path / "root"


def _records(root: Path) -> list[Record]:
    with (
        streamlog.connect(root, create=False) as log,
        log.consumer("t", auto_offset_reset="earliest") as consumer,
    ):
        expected = sum(part.records for part in log.describe("t").partitions)
        records: list[Record] = []
        while len(records) < expected:
            records += consumer.poll(timeout_ms=1000)
    return sorted(records, key=lambda record: (record.partition, record.offset))


# What is sent


def test_each_line_of_stdin_is_a_record(root: Path) -> None:
    done = ok(root, "produce", "t", "-p", "0", stdin=b"one\n\nthree\r\nlast without newline")
    assert done.out == b""
    assert done.err.startswith("4 records, 29 bytes in ")
    assert values(root, "t") == [b"one", b"", b"three\r", b"last without newline"]


def test_a_file_is_read_and_the_summary_may_be_json_or_absent(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"a\nb\n")
    summary = json.loads(ok(root, "produce", "t", str(file), "-p", "0", "--json").out)
    assert (summary["records"], summary["bytes"]) == (2, 2)
    quiet = ok(root, "produce", "t", str(file), "-p", "0", "--quiet")
    assert (quiet.out, quiet.err) == (b"", "")
    dash = ok(root, "produce", "t", "-", "-p", "0", stdin=b"c")
    assert dash.err.startswith("1 record, 1 bytes in ")
    assert values(root, "t") == [b"a", b"b", b"a", b"b", b"c"]


def test_keys_are_parted_from_values_and_choose_the_partition(root: Path) -> None:
    lines = b"".join(b"user-%d\tv%d\tw\n" % (i % 5, i) for i in range(20))
    ok(root, "produce", "t", "--key-separator", "\\t", stdin=lines)
    records = _records(root)
    partition_of: dict[bytes | None, set[int]] = {}
    for record in records:
        partition_of.setdefault(record.key, set()).add(record.partition)
    assert sorted(record.value or b"" for record in records) == sorted(
        b"v%d\tw" % i for i in range(20)
    )
    assert len(partition_of) == 5
    assert all(len(partitions) == 1 for partitions in partition_of.values())
    assert {record.partition for record in records} == {0, 1}


def test_headers_key_partition_tombstones_and_compression_of_every_record(root: Path) -> None:
    options = ["-H", "a=1=2", "-H", "flag", "-k", "same", "-p", "1", "--null", "-z", "zstd"]
    ok(root, "produce", "t", *options, stdin=b"x\n\n")
    assert [(r.partition, r.key, r.value, r.headers) for r in _records(root)] == [
        (1, b"same", b"x", (("a", b"1=2"), ("flag", None))),
        (1, b"same", None, (("a", b"1=2"), ("flag", None))),
    ]
    (file,) = files(root / "topics", "*.parquet")
    column = pq.ParquetFile(file).metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"


def test_json_lines_carry_whole_records_and_round_trip_through_consume(
    root: Path, tmp_path: Path
) -> None:
    lines = [
        {
            "key": "k",
            "value": "v",
            "headers": {"h": "1"},
            "partition": 1,
            "timestamp": 1700000000000,
        },
        {"key": None, "value": None, "headers": [["a", "1"], ["a", None]], "partition": 1},
        {"value": {"base64": "/wA="}, "partition": 1, "timestamp": "2023-11-14T22:13:20Z"},
    ]
    text = "\n\n".join(json.dumps(line) for line in lines).encode()
    ok(root, "produce", "t", "--format", "json", stdin=text)
    first, second, third = _records(root)
    assert first == Record("t", 1, 0, 1700000000000, b"k", b"v", (("h", b"1"),))
    assert (second.key, second.value, second.headers) == (None, None, (("a", b"1"), ("a", None)))
    assert (third.value, third.timestamp) == (b"\xff\x00", 1700000000000)

    copy = tmp_path / "copy"
    topic_with(copy, "t", partitions=2)
    printed = ok(root, "consume", "t", "-e", "--json").out
    ok(copy, "produce", "t", "-f", "json", stdin=printed)
    assert _records(copy) == [first, second, third]


def test_raw_input_is_one_record_whatever_it_holds(root: Path) -> None:
    data = os.urandom(100_000) + b"\n\x00\n"
    ok(root, "produce", "t", "--format", "raw", "-p", "0", stdin=data)
    assert values(root, "t") == [data]


def test_binary_garbage_in_lines_survives_byte_by_byte(root: Path) -> None:
    data = bytes(range(256)) * 40 + os.urandom(20_000)
    ok(root, "produce", "t", "-p", "0", stdin=data)
    expected = data.split(b"\n")
    assert values(root, "t") == expected[: len(expected) - (not expected[-1])]
    back = ok(root, "consume", "t", "-e").out
    assert back.removesuffix(b"\n") == data.removesuffix(b"\n")


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_delivers(root: Path, acks: str) -> None:
    done = ok(root, "produce", "t", "--acks", acks, "-p", "0", stdin=b"a\nb\n")
    assert ("unconfirmed (acks=0)" in done.err) == (acks == "0")
    assert values(root, "t") == [b"a", b"b"]


def test_a_rate_is_kept(root: Path) -> None:
    summary = ok(root, "produce", "t", "--rate", "20/s", "--json", stdin=b"x\n" * 11)
    # Ten waits of 50 ms; the first record need not wait.
    assert json.loads(summary.out)["seconds"] >= 0.45


def test_a_line_is_visible_while_the_pipe_stays_open(root: Path) -> None:
    with running(root, "produce", "t", "-p", "0") as producer:
        producer.write(b"early\nunfinished")
        deadline = time.monotonic() + 30
        while not _records(root) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert values(root, "t") == [b"early"]
        done = producer.finish()
    assert done.code == 0
    assert values(root, "t") == [b"early", b"unfinished"]


def test_ctrl_c_ends_a_producer_after_what_it_has_read_is_written(root: Path) -> None:
    with running(root, "produce", "t", "-p", "0") as producer:
        producer.write(b"a\nb\n")
        deadline = time.monotonic() + 30
        while len(_records(root)) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        producer.interrupt()
        done = producer.finish()
    assert done.code == 130
    assert done.err.startswith("2 records, 2 bytes in ")


def test_a_bar_is_drawn_for_a_file_on_a_terminal_and_wiped_afterwards(
    root: Path, tmp_path: Path
) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"0123456789\n" * 40)
    code, shown = on_terminal(root, "produce", "t", str(file), "--rate", "80")
    assert code == 0
    assert "━" in shown
    assert "records" in shown
    # It moves while the rate holds the records back.
    assert "/440 bytes" in shown
    assert len(set(re.findall(r"(\d+) records", shown))) >= 3
    # The last thing drawn is the summary, the bar before it having been erased.
    assert "\x1b[2K40 records, 400 bytes in " in shown.rstrip().splitlines()[-1]
    code, shown = on_terminal(root, "produce", "t", str(file), "--quiet")
    assert (code, shown) == (0, "")


def test_a_person_is_told_how_to_end_and_ends_with_ctrl_d(root: Path) -> None:
    code, shown = on_terminal(
        root, "produce", "t", "-p", "0", answers=[("Ctrl-D ends", b"typed\n"), ("typed", b"\x04")]
    )
    assert code == 0
    assert "1 record, 5 bytes" in shown
    assert values(root, "t") == [b"typed"]


# What cannot be sent


def test_what_is_wrong_with_a_line_is_said_with_its_number(root: Path) -> None:
    all_refused(
        root,
        [
            Wrong(
                "produce t -K :",
                1,
                "line 3: no key separator ':' in 'no key here'",
                b"k:1\nk:2\nno key here\nk:4\n",
            ),
            Wrong(
                "produce t -K '\\t'",
                1,
                "line 1: no key separator '\\t' in '0x6b3afffe'",
                b"k:\xff\xfe\n",
            ),
            Wrong("produce t -p 7", 1, "line 1: t: there is no partition 7; it has 0 to 1", b"x\n"),
            Wrong("produce t -p -1", 1, "line 1: t: there is no partition -1", b"x\n"),
            Wrong(
                "produce t -f json",
                1,
                "line 2: invalid JSON: Expecting value",
                b'{"value": "a"}\n{"value": \n',
            ),
            Wrong("produce t -f json", 1, "line 1: not UTF-8 at byte 1", b"\xff\xfe\n"),
            Wrong("produce t -f json", 1, "line 1: a JSON object is needed", b"[1]\n"),
            Wrong(
                "produce t -f json",
                1,
                "unknown field 'valeu': did you mean 'value'?",
                b'{"valeu": "a"}\n',
            ),
            Wrong(
                "produce t -f json", 1, "line 1: value must be a string, null or", b'{"value": 5}\n'
            ),
            Wrong(
                "produce t -f json",
                1,
                "there is no partition 9",
                b'{"value": "a", "partition": 9}\n',
            ),
            Wrong(
                "produce t -f json",
                1,
                "timestamp -1 is out of range",
                b'{"value": "a", "timestamp": -1}\n',
            ),
            Wrong(
                "produce t -f json",
                1,
                "timestamp 253402300800000 is out of range: milliseconds since 1970 run from 0 to",
                b'{"value": "a", "timestamp": 253402300800000}\n',
            ),
            Wrong("produce t -f json", 1, "line 1: invalid JSON", b"[" * 100_000 + b"\n"),
            Wrong(
                "produce t -f raw",
                1,
                "longer than 1048588 bytes, the topic's max.message.bytes",
                b"x" * 1_100_000,
            ),
        ],
    )


def test_a_wrong_produce_command_says_why(root: Path) -> None:
    all_refused(
        root,
        [
            Wrong("produce nope", 1, "there is no topic 'nope'", b"x\n"),
            Wrong(
                "produce t /nowhere/lines.txt",
                1,
                "cannot read /nowhere/lines.txt: No such file",
                b"x\n",
            ),
            Wrong("produce t /", 1, "cannot read /: it is a directory", b"x\n"),
            Wrong("produce t --acks 2", 2, "--acks", b"x\n"),
            Wrong("produce t -z gzip", 2, "gzip", b"x\n"),
            Wrong("produce t --rate 0", 2, "--rate: '0' is no rate", b"x\n"),
            Wrong("produce t -H =v", 2, "--header: header '=v' has no name", b"x\n"),
            Wrong("produce t -K ''", 2, "--key-separator must not be empty", b"x\n"),
            Wrong(
                "produce t -K : -k x",
                2,
                "--key and --key-separator exclude each other",
                b"x\n",
            ),
            Wrong(
                "produce t -K : -f raw",
                2,
                "--key-separator goes with --format lines, not raw",
                b"x\n",
            ),
        ],
    )


def test_records_before_a_bad_line_stay_and_are_counted(root: Path) -> None:
    message = refused(root, "produce", "t", "-p", "0", "-K", ":", stdin=b"a:1\nb:2\nc\nd:4\n")
    assert message.endswith("(2 records were acknowledged)")
    assert values(root, "t") == [b"1", b"2"]


def test_a_line_of_100_mb_is_refused_before_it_is_read_whole(root: Path) -> None:
    line = b"x" * 100_000_000

    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (600_000_000, 600_000_000))

    done = run(
        root, "produce", "t", "-p", "0", stdin=b"ok\n" + line + b"\nno", before=little_memory
    )
    assert done.code == 1
    assert "line 2: longer than 1048588 bytes" in done.err
    assert "max.message.bytes=N (1 record was acknowledged)" in done.err
    assert values(root, "t") == [b"ok"]


def test_a_line_of_100_mb_is_sent_when_the_topic_allows_it(root: Path) -> None:
    ok(root, "topic", "alter", "t", "-c", "max.message.bytes=200000000")
    line = b"0123456789abcdef" * 6_250_000
    ok(root, "produce", "t", "-p", "0", stdin=line + b"\nafter\n")
    back = ok(root, "consume", "t", "-p", "0", "-e").out
    assert back == line + b"\nafter\n"


# What cannot be written


def test_a_full_disk_is_an_error_that_says_so(root: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))

    done = run(
        root,
        "produce",
        "t",
        "-p",
        "0",
        stdin=os.urandom(200_000).hex().encode(),
        before=small_files,
    )
    assert done.code == 1
    assert "line 1: " in done.err
    assert "File too large" in done.err
    assert "free some space" in done.err
    assert "(0 records were acknowledged)" in done.err
    # Nothing half-written is in the way of the next producer.
    ok(root, "produce", "t", "-p", "0", stdin=b"small\n")
    assert values(root, "t") == [b"small"]


def test_a_read_only_store_can_be_read_and_refuses_writes(root: Path) -> None:
    ok(root, "produce", "t", "-p", "0", stdin=b"kept\n")
    with permissions(root, 0o555, 0o444):
        read = run(root, "consume", "t", "-e", before=obey_permissions)
        assert (read.code, read.out) == (0, b"kept\n")
        listed = run(root, "topic", "list", "-q", before=obey_permissions)
        assert (listed.code, listed.lines) == (0, ["t"])
        for arguments in (
            ["produce", "t", "-p", "0"],
            ["topic", "create", "u"],
            ["topic", "delete", "t", "-y"],
        ):
            done = run(root, *arguments, stdin=b"x\n", before=obey_permissions)
            assert done.code == 1, arguments
            assert "Permission denied" in done.err
            assert "give this user the right to, or use another root" in done.err
    assert values(root, "t") == [b"kept"]


def test_a_root_that_may_not_be_read_is_an_error_that_says_so(root: Path) -> None:
    with permissions(root, 0o000, 0o000):
        for arguments in (["topic", "list"], ["consume", "t", "-e"], ["produce", "t"]):
            done = run(root, *arguments, stdin=b"x\n", before=obey_permissions)
            assert (done.code, done.out) == (1, b"")
            assert "Permission denied" in done.err
            assert str(root) in done.err
