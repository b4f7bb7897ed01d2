"""The wire: every API and version that is served, against kio's own reader and writer."""

from __future__ import annotations

import io
import struct
from dataclasses import fields
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from streamlog.broker import apis, wire
from streamlog.broker.decode import MAX_ENTRIES
from tests.broker.messages import EVERY, as_body, parts, request_frame, sample

SAMPLES = 6


def each_schema(entity: Any) -> Any:
    """A schema and all schemas in it."""
    yield entity
    for field in fields(entity):
        item = parts(field.type)[2]
        if hasattr(item, "__flexible__"):
            yield from each_schema(item)


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_a_request_is_read_as_it_was_written(api: int, version: int) -> None:
    rng = Random(f"{api} {version}")
    schema: Any = load_request_schema(api, version)
    for number in range(SAMPLES):
        body = sample(schema, rng, full=number == 0)
        by_kio = io.BytesIO()
        entity_writer(schema)(by_kio, body)
        frame = request_frame(api, version, body)
        # Our test's own writer and kio's agree, but for tags that hold a default: kio leaves these out.
        if not any("tag" in f.metadata for part in each_schema(schema) for f in fields(part)):
            assert frame.endswith(by_kio.getvalue())

        request = wire.parse_request(frame)

        assert (request.api, request.version, request.correlation_id) == (api, version, 7)
        if schema.__header_schema__.__version__ >= 1:
            assert request.client_id == "tester"
        assert request.body == body


@pytest.mark.parametrize(
    ("api", "version"), [each for each in EVERY if load_request_schema(*each).__flexible__]
)
def test_tagged_fields_of_the_future_are_skipped_wherever_they_stand(
    api: int, version: int
) -> None:
    rng = Random(f"{api} {version} future")
    for number in range(SAMPLES):
        body = sample(load_request_schema(api, version), rng, full=number == 0)

        request = wire.parse_request(request_frame(api, version, body, future_tags=True))

        assert request.body == body
        assert request.client_id == "tester"


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_a_response_is_written_byte_by_byte_as_kio_writes_it(api: int, version: int) -> None:
    rng = Random(f"{api} {version} response")
    schema: Any = load_response_schema(api, version)
    for number in range(SAMPLES):
        body = sample(schema, rng, full=number == 0)
        by_kio = io.BytesIO()
        entity_writer(schema)(by_kio, body)

        frame = wire.write_response(api, version, 41, as_body(body))

        size, correlation = struct.unpack_from(">ii", frame)
        # The answer to ApiVersions has no tags in its header, in any version.
        header = 9 if schema.__flexible__ and api != apis.API_VERSIONS else 8
        assert (size, correlation) == (len(frame) - 4, 41)
        assert frame[header:] == by_kio.getvalue()
        assert entity_reader(schema)(frame, header) == (body, len(frame) - header)


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_a_response_of_which_nothing_is_known_can_be_read(api: int, version: int) -> None:
    schema: Any = load_response_schema(api, version)
    frame = wire.write_response(api, version, 1, {})
    header = 9 if schema.__flexible__ and api != apis.API_VERSIONS else 8
    read, size = entity_reader(schema)(frame, header)
    assert size == len(frame) - header
    for field in fields(schema):
        value = getattr(read, field.name)
        assert not value or value in (-1, timedelta(milliseconds=-1)) or "default" in repr(field)


def test_null_and_empty_are_told_apart() -> None:
    def configs(value: Any) -> Any:
        topic = {"name": "a", "configs": value}
        frame = wire.write_response(apis.CREATE_TOPICS, 7, 1, {"topics": [topic]})
        schema: Any = load_response_schema(apis.CREATE_TOPICS, 7)
        return entity_reader(schema)(frame, 9)[0].topics[0].configs

    assert configs(None) is None
    assert configs([]) == ()


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x03\x00\x0c", bytes(7)])
def test_too_short_a_frame_is_refused(data: bytes) -> None:
    with pytest.raises(wire.MalformedRequestError):
        wire.parse_request(data)


def test_an_unknown_api_or_version_is_refused_with_its_correlation_id() -> None:
    for api, version in ((9_999, 0), (apis.PRODUCE, 2), (apis.METADATA, 99), (-1, 0)):
        with pytest.raises(wire.UnsupportedVersionError) as caught:
            wire.parse_request(struct.pack(">hhi", api, version, 77) + bytes(20))
        assert caught.value.correlation_id == 77


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_a_damaged_request_is_refused_or_read_but_never_worse(api: int, version: int) -> None:
    """Cut short, bytes changed, bytes put in: nothing but MalformedRequestError comes of it."""
    rng = Random(f"{api} {version} damage")
    schema = load_request_schema(api, version)
    for _ in range(60):
        frame = bytearray(
            request_frame(api, version, sample(schema, rng), future_tags=schema.__flexible__)
        )
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(8, len(frame) + 1)
            match rng.randrange(3):
                case 0:
                    del frame[at:]
                case 1:
                    frame[at : at + 1] = rng.randbytes(1)
                case _:
                    frame[at:at] = rng.choice([b"\xff" * 5, b"\x7f\xff\xff\xff", rng.randbytes(3)])
        try:
            wire.parse_request(bytes(frame))
        except (wire.MalformedRequestError, wire.UnsupportedVersionError):
            pass


def test_what_an_array_claims_is_not_believed() -> None:
    """Four thousand million topics in five bytes: another reader ended the process for want of memory."""
    claim = struct.pack(">hhih", apis.METADATA, 9, 1, -1) + b"\x00" + b"\xff\xff\xff\xff\x0f"
    with pytest.raises(wire.MalformedRequestError, match="claims 4294967294 entries"):
        wire.parse_request(claim)


def test_the_entries_of_a_request_are_limited() -> None:
    """A frame of a hundred megabytes must not become gigabytes of small objects."""
    names = b"\x00\x00" * (MAX_ENTRIES + 1)
    count = struct.pack(">i", MAX_ENTRIES + 1)
    frame = struct.pack(">hhih", apis.METADATA, 1, 1, -1) + count + names
    with pytest.raises(wire.MalformedRequestError):
        wire.parse_request(frame)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(EVERY), st.binary(max_size=200))
def test_noise_is_refused_or_read(which: tuple[int, int], noise: bytes) -> None:
    try:
        wire.parse_request(struct.pack(">hhi", *which, 1) + noise)
    except wire.MalformedRequestError:
        pass


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_what_is_carried_inside_messages_round_trips(version: int) -> None:
    body = {"topics": ["a", "b"], "user_data": b"x", "generation_id": 3, "rack_id": "r1"}
    data = wire.write_data("consumer_protocol_subscription", version, body)
    read = wire.parse_data("consumer_protocol_subscription", version, data)
    assert read.topics == ("a", "b")
    assert read.user_data == b"x"
    with pytest.raises(wire.MalformedRequestError):
        wire.parse_data("consumer_protocol_subscription", version, data[:3])
