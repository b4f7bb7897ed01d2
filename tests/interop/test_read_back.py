"""What streamlog writes, read back with the engines people have: equal to the last byte.

DuckDB's own Delta extension comes from a server that is no package registry, so DuckDB reads here what
deltalake names: the live files with its own Parquet reader, and deltalake's dataset as a relation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

import streamlog
from streamlog.schema import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, RECORD_SCHEMA
from tests.interop.tables import T0, Row, Table, drain, row, rows_of, simple

Engine = Callable[[Path], pa.Table]

COMPRESSIONS = ("none", "snappy", "lz4", "zstd")
PARTITIONS = 4


def with_deltalake(path: Path) -> pa.Table:
    return DeltaTable(str(path)).to_pyarrow_table()


def with_datafusion(path: Path) -> pa.Table:
    query = QueryBuilder().register("t", DeltaTable(str(path)))
    return pa.table(query.execute("select * from t").read_all())


def with_duckdb_files(path: Path) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        files = connection.read_parquet(DeltaTable(str(path)).file_uris())
        return pa.table(files.to_arrow_table())


def with_duckdb_dataset(path: Path) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("t", DeltaTable(str(path)).to_pyarrow_dataset())
        return pa.table(connection.sql("select * from t").to_arrow_table())


def with_polars(path: Path) -> pa.Table:
    return polars.read_delta(str(path)).to_arrow()


def with_polars_scan(path: Path) -> pa.Table:
    return polars.scan_delta(str(path)).collect().to_arrow()


ENGINES = [
    with_deltalake,
    with_datafusion,
    with_duckdb_files,
    with_duckdb_dataset,
    with_polars,
    with_polars_scan,
]
every_engine = pytest.mark.parametrize("engine", ENGINES)


# a topic of everything a record can be

RECORDS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]] = [
    (b"plain", b"value", None, T0),
    (None, b"no key", None, T0 + 1),
    (b"", b"empty key", None, T0 + 2),
    (b"tombstone", None, None, T0 + 3),
    (None, None, None, T0 + 4),
    (b"empty value", b"", None, T0 + 5),
    ("Schlüssel 鍵 🔑".encode(), "Größe 値 🎈".encode(), [("naïve ключ", "wört".encode())], T0 + 6),
    (b"\x00\xff\xfe", bytes(range(256)), [("binary", bytes(range(256)))], T0 + 7),
    (b"headers", b"v", [("a", b"1"), ("a", b"2"), ("", b""), ("null", None)], T0 + 8),
    (b"epoch", b"first moment", None, MIN_TIMESTAMP_MS),
    (b"end", b"last moment", None, MAX_TIMESTAMP_MS),
    (b"large", bytes(range(256)) * 3_900, [("large", b"x" * 40_000)], T0 + 9),
    (b"k" * 40_000, b"large key", None, T0 + 10),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[list[Row]]]]:
    """A root with one topic a compression, and the rows expected of each partition."""
    root = tmp_path_factory.mktemp("written") / "root"
    expected: dict[str, list[list[Row]]] = {}
    with streamlog.connect(root) as log:
        for compression in COMPRESSIONS:
            topic = f"all-{compression}"
            log.create_topic(topic, PARTITIONS, {"compression.type": compression})
            rows: list[list[Row]] = [[] for _ in range(PARTITIONS)]
            with log.producer(linger_ms=0) as producer:
                for times in range(3):
                    acks = [
                        (record, producer.send(topic, record[1], record[0], record[2], None, at))
                        for record in RECORDS
                        for at in [record[3]]
                    ]
                    # One record to each partition by its number, so that none stays empty.
                    acks += [
                        (
                            (None, b"%d" % number, None, T0 + times),
                            producer.send(
                                topic, b"%d" % number, partition=number, timestamp=T0 + times
                            ),
                        )
                        for number in range(PARTITIONS)
                    ]
                    for (key, value, headers, stamp), ack in acks:
                        done = ack.result(timeout=30)
                        assert done.offset is not None
                        rows[done.partition].append(row(done.offset, key, value, stamp, headers))
            expected[topic] = [sorted(part, key=lambda entry: entry["offset"]) for part in rows]
    return root, expected


@every_engine
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_kind_of_record_reads_back_equal(
    written: tuple[Path, dict[str, list[list[Row]]]], engine: Engine, compression: str
) -> None:
    root, expected = written
    topic = f"all-{compression}"
    assert sum(len(part) for part in expected[topic]) == 3 * (len(RECORDS) + PARTITIONS)
    for partition, rows in enumerate(expected[topic]):
        assert [entry["offset"] for entry in rows] == list(range(len(rows)))
        assert rows_of(engine(root / "topics" / topic / str(partition))) == rows


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_files_are_compressed_as_the_topic_says(
    written: tuple[Path, dict[str, list[list[Row]]]], compression: str
) -> None:
    root, _ = written
    files = list((root / "topics" / f"all-{compression}").glob("*/*.parquet"))
    found = {
        codec
        for file in files
        for (codec,) in duckdb.execute(
            "select distinct compression from parquet_metadata(?)", [str(file)]
        ).fetchall()
    }
    assert found == {
        {"none": "UNCOMPRESSED", "lz4": "LZ4_RAW"}.get(compression, compression.upper())
    }


@every_engine
def test_the_columns_have_the_promised_types(
    written: tuple[Path, dict[str, list[list[Row]]]], engine: Engine
) -> None:
    root, _ = written
    found = engine(root / "topics" / "all-zstd" / "0")
    assert found.column_names == RECORD_SCHEMA.names
    # Engines differ in Arrow's "large" and "view" variants; the plain types are lossless for all.
    for field in RECORD_SCHEMA:
        assert found[field.name].cast(field.type).null_count == found[field.name].null_count
    kinds = found.schema
    assert kinds.field("offset").type == pa.int64()
    assert pa.types.is_timestamp(kinds.field("timestamp").type)
    assert kinds.field("timestamp").type.tz in ("UTC", "+00:00", "Etc/UTC")


def test_a_table_stays_at_the_lowest_protocol(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.fill(2, 3)
    table.log().truncate(4)
    protocol = table.delta.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert not protocol.reader_features
    assert not protocol.writer_features


@every_engine
def test_a_partition_that_was_made_and_never_written_is_an_empty_table(
    tmp_path: Path, engine: Engine
) -> None:
    table = Table(tmp_path)
    table.log().refresh()
    if engine is with_duckdb_files:
        assert table.delta.file_uris() == []  # no file, nothing for a Parquet reader
        return
    found = engine(table.path)
    assert (found.num_rows, found.column_names) == (0, RECORD_SCHEMA.names)


@every_engine
def test_after_a_truncate_whole_files_are_gone_and_the_rest_is_equal(
    tmp_path: Path, engine: Engine
) -> None:
    table = Table(tmp_path)
    table.fill(5, 10)
    assert table.log().truncate(23) == 23
    # The file that the log start falls into stays whole; streamlog hides its first three records.
    assert rows_of(engine(table.path)) == [simple(offset) for offset in range(20, 50)]
    assert drain(table.reader()) == [simple(offset) for offset in range(23, 50)]


@every_engine
def test_a_log_truncated_to_its_end_is_empty_and_goes_on(tmp_path: Path, engine: Engine) -> None:
    table = Table(tmp_path)
    table.fill(2, 5)
    table.log().truncate(10)
    assert table.delta.to_pyarrow_table().num_rows == 0
    table.fill(1, 2)
    assert rows_of(engine(table.path)) == [simple(10), simple(11)]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """600 commits, a truncate among them, with the checkpoints that fall due."""
    table = Table(tmp_path_factory.mktemp("long"))
    log = table.log()
    table.fill(300, 2, log)
    table.checkpointer.drain(30)
    log.truncate(101)
    table.fill(300, 2, log)
    table.checkpointer.drain(30)
    return table


@every_engine
def test_across_checkpoints(long: Table, engine: Engine) -> None:
    checkpoints = sorted(p.name for p in (long.path / "_delta_log").glob("*.checkpoint.parquet"))
    assert checkpoints == [f"{version:020d}.checkpoint.parquet" for version in (256, 512)]
    assert rows_of(engine(long.path)) == [simple(offset) for offset in range(100, 1200)]


def test_streamlog_reads_across_checkpoints_itself(long: Table) -> None:
    reader = long.reader()
    assert (reader.start, reader.end, reader.version) == (101, 1200, 601)
    assert drain(reader) == [simple(offset) for offset in range(101, 1200)]
    assert reader.offset_for_time(T0 + 10 * 777 - 5) == (777, T0 + 7770)


def test_a_checkpoint_keeps_the_head_and_the_statistics(long: Table) -> None:
    delta = DeltaTable(str(long.path), version=512)
    assert delta.transaction_version("streamlog.end") == 2 * 511
    assert delta.transaction_version("streamlog.start") == 101
    actions = pa.table(delta.get_add_actions(flatten=True))
    spans = pc.subtract(actions["max.offset"], actions["min.offset"]).to_pylist()
    assert spans == [1] * 461


def test_older_versions_are_still_to_be_read(long: Table) -> None:
    found = rows_of(DeltaTable(str(long.path), version=40).to_pyarrow_table())
    assert found == [simple(offset) for offset in range(80)]


def test_offsets_prune_files_by_statistics(long: Table) -> None:
    dataset = long.delta.to_pyarrow_dataset()
    wanted = (pc.field("offset") >= 500) & (pc.field("offset") < 505)
    assert len(list(dataset.get_fragments())) == 550
    files = [Path(fragment.path).name for fragment in dataset.get_fragments(wanted)]
    assert sorted(name[:20] for name in files) == [f"{number:020d}" for number in (500, 502, 504)]
    assert rows_of(dataset.to_table(filter=wanted)) == [simple(n) for n in range(500, 505)]


def test_times_prune_files_by_statistics(long: Table) -> None:
    dataset = long.delta.to_pyarrow_dataset()
    moment = pa.scalar((T0 + 10 * 600) * 1000, pa.timestamp("us", tz="UTC"))
    wanted = pc.field("timestamp") == moment
    assert [Path(f.path).name[:20] for f in dataset.get_fragments(wanted)] == [f"{600:020d}"]


def test_polars_pushes_a_predicate_down_to_the_right_rows(long: Table) -> None:
    found = polars.scan_delta(str(long.path)).filter(polars.col("offset").is_between(640, 645))
    assert rows_of(found.collect().to_arrow()) == [simple(offset) for offset in range(640, 646)]


def test_history_tells_what_streamlog_did(long: Table) -> None:
    last = long.delta.history(1)[0]
    assert (last["operation"], last["version"]) == ("STREAMLOG APPEND", 601)
    assert last["engineInfo"].startswith("streamlog/")


# the registry

REGISTRY = [
    "topic",
    "id",
    "incarnation",
    "partitions",
    "config",
    "created_at",
    "deleted_at",
    "purged",
]


@every_engine
def test_the_registry_is_a_table_of_the_topics(tmp_path: Path, engine: Engine) -> None:
    with streamlog.connect(tmp_path / "root") as log:
        log.create_topic("orders", 4, {"retention.ms": 60_000})
        log.create_topic("clicks", 2)
        log.create_topic("gone")
        log.delete_topic("gone")
        log.alter_topic("orders", {"compression.type": "lz4"})
        log.add_partitions("clicks", 3)
        topics = {info.name: info for info in log.topics()}
    found = engine(tmp_path / "root" / "__topics")
    assert found.column_names == REGISTRY
    rows = {entry["topic"]: entry for entry in found.to_pylist()}
    assert sorted(rows) == ["clicks", "gone", "orders"]
    assert sorted(name for name in rows if rows[name]["deleted_at"] is None) == sorted(topics)
    for name, info in topics.items():
        assert rows[name]["id"] == info.id
        assert rows[name]["partitions"] == info.partitions
        assert json.loads(rows[name]["config"]) == info.config.to_dict()
        assert rows[name]["created_at"] == info.created_at
    assert rows["orders"]["partitions"] == 4
    assert rows["clicks"]["partitions"] == 3


def test_the_registry_travels_in_time(tmp_path: Path) -> None:
    with streamlog.connect(tmp_path / "root") as log:
        log.create_topic("first")
        log.create_topic("second")
    path = str(tmp_path / "root" / "__topics")
    names = [
        sorted(DeltaTable(path, version=version).to_pyarrow_table()["topic"].to_pylist())
        for version in (0, 1)
    ]
    assert names == [["first"], ["first", "second"]]
