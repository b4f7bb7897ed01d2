"""`connect` and `Log`: which roots are taken, and what a user gets from one."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import streamlog
from streamlog.client import ROOT_VARIABLE, connect
from streamlog.errors import (
    ClosedError,
    InvalidRequestError,
    PermissionDeniedError,
    RootError,
    TopicNotFoundError,
)
from streamlog.storage.local import LocalObjects


def test_a_root_is_made_where_there_is_none(tmp_path: Path) -> None:
    log = connect(tmp_path / "new" / "root")
    marker = json.loads((tmp_path / "new" / "root" / "_streamlog.json").read_text())
    assert marker == {"format_version": 1, "cluster_id": log.cluster_id}
    assert connect(str(tmp_path / "new" / "root")).cluster_id == log.cluster_id


def test_the_environment_names_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    with pytest.raises(RootError, match=f"no root given.*set {ROOT_VARIABLE}"):
        connect()
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "r"))
    assert connect().root == str(tmp_path / "r")


def test_many_make_one_root(tmp_path: Path) -> None:
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.append(connect(tmp_path / "r").cluster_id))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(ids) == 8
    assert len(set(ids)) == 1


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RootError, match=r"not a root of streamlog.*notes\.txt"):
        connect(tmp_path)
    assert not (tmp_path / "_streamlog.json").exists()


def test_a_folder_inside_a_root_is_refused(tmp_path: Path) -> None:
    log = connect(tmp_path / "r")
    log.create_topic("orders")
    with pytest.raises(RootError, match="the root itself, not a folder in it"):
        connect(tmp_path / "r" / "__topics")


def test_a_missing_root_is_not_made_unasked(tmp_path: Path) -> None:
    with pytest.raises(RootError, match="there is no log at"):
        connect(tmp_path / "r", create=False)
    assert not (tmp_path / "r").exists()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_streamlog.json").write_text('{"format_version": 2, "cluster_id": "x"}')
    with pytest.raises(RootError, match=r"format version 2.*reads up to 1: upgrade"):
        connect(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format_version": "x", "cluster_id": ""}', "{}"])
def test_a_damaged_marker_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "_streamlog.json").write_text(text)
    with pytest.raises(RootError, match="is not readable"):
        connect(tmp_path)


def test_a_format_that_never_was(tmp_path: Path) -> None:
    (tmp_path / "_streamlog.json").write_text('{"format_version": 0, "cluster_id": "x"}')
    with pytest.raises(InvalidRequestError, match="never was"):
        connect(tmp_path)


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidRequestError, match="the root must be a directory"):
        connect(tmp_path / "file" / "below")


def test_no_permission_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the errno alone: tests may run as a user whom no permission stops."""
    connect(tmp_path / "r").create_topic("orders")

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionDeniedError, match=r"Permission denied.*give this user the right"):
        connect(tmp_path / "r").create_topic("more")


def test_a_read_only_store_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = connect(tmp_path / "r")
    log.create_topic("orders")
    with log.producer() as producer:
        producer.send("orders", b"x")

    def refuse(self: LocalObjects, full: str, *_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system", full)

    monkeypatch.setattr(LocalObjects, "_write", refuse)
    reading = connect(tmp_path / "r")
    with reading.consumer("orders", auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.poll(1000)] == [b"x"]
    assert reading.describe("orders").records == 1
    with pytest.raises(PermissionDeniedError, match="Read-only file system"):
        reading.create_topic("more")
    with reading.producer() as producer:
        ack = producer.send("orders", b"y")
        with pytest.raises(PermissionDeniedError, match="Read-only file system"):
            ack.result(10)


def test_topics_and_descriptions_for_people_and_frames() -> None:
    log = connect("memory://frames")
    log.create_topic("orders", 2, {"retention.ms": 5})
    log.create_topic("clicks")
    topics = log.topics()
    assert [info.name for info in topics] == ["clicks", "orders"]
    rows = topics.to_arrow().to_pylist()
    assert [(row["topic"], row["partitions"]) for row in rows] == [("clicks", 1), ("orders", 2)]
    assert rows[1]["config"] == [("retention.ms", "5")]
    description = log.describe("orders").to_arrow()
    assert description.column_names == [
        "topic",
        "partition",
        "start",
        "end",
        "records",
        "bytes",
        "files",
        "version",
    ]
    assert description.num_rows == 2
    for page in (topics._repr_html_(), log._repr_html_(), log.describe("orders")._repr_html_()):
        assert "<table>" in page
        assert "orders" in page


def test_records_and_offsets_have_a_page() -> None:
    log = connect("memory://pages")
    log.create_topic("orders")
    with log.producer() as producer:
        producer.send("orders", b"<b>tea</b>")
    with log.consumer("orders", auto_offset_reset="earliest") as consumer:
        records = consumer.poll(1000)
        page = records._repr_html_()
        assert "&lt;b&gt;tea" in page
        assert "<td" in consumer.lag()._repr_html_()
        assert "<td" in consumer.end_offsets(consumer.assignment())._repr_html_()


def test_a_closed_log_says_so() -> None:
    with connect("memory://closing") as log:
        log.create_topic("orders")
    with pytest.raises(ClosedError, match="connect again"):
        log.topics()


def test_a_wrong_topic_leaves_no_open_consumer() -> None:
    log = connect("memory://wrong")
    with pytest.raises(TopicNotFoundError):
        log.consumer("nope")


def test_unknown_settings_are_answered_with_the_nearest() -> None:
    log = connect("memory://settings")
    with pytest.raises(InvalidRequestError, match="did you mean 'linger_ms'"):
        log.producer(linger=5)
    with pytest.raises(InvalidRequestError, match="did you mean 'auto_offset_reset'"):
        log.consumer(auto_offset="earliest")


def test_the_package_shows_its_names() -> None:
    assert set(streamlog.__all__) <= set(dir(streamlog))
    assert streamlog.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="nonsense"):
        _ = streamlog.nonsense  # type: ignore[attr-defined]


def test_the_issue_s_example(tmp_path: Path) -> None:
    log = streamlog.connect(tmp_path / "data")
    log.create_topic("orders", partitions=4, config={"retention.ms": 604_800_000})
    table = pa.table({"key": ["a", "b", "c"], "value": ["1", "2", "3"]})
    with log.producer(acks="all", linger_ms=5) as producer:
        ack = producer.send("orders", key=b"user-1", value=b"{}", headers=[("h", b"1")])
        metadata = ack.result()
        assert (metadata.topic, metadata.offset) == ("orders", 0)
        producer.send_batch("orders", table)
    with log.consumer("orders", auto_offset_reset="earliest", consumer_timeout_ms=200) as consumer:
        records = list(consumer)
        consumer.seek_to_beginning()
        batch = consumer.poll_arrow(timeout_ms=500)
        while batch.num_rows < 4:
            batch = pa.concat_tables([batch, consumer.poll_arrow(timeout_ms=500)])
    assert sorted(r.value or b"" for r in records) == [b"1", b"2", b"3", b"{}"]
    assert next(r for r in records if r.key == b"user-1").headers == (("h", b"1"),)
    assert batch.num_rows == 4
