"""A request that fails as a whole is answered with its error, whatever API and version it is of."""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from streamlog.broker import apis, wire
from streamlog.broker.call import Call, Peer
from streamlog.broker.cluster import BrokerInfo
from streamlog.broker.dispatch import HANDLERS
from streamlog.broker.failures import error_response
from streamlog.broker.kafka_errors import Code, KafkaError
from tests.broker.messages import EVERY, sample

ERROR = KafkaError(Code.KAFKA_STORAGE_ERROR, "the disk is full")
NODE = BrokerInfo(1, "127.0.0.1", 9092)
BROKER = SimpleNamespace(
    cluster=SimpleNamespace(brokers=lambda: [NODE], controller=NODE),
    log=SimpleNamespace(cluster_id="c", root="/root"),
)


def failed(api: int, version: int, body: Any, error: Exception = ERROR) -> tuple[Any, Peer]:
    """What a client reads, and the connection."""
    peer = Peer("127.0.0.1")
    call = Call(cast(Any, BROKER), peer, api, version, "", body)
    answer = error_response(call, error)
    if answer is None:
        return None, peer
    schema: Any = load_response_schema(api, version)
    frame = wire.write_response(api, version, 1, answer)
    header = 9 if schema.__flexible__ and api != apis.API_VERSIONS else 8
    read, size = entity_reader(schema)(frame, header)
    assert size == len(frame) - header
    return read, peer


def codes(entity: Any) -> list[int]:
    """All error codes in a message."""
    found: list[int] = []
    for field in fields(entity):
        value = getattr(entity, field.name)
        if field.name == "error_code":
            found.append(int(value))
        elif isinstance(value, tuple):
            for item in value:
                if hasattr(item, "__flexible__"):
                    found += codes(item)
    return found


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_every_api_and_version_tells_the_error(api: int, version: int) -> None:
    body = sample(load_request_schema(api, version), Random(api), full=True)
    if api == apis.PRODUCE:
        body = replace(body, acks=-1)

    answer, peer = failed(api, version, body)

    assert not peer.notes
    assert set(codes(answer)) == {Code.KAFKA_STORAGE_ERROR}


@pytest.mark.parametrize("api", sorted(apis.APIS))
def test_every_api_has_a_handler(api: int) -> None:
    assert api in HANDLERS


def test_each_partition_that_was_asked_for_is_answered() -> None:
    schema: Any = load_request_schema(apis.PRODUCE, 9)
    body = replace(sample(schema, Random(5), full=True), acks=-1)

    answer, _ = failed(apis.PRODUCE, 9, body)

    asked = [(t.name, p.index) for t in body.topic_data for p in t.partition_data]
    told = [(t.name, p.index) for t in answer.responses for p in t.partition_responses]
    assert told == asked
    first = answer.responses[0].partition_responses[0]
    assert first.base_offset == -1
    assert first.error_message == "the disk is full"


def test_without_acknowledgement_the_connection_ends() -> None:
    schema: Any = load_request_schema(apis.PRODUCE, 9)
    body = replace(sample(schema, Random(5), full=True), acks=0)
    answer, peer = failed(apis.PRODUCE, 9, body)
    assert answer is None
    assert peer.notes["close"]


@pytest.mark.parametrize("version", [0, 1, 12])
def test_metadata_of_all_topics_is_never_answered_by_none(version: int) -> None:
    schema: Any = load_request_schema(apis.METADATA, version)
    body = replace(sample(schema, Random(5), full=True), topics=() if version == 0 else None)
    answer, peer = failed(apis.METADATA, version, body)
    assert answer is None
    assert peer.notes["close"]


def test_an_error_that_is_not_ours_tells_no_details() -> None:
    schema: Any = load_request_schema(apis.CREATE_TOPICS, 7)
    body = sample(schema, Random(5), full=True)
    answer, _ = failed(apis.CREATE_TOPICS, 7, body, ValueError("/secret/path"))
    assert answer.topics[0].error_code == Code.UNKNOWN_SERVER_ERROR
    assert "secret" not in answer.topics[0].error_message
