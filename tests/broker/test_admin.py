"""Topics and settings by the admin clients of confluent-kafka, kafka-python and aiokafka, and by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka.errors
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioPartitions
from aiokafka.admin import NewTopic as AioTopic
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioType
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka.admin import ConfigResource as PyResource
from kafka.admin import ConfigResourceType as PyType
from kafka.admin import KafkaAdminClient

import streamlog
from streamlog.broker import apis
from streamlog.broker.configs import FIXED, KINDS
from streamlog.broker.kafka_errors import Code
from streamlog.config import ALL_KEYS
from tests.broker.harness import RunningBroker, running_broker
from tests.broker.raw import ask, request

SECONDS = 30.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "root", num_partitions=3) as broker:
        yield broker


@pytest.fixture
def log(broker: RunningBroker, tmp_path: Path) -> Iterator[streamlog.Log]:
    """The same root by the embedded client."""
    with streamlog.connect(tmp_path / "root") as log:
        yield log


@pytest.fixture
def admin(broker: RunningBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def code(future: Any) -> str:
    """The name of the error that a future of confluent-kafka ends with; "" if it ends well."""
    try:
        future.result(SECONDS)
    except confluent_kafka.KafkaException as error:
        return str(error.args[0].name())
    return ""


def message(future: Any) -> str:
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        future.result(SECONDS)
    return str(caught.value.args[0].str())


def topic_resource(name: str, **settings: Any) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, name, **settings)


def described(admin: AdminClient, resource: ConfigResource) -> dict[str, Any]:
    (future,) = admin.describe_configs([resource]).values()
    found: dict[str, Any] = future.result(SECONDS)
    return found


def steps(name: str, *entries: tuple[str, str | None, AlterConfigOpType]) -> ConfigResource:
    return topic_resource(
        name,
        incremental_configs=[ConfigEntry(k, v, incremental_operation=o) for k, v, o in entries],
    )


class TestConfluent:
    def test_a_topic_is_made_with_its_settings(
        self, admin: AdminClient, log: streamlog.Log
    ) -> None:
        config = {"retention.ms": "1000", "cleanup.policy": "compact,delete"}
        new = NewTopic("orders", num_partitions=4, replication_factor=3, config=config)
        admin.create_topics([new])["orders"].result(SECONDS)

        info = log.topic("orders")
        assert info.partitions == 4
        assert info.config.to_dict() == config
        seen = admin.list_topics("orders", timeout=SECONDS).topics["orders"]
        assert len(seen.partitions) == 4

    def test_partitions_by_default_are_the_brokers(
        self, admin: AdminClient, log: streamlog.Log
    ) -> None:
        admin.create_topics([NewTopic("orders")])["orders"].result(SECONDS)
        assert log.topic("orders").partitions == 3

    def test_each_topic_fails_by_itself(self, admin: AdminClient, log: streamlog.Log) -> None:
        log.create_topic("taken")
        futures = admin.create_topics(
            [
                NewTopic("good", 1),
                NewTopic("taken", 1),
                NewTopic("a b", 1),
                NewTopic("__internal", 1),
                NewTopic("many", 10_001),
                NewTopic("zero", 1, 0),
                NewTopic("typo", 1, config={"retention.mss": "1"}),
                NewTopic("value", 1, config={"retention.ms": "soon"}),
                NewTopic("fixed", 1, config={"min.insync.replicas": "2"}),
                NewTopic("same", 1, config={"min.insync.replicas": "1"}),
            ]
        )
        assert {name: code(future) for name, future in futures.items()} == {
            "good": "",
            "taken": "TOPIC_ALREADY_EXISTS",
            "a b": "TOPIC_EXCEPTION",
            "__internal": "TOPIC_EXCEPTION",
            "many": "INVALID_PARTITIONS",
            "zero": "INVALID_REPLICATION_FACTOR",
            "typo": "INVALID_CONFIG",
            "value": "INVALID_CONFIG",
            "fixed": "INVALID_CONFIG",
            "same": "",
        }
        assert "did you mean 'retention.ms'?" in message(futures["typo"])
        assert "allowed: milliseconds" in message(futures["value"])
        assert {info.name for info in log.topics()} == {"good", "taken", "same"}

    def test_validating_changes_nothing(self, admin: AdminClient, log: streamlog.Log) -> None:
        log.create_topic("taken", partitions=2)
        dry: Any = {"validate_only": True}
        assert code(admin.create_topics([NewTopic("new", 2)], **dry)["new"]) == ""
        refused = admin.create_topics([NewTopic("taken", 2)], **dry)["taken"]
        assert code(refused) == "TOPIC_ALREADY_EXISTS"
        assert code(admin.create_partitions([NewPartitions("taken", 5)], **dry)["taken"]) == ""
        change = steps("taken", ("retention.ms", "5", AlterConfigOpType.SET))
        (altered,) = admin.incremental_alter_configs([change], **dry).values()
        assert code(altered) == ""

        assert [info.name for info in log.topics()] == ["taken"]
        assert log.topic("taken").partitions == 2
        assert log.topic("taken").config.to_dict() == {}

    def test_a_manual_assignment_counts_partitions(
        self, admin: AdminClient, log: streamlog.Log
    ) -> None:
        placed = NewTopic("placed", num_partitions=3, replica_assignment=[[7], [8], [9]])
        assert code(admin.create_topics([placed])["placed"]) == ""
        assert log.topic("placed").partitions == 3

    def test_partitions_are_added_and_never_taken(
        self, admin: AdminClient, log: streamlog.Log
    ) -> None:
        log.create_topic("orders", partitions=2)

        def grow(total: int, **more: Any) -> Any:
            return admin.create_partitions([NewPartitions("orders", total, **more)])["orders"]

        assert code(grow(5)) == ""
        assert log.topic("orders").partitions == 5
        assert code(grow(5)) == "INVALID_PARTITIONS"
        assert code(grow(4)) == "INVALID_PARTITIONS"
        assert code(grow(10_001)) == "INVALID_PARTITIONS"
        assert code(grow(7, replica_assignment=[[1], [1]])) == ""
        missing = admin.create_partitions([NewPartitions("none", 3)])["none"]
        assert code(missing) == "UNKNOWN_TOPIC_OR_PART"

    def test_a_deleted_topic_is_gone(self, admin: AdminClient, log: streamlog.Log) -> None:
        log.create_topic("orders")
        futures = admin.delete_topics(["orders", "none"])
        assert code(futures["orders"]) == ""
        assert code(futures["none"]) == "UNKNOWN_TOPIC_OR_PART"
        assert log.topics() == []

    def test_records_are_deleted_up_to_an_offset_or_all_of_them(
        self, admin: AdminClient, log: streamlog.Log
    ) -> None:
        log.create_topic("orders", partitions=2)
        with log.producer() as producer:
            for number in range(20):
                producer.send("orders", b"x", partition=number % 2)

        def delete(partition: int, offset: int) -> Any:
            where = confluent_kafka.TopicPartition("orders", partition, offset)
            return next(iter(admin.delete_records([where]).values()))

        def earliest(partition: int) -> int:
            where = confluent_kafka.TopicPartition("orders", partition)
            (future,) = admin.list_offsets({where: OffsetSpec.earliest()}).values()
            return int(future.result(SECONDS).offset)

        assert delete(0, 4).result(SECONDS).low_watermark == 4
        assert delete(0, 2).result(SECONDS).low_watermark == 4
        assert delete(1, confluent_kafka.OFFSET_END).result(SECONDS).low_watermark == 10
        assert (earliest(0), earliest(1)) == (4, 10)
        assert code(delete(0, 11)) == "OFFSET_OUT_OF_RANGE"

    def test_settings_are_described_with_their_sources_and_types(
        self, admin: AdminClient, log: streamlog.Log
    ) -> None:
        log.create_topic("orders", config={"retention.ms": 5000})
        found = described(admin, topic_resource("orders"))

        assert set(found) == set(ALL_KEYS) | set(FIXED) == set(KINDS)
        retention = found["retention.ms"]
        assert retention.value == "5000"
        assert retention.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        assert not retention.is_read_only
        assert found["segment.bytes"].source == ConfigSource.DEFAULT_CONFIG.value
        assert found["segment.bytes"].is_default
        assert found["min.insync.replicas"].value == "1"
        assert found["min.insync.replicas"].is_read_only
        (future,) = admin.describe_configs([topic_resource("none")]).values()
        assert code(future) == "UNKNOWN_TOPIC_OR_PART"

    def test_a_brokers_settings_are_shown_and_not_changed(
        self, admin: AdminClient, broker: RunningBroker
    ) -> None:
        me = str(broker.broker.cluster.me.node_id)
        found = described(admin, ConfigResource(ResourceType.BROKER, me))
        assert found["num.partitions"].value == "3"
        assert found["auto.create.topics.enable"].value == "true"
        assert found["advertised.listeners"].value == f"PLAINTEXT://{broker.address}"
        assert all(entry.is_read_only for entry in found.values())
        change = ConfigResource(
            ResourceType.BROKER,
            me,
            incremental_configs=[
                ConfigEntry("num.partitions", "9", incremental_operation=AlterConfigOpType.SET)
            ],
        )
        (future,) = admin.incremental_alter_configs([change]).values()
        assert code(future) == "INVALID_REQUEST"

    def test_single_settings_are_set_deleted_appended_and_subtracted(
        self, admin: AdminClient, log: streamlog.Log
    ) -> None:
        log.create_topic("orders", config={"retention.ms": 1, "segment.bytes": 1000})

        def alter(*entries: tuple[str, str | None, AlterConfigOpType]) -> str:
            (future,) = admin.incremental_alter_configs([steps("orders", *entries)]).values()
            return code(future)

        kinds = AlterConfigOpType
        assert (
            alter(
                ("retention.ms", "77", kinds.SET),
                ("segment.bytes", None, kinds.DELETE),
                ("cleanup.policy", "compact", kinds.APPEND),
            )
            == ""
        )
        assert log.topic("orders").config.to_dict() == {
            "cleanup.policy": "compact,delete",
            "retention.ms": "77",
        }
        assert alter(("cleanup.policy", "delete", kinds.SUBTRACT)) == ""
        assert log.topic("orders").config.to_dict()["cleanup.policy"] == "compact"
        assert alter(("retention.ms", "1", kinds.APPEND)) == "INVALID_CONFIG"
        assert alter(("retention.ms", "never", kinds.SET)) == "INVALID_CONFIG"
        assert alter(("no.such.thing", "1", kinds.SET)) == "INVALID_CONFIG"
        assert alter(("no.such.thing", "1", kinds.APPEND)) == "INVALID_CONFIG"
        assert alter(("min.insync.replicas", "1", kinds.SET)) == ""
        assert alter(("min.insync.replicas", "2", kinds.SET)) == "INVALID_CONFIG"

    def test_the_cluster_is_described(
        self, admin: AdminClient, broker: RunningBroker, log: streamlog.Log
    ) -> None:
        found = admin.describe_cluster(include_authorized_operations=True).result(SECONDS)
        assert found.cluster_id == broker.broker.log.cluster_id
        assert [f"{node.host}:{node.port}" for node in found.nodes] == [broker.address]
        assert found.controller.id == broker.broker.cluster.me.node_id
        assert {op.name for op in found.authorized_operations} >= {"CREATE", "ALTER", "DESCRIBE"}
        topics = confluent_kafka.TopicCollection(["orders"])
        log.create_topic("orders")
        (future,) = admin.describe_topics(topics, include_authorized_operations=True).values()
        operations = future.result(SECONDS).authorized_operations
        assert {op.name for op in operations} >= {"READ", "WRITE", "DELETE"}


class TestKafkaPython:
    @pytest.fixture
    def admin(self, broker: RunningBroker) -> Iterator[KafkaAdminClient]:
        admin = KafkaAdminClient(bootstrap_servers=broker.address)
        yield admin
        admin.close()

    def test_topics_are_made_grown_and_deleted(
        self, admin: KafkaAdminClient, log: streamlog.Log
    ) -> None:
        made = admin.create_topics(
            {"orders": {"num_partitions": 2, "configs": {"retention.ms": "5000"}}, "plain": {}}
        )
        (orders,) = [topic for topic in made["topics"] if topic["name"] == "orders"]
        assert orders["num_partitions"] == 2
        assert orders["replication_factor"] == 1
        assert orders["configs"]["retention.ms"]["value"] == "5000"
        assert orders["topic_id"].replace("-", "") == log.topic("orders").id
        assert log.topic("plain").partitions == 3
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            admin.create_topics(["orders"])

        admin.create_partitions({"orders": 5})
        assert log.topic("orders").partitions == 5
        with pytest.raises(kafka.errors.InvalidPartitionsError):
            admin.create_partitions({"orders": 5})

        admin.delete_topics(["orders"])
        assert [info.name for info in log.topics()] == ["plain"]
        with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
            admin.delete_topics(["orders"])

    @pytest.mark.parametrize("incremental", [True, False])
    def test_settings_are_altered_and_described(
        self, admin: KafkaAdminClient, log: streamlog.Log, incremental: bool
    ) -> None:
        log.create_topic("orders", config={"segment.bytes": 1000})
        change = PyResource(PyType.TOPIC, "orders", {"retention.ms": "12"})
        admin.alter_configs([change], incremental=incremental)

        config = log.topic("orders").config.to_dict()
        assert config == {"retention.ms": "12", "segment.bytes": "1000"}
        everything = PyResource(PyType.TOPIC, "orders", None)
        found = admin.describe_configs([everything], config_filter="all")["topic"]["orders"]
        assert found["retention.ms"]["value"] == "12"
        assert set(found) == set(KINDS)

    def test_log_dirs_tell_sizes(
        self, admin: KafkaAdminClient, log: streamlog.Log, broker: RunningBroker
    ) -> None:
        log.create_topic("orders", partitions=2)
        with log.producer() as producer:
            producer.send("orders", b"x" * 100, partition=1)
        (node,) = admin.describe_log_dirs()
        (folder,) = node["log_dirs"]
        assert folder["log_dir"] == log.root
        (topic,) = folder["topics"]
        sizes = {part["partition_index"]: part["partition_size"] for part in topic["partitions"]}
        stored = {part.partition: part.bytes for part in log.describe("orders").partitions}
        assert sizes == stored
        assert sizes[0] == 0 < sizes[1]
        (node,) = admin.describe_log_dirs({"orders": [1], "none": [0]})
        (topic,) = node["log_dirs"][0]["topics"]
        assert [part["partition_index"] for part in topic["partitions"]] == [1]

    def test_the_cluster_and_its_records(
        self, admin: KafkaAdminClient, log: streamlog.Log, broker: RunningBroker
    ) -> None:
        assert admin.describe_cluster()["cluster_id"] == broker.broker.log.cluster_id
        log.create_topic("orders")
        with log.producer() as producer:
            producer.send("orders", b"x")
            producer.send("orders", b"y")
        where = kafka.TopicPartition("orders", 0)
        admin.delete_records({where: 1})
        assert log.describe("orders").partitions[0].start == 1


def test_aiokafka_makes_alters_grows_and_deletes(broker: RunningBroker, log: streamlog.Log) -> None:
    async def work() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await admin.start()
        try:
            new = AioTopic("orders", 2, 1, topic_configs={"retention.ms": "5000"})
            await admin.create_topics([new])
            assert log.topic("orders").config.to_dict() == {"retention.ms": "5000"}
            with log.producer() as producer:
                producer.send("orders", b"x", partition=0)

            await admin.create_partitions({"orders": AioPartitions(total_count=4)})
            assert log.topic("orders").partitions == 4

            resource = AioResource(AioType.TOPIC, "orders", {"segment.bytes": "1000"})
            (answer,) = await admin.alter_configs([resource])
            assert answer.resources[0][0] == 0
            # AlterConfigs replaces all settings.
            assert log.topic("orders").config.to_dict() == {"segment.bytes": "1000"}

            (answer,) = await admin.describe_configs([AioResource(AioType.TOPIC, "orders")])
            assert {entry[0] for entry in answer.resources[0][4]} == set(KINDS)

            where = aiokafka.TopicPartition("orders", 0)
            deleted = await admin.delete_records({where: RecordsToDelete(before_offset=1)})
            assert deleted == {where: 1}

            await admin.delete_topics(["orders"])
            assert log.topics() == []
        finally:
            await admin.close()

    asyncio.run(work())


class TestByHand:
    """What no client sends."""

    def test_a_topic_named_twice_is_made_by_neither(
        self, broker: RunningBroker, log: streamlog.Log
    ) -> None:
        topic = {"name": "orders", "num_partitions": 1, "replication_factor": 1}
        topic |= {"assignments": [], "configs": []}
        body = request(apis.CREATE_TOPICS, 7, topics=[topic, topic], timeout=timedelta(seconds=9))
        answer = ask(broker.address, apis.CREATE_TOPICS, 7, body)
        assert [entry.error_code for entry in answer.topics] == [Code.INVALID_REQUEST]
        assert log.topics() == []

    @pytest.mark.parametrize(
        ("partitions", "assigned", "expected"),
        [
            (-1, [0, 1], Code.NONE),
            (-1, [1, 2], Code.INVALID_REPLICA_ASSIGNMENT),
            (-1, [0, 0], Code.INVALID_REPLICA_ASSIGNMENT),
            (2, [0, 1], Code.INVALID_REQUEST),
            (0, [], Code.INVALID_PARTITIONS),
            (-2, [], Code.INVALID_PARTITIONS),
        ],
    )
    def test_assignments(
        self, broker: RunningBroker, partitions: int, assigned: list[int], expected: Code
    ) -> None:
        topic = {
            "name": "orders",
            "num_partitions": partitions,
            "replication_factor": -1,
            "assignments": [{"partition_index": p, "broker_ids": [1]} for p in assigned],
            "configs": [],
        }
        body = request(apis.CREATE_TOPICS, 5, topics=[topic], timeout=timedelta(seconds=9))
        (entry,) = ask(broker.address, apis.CREATE_TOPICS, 5, body).topics
        assert entry.error_code == expected
        assert entry.error_message or expected == Code.NONE

    def test_topics_are_deleted_by_id(self, broker: RunningBroker, log: streamlog.Log) -> None:
        from uuid import UUID

        known = UUID(log.create_topic("orders").id)
        unknown = UUID(int=7)
        body = request(
            apis.DELETE_TOPICS,
            6,
            topics=[
                {"name": None, "topic_id": known},
                {"name": None, "topic_id": unknown},
                {"name": None, "topic_id": None},
                {"name": "orders", "topic_id": known},
            ],
            timeout=timedelta(seconds=9),
        )
        answer = ask(broker.address, apis.DELETE_TOPICS, 6, body)
        assert [(r.name, r.error_code) for r in answer.responses] == [
            ("orders", Code.NONE),
            (None, Code.UNKNOWN_TOPIC_ID),
            (None, Code.INVALID_REQUEST),
            ("orders", Code.INVALID_REQUEST),
        ]
        assert log.topics() == []

    def test_settings_without_value_or_sense_are_refused(
        self, broker: RunningBroker, log: streamlog.Log
    ) -> None:
        log.create_topic("orders")

        def alter(*configs: tuple[str, int, str | None], kind: int = 2) -> int:
            entries = [
                {"name": name, "config_operation": operation, "value": value}
                for name, operation, value in configs
            ]
            resource = {"resource_type": kind, "resource_name": "orders", "configs": entries}
            api = apis.INCREMENTAL_ALTER_CONFIGS
            body = request(api, 1, resources=[resource], validate_only=False)
            return int(ask(broker.address, api, 1, body).responses[0].error_code)

        assert alter(("retention.ms", 0, None)) == Code.INVALID_REQUEST
        assert alter(("retention.ms", 9, "1")) == Code.INVALID_REQUEST
        twice = ("retention.ms", 0, "1")
        assert alter(twice, twice) == Code.INVALID_REQUEST
        assert alter(twice, kind=8) == Code.INVALID_REQUEST
        assert alter(("cleanup.policy", 3, "delete")) == Code.INVALID_CONFIG
        assert alter() == Code.NONE
        assert log.topic("orders").config.to_dict() == {}

    @pytest.mark.parametrize("version", [1, 2, 3, 4])
    def test_synonyms_and_documentation_are_given_when_asked_for(
        self, broker: RunningBroker, log: streamlog.Log, version: int
    ) -> None:
        log.create_topic("orders", config={"retention.ms": 5})
        keys = ["retention.ms", "segment.bytes", "no.such.thing"]
        resource = {"resource_type": 2, "resource_name": "orders", "configuration_keys": keys}
        options: dict[str, Any] = {"include_synonyms": True}
        if version >= 3:
            options["include_documentation"] = True
        api = apis.DESCRIBE_CONFIGS
        answer = ask(
            broker.address, api, version, request(api, version, resources=[resource], **options)
        )
        chosen, plain = answer.results[0].configs
        assert (chosen.name, plain.name) == ("retention.ms", "segment.bytes")
        assert [(s.value, s.source) for s in chosen.synonyms] == [("5", 1), ("604800000", 5)]
        assert [s.source for s in plain.synonyms] == [5]
        if version >= 3:
            assert chosen.documentation == ALL_KEYS["retention.ms"]
            assert chosen.config_type == 5
        bare = request(api, version, resources=[resource])
        answer = ask(broker.address, api, version, bare)
        assert all(not config.synonyms for config in answer.results[0].configs)

    def test_another_brokers_settings_are_not_told(self, broker: RunningBroker) -> None:
        api = apis.DESCRIBE_CONFIGS

        def code_for(kind: int, name: str) -> int:
            resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
            answer = ask(broker.address, api, 4, request(api, 4, resources=[resource]))
            return int(answer.results[0].error_code)

        assert code_for(4, "999") == Code.INVALID_REQUEST
        assert code_for(4, "") == Code.NONE
        assert code_for(32, "group") == Code.INVALID_REQUEST
        assert code_for(2, "a b") == Code.INVALID_TOPIC_EXCEPTION

    def test_who_may_not_is_refused(
        self, broker: RunningBroker, log: streamlog.Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log.create_topic("orders")
        monkeypatch.setattr(broker.broker.security, "allows", lambda *_: False)
        wait = timedelta(seconds=9)
        new = {"name": "new", "num_partitions": 1, "replication_factor": 1}
        new |= {"assignments": [], "configs": []}
        named = {"resource_type": 2, "resource_name": "orders"}
        requests: dict[tuple[int, int], dict[str, Any]] = {
            (apis.CREATE_TOPICS, 7): {"topics": [new], "timeout": wait},
            (apis.DELETE_TOPICS, 5): {"topic_names": ["orders"], "timeout": wait},
            (apis.CREATE_PARTITIONS, 3): {
                "topics": [{"name": "orders", "count": 9, "assignments": None}],
                "timeout": wait,
                "validate_only": False,
            },
            (apis.DELETE_RECORDS, 2): {
                "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 0}]}],
                "timeout": wait,
            },
            (apis.DESCRIBE_CONFIGS, 4): {"resources": [named | {"configuration_keys": None}]},
            (apis.ALTER_CONFIGS, 2): {
                "resources": [named | {"configs": []}],
                "validate_only": False,
            },
            (apis.INCREMENTAL_ALTER_CONFIGS, 1): {
                "resources": [named | {"configs": []}],
                "validate_only": False,
            },
            (apis.DESCRIBE_LOG_DIRS, 4): {"topics": None},
        }
        from tests.broker.test_failures import codes

        for (api, version), fields in requests.items():
            answer = ask(broker.address, api, version, request(api, version, **fields))
            wanted = (
                Code.CLUSTER_AUTHORIZATION_FAILED
                if api == apis.DESCRIBE_LOG_DIRS
                else Code.TOPIC_AUTHORIZATION_FAILED
            )
            assert set(codes(answer)) == {wanted}, (api, version)
        assert [info.name for info in log.topics()] == ["orders"]


def test_a_frame_that_claims_too_much_ends_its_connection_and_nothing_else(
    broker: RunningBroker, admin: AdminClient
) -> None:
    """Metadata version 9 with an array of four thousand million topics, in 20 bytes."""
    import socket
    import struct

    frame = struct.pack(">hhih", apis.METADATA, 9, 1, -1) + b"\x00" + b"\xff\xff\xff\xff\x0f"
    host, _, port = broker.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        assert connection.recv(1) == b""
    assert admin.list_topics(timeout=SECONDS).brokers
