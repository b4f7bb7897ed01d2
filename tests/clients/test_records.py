"""Records by every client: written, read, with every codec, of every shape, large, by key and by time.

What one client writes through the broker is read by all others and by the storage's own readers, and what
the embedded client writes is read by all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import duckdb
import kafka
import kafka.codec
import pytest
from deltalake import DeltaTable

import streamlog
from streamlog.broker.codecs import NAMES
from tests.broker.harness import RunningBroker, running_broker
from tests.clients import programs, readers, writers
from tests.clients.conftest import Noted
from tests.clients.readers import READERS, Seen
from tests.clients.writers import WRITERS, Message

T0 = 1_700_000_000_000
# kafka-python brings no compression but gzip; it takes the other libraries where they are installed.
CODECS = {
    name: [
        codec
        for codec in NAMES
        if name != "kafka-python"
        or codec in ("none", "gzip")
        or getattr(kafka.codec, f"has_{codec}")()
    ]
    for name in WRITERS
}

SHAPES = (
    Message("tea", "ann", (("a", "1"), ("b", "2"))),
    Message("plain"),
    Message(None, "gone"),
    Message("", "empty"),
    Message("same", "ann", (("a", "1"), ("a", "2"))),
)


def asked(messages: Sequence[Message]) -> list[tuple[Any, ...]]:
    return sorted((m.key or "", m.value or "", m.value is None, m.headers) for m in messages)


def came(messages: Sequence[Seen]) -> list[tuple[Any, ...]]:
    return sorted((m.key or "", m.value or "", m.value is None, m.headers) for m in messages)


@pytest.mark.parametrize(
    ("client", "codec"), [(client, codec) for client in WRITERS for codec in CODECS[client]]
)
def test_every_codec_of_every_client_is_understood(
    broker: RunningBroker, log: streamlog.Log, noted: Noted, client: str, codec: str
) -> None:
    topic = f"codec-{client}-{codec}"
    log.create_topic(topic, partitions=1)
    # Long and alike: clients leave a batch plain that compression does not make smaller.
    messages = [Message(f"{codec} " * 50 + str(n), f"k{n}") for n in range(40)]
    noted.codecs.clear()

    WRITERS[client](broker.address, topic, messages, codec)

    assert NAMES.index(codec) in noted.codecs
    assert came(readers.embedded(log, topic, len(messages))) == asked(messages)


class TestAllReadAll:
    """One topic that all clients wrote, with all codecs: batches as they came, and from the storage."""

    @pytest.fixture(scope="class")
    @classmethod
    def written(cls, broker: RunningBroker, log: streamlog.Log) -> dict[str, list[Message]]:
        topics: dict[str, list[Message]] = {"everything": [], "simple": []}
        for topic in topics:
            log.create_topic(topic, partitions=2)
        for client, writer in WRITERS.items():
            for codec in CODECS[client]:
                messages = [
                    Message(f"{client} {codec} " * 20 + str(n), f"{client}-{codec}-{n}")
                    for n in range(10)
                ]
                # Each client's codecs alone are tested above: one start of Java less each.
                if client == "java" and codec not in ("snappy", "zstd"):
                    continue
                topic = "simple" if codec in CODECS["kafka-python"] else "everything"
                writer(broker.address, topic, messages, codec)
                topics[topic] += messages
        return topics

    @pytest.mark.parametrize("client", READERS)
    @pytest.mark.parametrize("topic", ["simple", "everything"])
    def test_as_they_came(
        self,
        broker: RunningBroker,
        written: dict[str, list[Message]],
        client: str,
        topic: str,
    ) -> None:
        if client == "kafka-python" and topic == "everything":
            # It has no library for these codecs, with Kafka neither.
            topic = "simple"
        found = READERS[client](broker.address, topic, len(written[topic]))
        assert came(found) == asked(written[topic])

    def test_from_the_storage(
        self, broker: RunningBroker, log: streamlog.Log, written: dict[str, list[Message]]
    ) -> None:
        """Another broker, which never saw the batches."""
        messages = [*written["everything"], *written["simple"]]
        with running_broker(broker.broker.log.root) as other:
            for name, reader in READERS.items():
                found = [
                    seen
                    for topic in ("everything", "simple")
                    for seen in reader(other.address, topic, len(written[topic]))
                ]
                assert came(found) == asked(messages), name


@pytest.mark.parametrize("client", WRITERS)
def test_every_shape_by_every_writer(
    broker: RunningBroker, log: streamlog.Log, client: str
) -> None:
    topic = f"shapes-by-{client}"
    log.create_topic(topic, partitions=1)
    WRITERS[client](broker.address, topic, SHAPES)

    found = readers.embedded(log, topic, len(SHAPES))

    assert came(found) == asked(SHAPES)
    # A key that is null is none, not an empty one; likewise values.
    by_value = {seen.value: seen for seen in found}
    assert by_value["plain"].key is None
    assert by_value[""].key == "empty"
    table = DeltaTable(str(Path(log.root) / "topics" / topic / "0")).to_pyarrow_table()
    assert sorted(v for v in table["value"].to_pylist() if v is not None) == [
        b"",
        b"plain",
        b"same",
        b"tea",
    ]


class TestEmbeddedWrites:
    MESSAGES = tuple(
        message._replace(timestamp=T0 + 1000 * n, partition=n % 2)
        for n, message in enumerate(SHAPES * 3)
    )

    @pytest.fixture(scope="class")
    @classmethod
    def topic(cls, log: streamlog.Log) -> str:
        log.create_topic("embedded", partitions=2)
        writers.embedded(log, "embedded", cls.MESSAGES)
        return "embedded"

    @pytest.mark.parametrize("client", READERS)
    def test_every_shape_by_every_reader(
        self, broker: RunningBroker, topic: str, client: str
    ) -> None:
        found = READERS[client](broker.address, topic, len(self.MESSAGES))

        assert came(found) == asked(self.MESSAGES)
        wanted = {(m.partition, m.timestamp): (m.key, m.value) for m in self.MESSAGES}
        assert {(s.partition, s.timestamp): (s.key, s.value) for s in found} == wanted
        for partition in (0, 1):
            offsets = [seen.offset for seen in found if seen.partition == partition]
            assert offsets == list(range(len(offsets)))

    def test_times_are_found(self, broker: RunningBroker, topic: str) -> None:
        """The first record at or after a time, by each client that can ask."""
        middle = (
            T0 + 7000
        )  # number 7, the fourth of partition 1; number 8 is the fifth of partition 0
        where = [confluent_kafka.TopicPartition(topic, p, middle) for p in (0, 1)]
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.address, "group.id": "times"}
        )
        try:
            offsets = consumer.offsets_for_times(where, timeout=30)
            assert [place.offset for place in offsets] == [4, 3]
        finally:
            consumer.close()

        by_python = kafka.KafkaConsumer(bootstrap_servers=broker.address)
        try:
            places = {kafka.TopicPartition(topic, p): middle for p in (0, 1)}
            answers = by_python.offsets_for_times(places)
            assert [answers[place].offset for place in places] == [4, 3]
        finally:
            by_python.close()

        out = programs.kcat(
            broker.address, "-C", "-t", topic, "-o", f"s@{middle}", "-e", "-q", "-f", "%p %o\n"
        )
        firsts = {
            p: min(int(o) for p2, o in map(str.split, out.splitlines()) if p2 == p) for p in "01"
        }
        assert firsts == {"0": 4, "1": 3}

        out = programs.tool(
            programs.OFFSETS, broker.address, "--topic", topic, "--time", str(middle)
        )
        assert sorted(out.split()) == [f"{topic}:0:4", f"{topic}:1:3"]


@pytest.mark.parametrize("client", WRITERS)
def test_keys_land_as_with_the_embedded_producer(
    broker: RunningBroker, log: streamlog.Log, client: str
) -> None:
    messages = [Message(str(n), f"user-{n * 7919}") for n in range(60)]
    mine, theirs = f"keys-embedded-{client}", f"keys-{client}"
    for topic in (mine, theirs):
        log.create_topic(topic, partitions=7)
    writers.embedded(log, mine, messages)
    WRITERS[client](broker.address, theirs, messages)

    places = [
        {seen.key: seen.partition for seen in readers.embedded(log, topic, len(messages))}
        for topic in (mine, theirs)
    ]

    assert places[0] == places[1]
    assert len(set(places[0].values())) == 7


class TestLargeRecords:
    """Five megabytes, in a topic that allows it, and in one that does not."""

    SIZE = 5_000_000

    @pytest.fixture(scope="class")
    @classmethod
    def topic(cls, log: streamlog.Log) -> str:
        log.create_topic("large", partitions=1, config={"max.message.bytes": 6_000_000})
        return "large"

    @pytest.mark.parametrize("client", WRITERS)
    def test_every_client_writes_one(
        self, broker: RunningBroker, log: streamlog.Log, topic: str, client: str
    ) -> None:
        before = log.describe(topic).partitions[0].end
        WRITERS[client](broker.address, topic, [Message("x" * self.SIZE, client)])
        assert log.describe(topic).partitions[0].end == before + 1

    @pytest.mark.parametrize("client", READERS)
    def test_every_client_reads_them(
        self, broker: RunningBroker, log: streamlog.Log, topic: str, client: str
    ) -> None:
        count = log.describe(topic).records
        found = READERS[client](broker.address, topic, count)
        assert [len(seen.value or "") for seen in found] == [self.SIZE] * count

    def test_too_large_a_record_is_refused(self, broker: RunningBroker, log: streamlog.Log) -> None:
        log.create_topic("small", partitions=1)
        errors: list[Any] = []
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.address, "message.max.bytes": 8_000_000}
        )
        producer.produce("small", b"x" * self.SIZE, on_delivery=lambda e, _: errors.append(e))
        assert producer.flush(60) == 0
        assert [error.name() for error in errors] == ["MSG_SIZE_TOO_LARGE"]
        assert log.describe("small").records == 0


def test_engines_that_know_delta_read_what_clients_wrote(
    broker: RunningBroker, log: streamlog.Log
) -> None:
    log.create_topic("sql", partitions=2)
    messages = [Message(str(n), f"k{n % 5}", timestamp=T0 + n) for n in range(100)]
    writers.confluent(broker.address, "sql", messages, "zstd")
    folders = [str(Path(log.root) / "topics" / "sql" / str(p)) for p in (0, 1)]

    tables = [DeltaTable(folder).to_pyarrow_table() for folder in folders]
    assert sorted(int(v) for table in tables for v in table["value"].to_pylist()) == list(
        range(100)
    )

    files = [path for folder in folders for path in DeltaTable(folder).file_uris()]
    with duckdb.connect() as database:
        found = database.execute(
            "select decode(key), count(*), min(epoch_ms(timestamp)) from read_parquet($1) "
            "group by 1 order by 1",
            [files],
        ).fetchall()
    assert found == [(f"k{n}", 20, T0 + n) for n in range(5)]
