"""Topics that Spark's Python workers keep open: never older than a fresh look would be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamlog
from streamlog.errors import CorruptLogError, RootError, TopicDeletedError
from streamlog.spark import kept
from streamlog.spark.kept import open_topics, used_topics
from streamlog.spark.workers.sitecustomize import installed_first


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    kept._roots.clear()
    yield
    kept._roots.clear()


def write(root: Path, *values: str) -> None:
    with streamlog.connect(root) as log:
        log.create_topic("t", partitions=2, if_not_exists=True)
        with log.producer() as producer:
            for value in values:
                producer.send("t", value, partition=0)


def ends(root: Path) -> int:
    with used_topics(str(root), {}) as topics:
        return topics.ask([(topics.get("t", refresh=True), 0)], lambda reader: reader.end)[0]


def test_a_partition_that_stays_open_shows_what_came_since(tmp_path: Path) -> None:
    write(tmp_path, "a")
    assert ends(tmp_path) == 1
    with used_topics(str(tmp_path), {}) as topics:
        info = topics.get("t")
        reader, log = topics.partition_reader(info, 0), topics.partition_log(info, 0)
    write(tmp_path, "b", "c")
    assert ends(tmp_path) == 3
    with used_topics(str(tmp_path), {}) as topics:
        assert topics.partition_reader(info, 0) is reader
        assert topics.partition_log(info, 0) is log
        assert topics.partition_reader(info, 1) is not reader


def test_k1_a_root_made_again_at_the_same_place_is_another(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "a", "b")
    assert ends(root) == 2
    shutil.rmtree(root)
    with pytest.raises(RootError):
        open_topics(str(root), {})
    write(root, "a")
    assert ends(root) == 1
    shutil.rmtree(root)
    write(root, "a", "b", "c")
    assert ends(root) == 3


def test_k1_other_storage_options_are_another_place(tmp_path: Path) -> None:
    write(tmp_path, "a")
    one = open_topics(str(tmp_path), {})
    assert open_topics(str(tmp_path), {}) is one
    kept._roots.clear()
    assert open_topics(str(tmp_path), {}) is not one


def test_a_topic_deleted_and_made_again_is_another(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    assert ends(tmp_path) == 2
    with used_topics(str(tmp_path), {}) as topics:
        former = topics.get("t")
    with streamlog.connect(tmp_path) as log:
        log.delete_topic("t")
    write(tmp_path, "a")
    assert ends(tmp_path) == 1
    with pytest.raises(TopicDeletedError), used_topics(str(tmp_path), {}) as topics:
        topics.partition_reader(former, 0).refresh()


def test_k2_a_repaired_log_is_seen_by_the_next_attempt(tmp_path: Path) -> None:
    write(tmp_path, "a")
    assert ends(tmp_path) == 1
    write(tmp_path, "b")
    newest = max((tmp_path / "topics/t/0/_delta_log").glob("*.json"))
    sound = newest.read_bytes()
    os.chmod(newest, 0o644)
    newest.write_bytes(b"")
    with pytest.raises(CorruptLogError):
        ends(tmp_path)
    newest.write_bytes(sound)
    assert ends(tmp_path) == 2


def test_k3_no_records_stay_in_memory(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    with used_topics(str(tmp_path), {}) as topics:
        reader = topics.partition_reader(topics.get("t"), 0)
        reader.refresh()
        assert reader.read(0, max_records=1, max_bytes=1) is not None
        assert reader._rows is not None
    assert reader._rows is None
    assert not reader._files
    again = reader.read(1, max_records=5, max_bytes=100)
    assert again is not None
    assert again.column("value").to_pylist() == [b"b"]


def test_few_places_are_kept(tmp_path: Path) -> None:
    roots = [tmp_path / str(number) for number in range(kept._ROOTS + 1)]
    for root in roots:
        write(root, "a")
    opened = [open_topics(str(root), {}) for root in roots]
    assert len(kept._roots) == kept._ROOTS
    assert open_topics(str(roots[-1]), {}) is opened[-1]
    assert open_topics(str(roots[0]), {}) is not opened[0]


def test_few_partitions_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_PARTITIONS", 1)
    write(tmp_path, "a")
    topics = open_topics(str(tmp_path), {})
    info = topics.get("t")
    one = topics.partition_reader(info, 0)
    assert topics.partition_reader(info, 0) is one
    topics.partition_reader(info, 1)
    assert topics.partition_reader(info, 0) is not one


def test_an_installed_pyspark_comes_before_its_own_archives() -> None:
    home = "/env/site-packages/pyspark"
    archives = [
        f"{home}/python/lib/pyspark.zip",
        f"{home}/python/lib/py4j-src.zip",
        f"{home}/jars/spark-core.jar",
    ]
    rest = ["/job", "/env/workers", "/env/site-packages", "/other/lib.zip"]
    assert installed_first([*archives, *rest]) == [*rest, *archives]


def test_archives_of_a_spark_that_is_not_installed_stay_in_front() -> None:
    path = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/jars/core.jar", "/env/site-packages"]
    assert installed_first(path) == path
    elsewhere = ["/opt/pyspark/python/lib/pyspark.zip", "/env/site-packages"]
    assert installed_first(elsewhere) == elsewhere
