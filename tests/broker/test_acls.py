"""Access rules: what they decide, what clients may do by them, and how Kafka's tools manage them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

import streamlog
from streamlog.broker import apis
from streamlog.broker.acls import CLUSTER, Rule, Rules
from streamlog.broker.kafka_errors import Code
from streamlog.errors import InvalidRequestError
from tests.broker.harness import RunningBroker
from tests.broker.raw import ask, request
from tests.broker.secured import (
    PASSWORD,
    SECONDS,
    acls,
    allow,
    by_confluent,
    config,
    consume,
    produce,
    secured,
    users,
)


def decided(rules: list[Rule], operation: str, kind: str, name: str, **who: str) -> bool:
    asked = {"principal": "User:alice", "host": "10.0.0.1", **who}
    return Rules(rules, in_force=True).allow(
        asked["principal"], asked["host"], operation, kind, name
    )


# What rules decide


def test_what_no_rule_allows_is_not_allowed() -> None:
    assert not decided([], "read", "topic", "orders")
    rules = allow("alice", "topic", "orders", "read")
    assert decided(rules, "read", "topic", "orders")
    assert not decided(rules, "write", "topic", "orders")
    assert not decided(rules, "read", "topic", "orders2")
    assert not decided(rules, "read", "group", "orders")
    assert not decided(rules, "read", "topic", "orders", principal="User:bob")


@pytest.mark.parametrize("operation", ["read", "write", "delete", "alter", "all"])
def test_who_may_do_something_to_a_topic_may_see_it(operation: str) -> None:
    rules = allow("alice", "topic", "orders", operation)
    assert decided(rules, "describe", "topic", "orders")
    assert decided(rules, "describe_configs", "topic", "orders") == (operation == "all")


def test_who_may_alter_settings_may_see_them() -> None:
    rules = allow("alice", "topic", "orders", "alter_configs")
    assert decided(rules, "describe_configs", "topic", "orders")
    assert not decided(rules, "describe", "topic", "orders")


def test_a_denial_wins_and_implies_nothing() -> None:
    rules = allow("*", "topic", "*", "all")
    assert decided(rules, "write", "topic", "orders")
    denied = [*rules, *allow("alice", "topic", "ord", "read", pattern="prefix", permission="deny")]
    assert not decided(denied, "read", "topic", "orders")
    assert decided(denied, "describe", "topic", "orders")
    assert decided(denied, "read", "topic", "other")
    assert decided(denied, "read", "topic", "orders", principal="User:bob")
    none = [*rules, *allow("*", "topic", "orders", "all", permission="deny")]
    assert not decided(none, "describe", "topic", "orders")


def test_names_are_matched_literally_by_prefix_or_all() -> None:
    rules = allow("alice", "topic", "sales-", "read", pattern="prefix")
    assert decided(rules, "read", "topic", "sales-eu")
    assert not decided(rules, "read", "topic", "sale")
    assert decided(allow("alice", "group", "*", "read"), "read", "group", "anything")


def test_a_rule_may_be_for_one_host() -> None:
    rules = allow("alice", "topic", "orders", "read", host="10.0.0.1")
    assert decided(rules, "read", "topic", "orders")
    assert not decided(rules, "read", "topic", "orders", host="10.0.0.2")


def test_who_may_create_in_the_cluster_may_create_any_topic() -> None:
    assert decided(allow("alice", "cluster", CLUSTER, "create"), "create", "topic", "new")
    assert not decided(allow("alice", "topic", "a", "create"), "create", "topic", "b")


def test_who_may_write_somewhere_may_write_idempotently() -> None:
    def may(rules: list[Rule]) -> bool:
        return decided(rules, "idempotent_write", "cluster", CLUSTER)

    writes = allow("alice", "topic", "orders", "write")
    assert may(writes)
    assert not may(allow("alice", "topic", "orders", "read"))
    assert not may([*writes, *allow("*", "topic", "*", "write", permission="deny")])
    assert not may(
        [*writes, *allow("*", "topic", "or", "all", pattern="prefix", permission="deny")]
    )
    assert may([*writes, *allow("*", "topic", "orders2", "write", permission="deny")])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"principal": "alice"}, "User:NAME"),
        ({"principal": "User:"}, "User:NAME"),
        ({"kind": "table"}, "kind of resource"),
        ({"operation": "fly"}, "operation on a topic"),
        ({"kind": "group", "operation": "write"}, "operation on a group"),
        ({"pattern": "regex"}, "pattern"),
        ({"permission": "maybe"}, "permission"),
        ({"host": "example.org"}, "IP address"),
        ({"name": ""}, "1 to"),
        ({"name": "*", "pattern": "prefix"}, "all names by itself"),
        ({"kind": "cluster", "operation": "all"}, "kafka-cluster"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(given: dict[str, str], words: str) -> None:
    sound = {"principal": "User:a", "kind": "topic", "name": "t", "operation": "read"}
    with pytest.raises(InvalidRequestError, match=words):
        Rule(**{**sound, **given})


# What clients may do


@pytest.fixture
def log(tmp_path: Path) -> Iterator[streamlog.Log]:
    with streamlog.connect(tmp_path / "root") as log:
        for name in ("orders", "sales-eu", "secret"):
            log.create_topic(name)
        for name in ("alice", "admin"):
            users(log).add(name, PASSWORD)
        yield log


@pytest.fixture
def broker(log: streamlog.Log) -> Iterator[RunningBroker]:
    with secured(log.root, super_users=("admin",)) as broker:
        yield broker


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def in_force(broker: RunningBroker, count: int) -> None:
    """Waits until the broker heeds so many rules."""
    eventually(lambda: len(broker.broker.security._rules.all) == count)


def test_without_any_rule_who_logs_in_may_do_everything_but_manage_others(
    log: streamlog.Log, broker: RunningBroker
) -> None:
    assert by_confluent(broker) == {"orders", "sales-eu", "secret"}
    assert produce(broker, "orders", b"1") is None
    assert consume(broker, "orders", "billing") == b"1"
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        _add_rule(AdminClient(config(broker)))
    assert caught.value.args[0].name() == "CLUSTER_AUTHORIZATION_FAILED"


def test_from_the_first_rule_on_only_what_is_allowed_goes(
    log: streamlog.Log, broker: RunningBroker
) -> None:
    rules = allow("alice", "topic", "orders", "write")
    rules += allow("alice", "topic", "sales-", "read", pattern="prefix")
    rules += allow("alice", "group", "billing", "read")
    acls(log).add(rules)
    in_force(broker, 3)

    assert by_confluent(broker) == {"orders", "sales-eu"}
    assert by_confluent(broker, user="admin") == {"orders", "sales-eu", "secret"}
    assert produce(broker, "orders", b"1") is None
    idempotent: dict[str, Any] = {"enable.idempotence": True}
    assert produce(broker, "orders", b"2", **idempotent) is None
    assert produce(broker, "sales-eu", b"3", user="admin") is None
    assert produce(broker, "sales-eu", b"3").name() == "TOPIC_AUTHORIZATION_FAILED"
    assert consume(broker, "sales-eu", "billing") == b"3"
    assert consume(broker, "sales-eu", "other").name() == "GROUP_AUTHORIZATION_FAILED"
    assert consume(broker, "secret", "billing").name() == "TOPIC_AUTHORIZATION_FAILED"
    # Reading takes more than seeing.
    assert consume(broker, "orders", "billing").name() == "TOPIC_AUTHORIZATION_FAILED"
    # A topic that is not there is not made for who may not make it.
    assert produce(broker, "new", b"").name() == "TOPIC_AUTHORIZATION_FAILED"
    assert {info.name for info in log.topics()} == {"orders", "sales-eu", "secret"}


def test_a_change_of_rules_counts_for_open_connections(
    log: streamlog.Log, broker: RunningBroker
) -> None:
    acls(log).add(allow("alice", "topic", "*", "describe"))
    in_force(broker, 1)
    client = AdminClient(config(broker))
    assert len(client.list_topics(timeout=SECONDS).topics) == 3
    acls(log).add(allow("alice", "topic", "secret", "all", permission="deny"))
    in_force(broker, 2)
    assert set(client.list_topics(timeout=SECONDS).topics) == {"orders", "sales-eu"}


def test_removing_the_last_rule_opens_nothing(log: streamlog.Log, broker: RunningBroker) -> None:
    acls(log).add(allow("alice", "topic", "orders", "read"))
    in_force(broker, 1)
    acls(log).remove(lambda _: True)
    in_force(broker, 0)
    assert by_confluent(broker) == set()
    assert len(by_confluent(broker, user="admin")) == 3


# Kafka's own tools


def _add_rule(client: AdminClient, **given: Any) -> AclBinding:
    binding = AclBinding(
        given.get("kind", ResourceType.TOPIC),
        given.get("name", "orders"),
        given.get("pattern", ResourcePatternType.LITERAL),
        given.get("principal", "User:alice"),
        given.get("host", "*"),
        given.get("operation", AclOperation.READ),
        given.get("permission", AclPermissionType.ALLOW),
    )
    client.create_acls([binding])[binding].result(SECONDS)
    return binding


def _filter(name: str | None, pattern: ResourcePatternType) -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.ANY, name, pattern, None, None, AclOperation.ANY, AclPermissionType.ANY
    )


def test_rules_are_made_found_and_removed_by_an_admin_client(
    log: streamlog.Log, broker: RunningBroker
) -> None:
    client = AdminClient(config(broker, "admin"))
    literal = _add_rule(client)
    prefix = _add_rule(
        client,
        name="ord",
        pattern=ResourcePatternType.PREFIXED,
        operation=AclOperation.WRITE,
        permission=AclPermissionType.DENY,
        host="10.0.0.1",
    )
    everyone = _add_rule(client, name="*", principal="User:*", operation=AclOperation.DESCRIBE)
    group = _add_rule(client, kind=ResourceType.GROUP, name="billing")
    assert len(acls(log).read().all) == 4
    # The broker that was asked heeds them at once.
    assert len(broker.broker.security._rules.all) == 4

    def found(name: str | None, pattern: ResourcePatternType) -> set[AclBinding]:
        return set(client.describe_acls(_filter(name, pattern)).result(SECONDS))

    everything = {literal, prefix, everyone, group}
    assert found(None, ResourcePatternType.ANY) == everything
    assert found("orders", ResourcePatternType.LITERAL) == {literal}
    assert found("orders", ResourcePatternType.MATCH) == {literal, prefix, everyone}
    assert found(None, ResourcePatternType.PREFIXED) == {prefix}

    wanted = _filter("orders", ResourcePatternType.MATCH)
    removed = client.delete_acls([wanted])[wanted].result(SECONDS)
    assert set(removed) == {literal, prefix, everyone}
    assert found(None, ResourcePatternType.ANY) == {group}

    with pytest.raises(confluent_kafka.KafkaException) as caught:
        _add_rule(client, kind=ResourceType.TRANSACTIONAL_ID)
    assert caught.value.args[0].name() == "INVALID_REQUEST"
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        _add_rule(AdminClient(config(broker)))
    assert caught.value.args[0].name() == "CLUSTER_AUTHORIZATION_FAILED"


def test_users_are_made_described_and_dropped_by_an_admin_client(
    log: streamlog.Log, broker: RunningBroker
) -> None:
    client = AdminClient(config(broker, "admin"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    made = UserScramCredentialUpsertion("dave", info, b"daves", b"0123456789abcdef")
    client.alter_user_scram_credentials([made])["dave"].result(SECONDS)
    for mechanism in ("SCRAM-SHA-256", "PLAIN"):
        assert by_confluent(broker, user="dave", password="daves", mechanism=mechanism)
    with pytest.raises(confluent_kafka.KafkaException):
        by_confluent(broker, 1.5, user="dave", password="daves", mechanism="SCRAM-SHA-512")

    described = client.describe_user_scram_credentials(["dave", "nobody"])
    (credential,) = described["dave"].result(SECONDS).scram_credential_infos
    assert (credential.mechanism, credential.iterations) == (ScramMechanism.SCRAM_SHA_256, 8192)
    with pytest.raises(confluent_kafka.KafkaException):
        described["nobody"].result(SECONDS)

    weak = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 100)
    for refused in (
        UserScramCredentialUpsertion("dave", weak, b"x", b"0123456789abcdef"),
        UserScramCredentialUpsertion("*", info, b"x", b"0123456789abcdef"),
        UserScramCredentialDeletion("nobody", ScramMechanism.SCRAM_SHA_256),
    ):
        future = client.alter_user_scram_credentials([refused])[refused.user]
        with pytest.raises(confluent_kafka.KafkaException):
            future.result(SECONDS)
    forbidden = AdminClient(config(broker)).alter_user_scram_credentials([made])["dave"]
    with pytest.raises(confluent_kafka.KafkaException):
        forbidden.result(SECONDS)

    gone = UserScramCredentialDeletion("dave", ScramMechanism.SCRAM_SHA_256)
    client.alter_user_scram_credentials([gone])["dave"].result(SECONDS)
    assert "dave" not in users(log).read()


def test_a_broker_without_logins_has_no_users_and_no_rules_to_manage(log: streamlog.Log) -> None:
    with secured(log.root, sasl=False) as broker:
        client = AdminClient(config(broker, None))
        drop = UserScramCredentialDeletion("alice", ScramMechanism.SCRAM_SHA_256)
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            client.alter_user_scram_credentials([drop])["alice"].result(SECONDS)
        assert caught.value.args[0].name() == "SECURITY_DISABLED"
        # Asked by hand: librdkafka does not look at the error of this answer.
        every: dict[str, Any] = {"resource_type_filter": 1, "operation": 1, "permission_type": 1}
        every |= {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
        answer = ask(broker.address, apis.DESCRIBE_ACLS, 3, request(apis.DESCRIBE_ACLS, 3, **every))
        assert answer.error_code == Code.SECURITY_DISABLED
        with pytest.raises(confluent_kafka.KafkaException):
            _add_rule(client)
    assert "alice" in users(log).read()
