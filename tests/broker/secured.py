"""Brokers with users, and the three Python clients that log in to them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
from aiokafka import AIOKafkaClient
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

import streamlog
from streamlog.broker.acls import Acls, Rule, principal_of
from streamlog.broker.users import Users
from streamlog.clock import Runtime
from tests.broker.harness import RunningBroker, running_broker

CERTS = Path(__file__).parent / "certs"
CA = str(CERTS / "ca.pem")
TLS = {"tls_cert": str(CERTS / "server.pem"), "tls_key": str(CERTS / "server.key")}
SECONDS = 30.0
PASSWORD = "s3cret,=pass"
# A change of users and rules is looked for often, and a wrong password does not hold a test up.
QUICK = {"security_refresh_seconds": 0.1, "login_delay_seconds": 0.1}


@contextmanager
def secured(root: Path | str, **settings: Any) -> Iterator[RunningBroker]:
    """A broker that wants a login."""
    with running_broker(root, **{"sasl": True, **QUICK, **settings}) as broker:
        yield broker


def users(log: streamlog.Log) -> Users:
    return Users(log.admin(), Runtime())


def acls(log: streamlog.Log) -> Acls:
    return Acls(log.admin(), Runtime())


def allow(user: str, kind: str, name: str, *operations: str, **more: str) -> list[Rule]:
    """Rules that let a user do something, or with permission="deny" not."""
    return [
        Rule(principal=principal_of(user), kind=kind, name=name, operation=operation, **more)
        for operation in operations
    ]


def config(
    broker: RunningBroker,
    user: str | None = "alice",
    password: str = PASSWORD,
    mechanism: str = "SCRAM-SHA-256",
    *,
    tls: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Settings of confluent-kafka."""
    protocol = ("SASL_" if user else "") + ("SSL" if tls else "PLAINTEXT")
    given: dict[str, Any] = {
        "bootstrap.servers": broker.address,
        "security.protocol": protocol,
        # What a failed login says goes to the test, not to stderr.
        "log_level": 0,
        "error_cb": lambda _: None,
    }
    if user:
        given |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    if tls:
        given["ssl.ca.location"] = CA
    return given | more


def by_confluent(broker: RunningBroker, timeout: float = SECONDS, **login: Any) -> set[str]:
    """The topics that confluent-kafka is shown."""
    client = AdminClient(config(broker, **login))
    return set(client.list_topics(timeout=timeout).topics)


def by_kafka_python(broker: RunningBroker, timeout: float = SECONDS, **login: Any) -> set[str]:
    """The topics that kafka-python is shown."""
    given = config(broker, **login)
    client = KafkaAdminClient(
        bootstrap_servers=given["bootstrap.servers"],
        security_protocol=given["security.protocol"],
        sasl_mechanism=given["sasl.mechanism"],
        sasl_plain_username=given["sasl.username"],
        sasl_plain_password=given["sasl.password"],
        ssl_cafile=CA,
        bootstrap_timeout_ms=int(timeout * 1000),
    )
    try:
        return set(client.list_topics())
    finally:
        client.close()


def by_aiokafka(broker: RunningBroker, timeout: float = SECONDS, **login: Any) -> set[str]:
    """The topics that aiokafka is shown."""
    given = config(broker, **login)
    tls = given["security.protocol"] == "SASL_SSL"

    async def look() -> set[str]:
        client = AIOKafkaClient(
            bootstrap_servers=given["bootstrap.servers"],
            security_protocol=given["security.protocol"],
            sasl_mechanism=given["sasl.mechanism"],
            sasl_plain_username=given["sasl.username"],
            sasl_plain_password=given["sasl.password"],
            ssl_context=ssl.create_default_context(cafile=CA) if tls else None,
            request_timeout_ms=int(timeout * 1000),
        )
        try:
            await client.bootstrap()
            return set((await client.fetch_all_metadata()).topics())
        finally:
            await client.close()

    return asyncio.run(look())


CLIENTS = (by_confluent, by_kafka_python, by_aiokafka)


def produce(broker: RunningBroker, topic: str, value: bytes, **login: Any) -> Any:
    """What becomes of one record: None, or the error that the client is told."""
    outcome: list[Any] = []
    more = {"message.timeout.ms": int(SECONDS * 1000), "allow.auto.create.topics": True}
    producer = confluent_kafka.Producer(config(broker, **login) | more)
    producer.produce(topic, value, on_delivery=lambda error, _: outcome.append(error))
    assert producer.flush(SECONDS) == 0
    return outcome[0]


def consume(broker: RunningBroker, topic: str, group: str, **login: Any) -> Any:
    """The first record of a topic as a group reads it, or the error that the client is told."""
    more = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(config(broker, **login) | more)
    try:
        consumer.subscribe([topic])
        message = consumer.poll(SECONDS)
        assert message is not None, "nothing came"
        return message.error() or message.value()
    finally:
        consumer.close()
