"""Kafka's messages as bytes: requests parsed, responses written. The only module that knows kio.

kio has the schema of every message and version. Its own reader and writer are not used: `decode` survives
whatever strangers send, `encode` takes plain dictionaries.

W1  A tagged field that the schema does not know is skipped (decode's R2).
W2  A handler names what it knows; a version takes the fields that it has (encode's E1).
W3  What a message held is in no error: it may have been a password.

Pure functions; any number of threads.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

from kio.index import load_entity_schema, load_request_schema, load_response_schema
from kio.static.constants import EntityType

from streamlog.broker.apis import API_VERSIONS, APIS
from streamlog.broker.decode import read
from streamlog.broker.encode import Body, writer
from streamlog.errors import StreamlogError

_HEADER_START = struct.Struct(">hhi")
_I32 = struct.Struct(">i")
# All that reading may raise (decode's R3).
_UNREADABLE = (ValueError, struct.error, IndexError, OverflowError)


class MalformedRequestError(StreamlogError):
    """Bytes that are no request; the connection is not worth keeping."""


class UnsupportedVersionError(StreamlogError):
    """A request of an API or a version that this broker does not serve."""

    kafka_code = 35

    def __init__(self, api: int, version: int, correlation_id: int) -> None:
        super().__init__(f"API {api} version {version} is not served here")
        self.api = api
        self.version = version
        self.correlation_id = correlation_id


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a client."""

    api: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any


def parse_request(frame: bytes) -> Request:
    """The request in a frame (without its length)."""
    try:
        api, version, correlation_id = _HEADER_START.unpack_from(frame)
    except struct.error:
        raise MalformedRequestError("a frame is too short for a request header") from None
    served = APIS.get(api)
    if served is None or not served.first <= version <= served.last:
        raise UnsupportedVersionError(api, version, correlation_id)
    schema = _request_schema(api, version)
    header_schema: Any = schema.__header_schema__
    try:
        header, used = read(header_schema, frame, 0)
        body, _ = read(schema, frame, used)
    except _UNREADABLE as error:
        raise _malformed(f"a request of API {api} version {version}", error) from None
    return Request(api, version, correlation_id, header.client_id, body)


def write_response(api: int, version: int, correlation_id: int, body: Body) -> bytes:
    """The frame of a response, its length included."""
    schema = _response_schema(api, version)
    out = bytearray(4)
    out += _I32.pack(correlation_id)
    # The response to ApiVersions has the old header always: its reader does not know yet what we speak.
    if schema.__flexible__ and api != API_VERSIONS:
        out.append(0)
    writer(schema)(out, body)
    _I32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def write_data(name: str, version: int, body: Body) -> bytes:
    """A structure that is carried inside a message, such as a consumer's subscription."""
    schema = load_entity_schema(name, version, EntityType.data)
    out = bytearray()
    writer(schema)(out, body)
    return bytes(out)


def parse_data(name: str, version: int, data: bytes) -> Any:
    """Reads what `write_data` writes."""
    try:
        return read(load_entity_schema(name, version, EntityType.data), data, 0)[0]
    except _UNREADABLE as error:
        raise _malformed(name, error) from None


def _malformed(what: str, error: Exception) -> MalformedRequestError:
    """W3. The text of a UnicodeDecodeError names a byte, its repr and its chain hold the message."""
    return MalformedRequestError(f"{what} cannot be read: {type(error).__name__}: {error!s:.200}")


# kio looks a schema up by its module's name each time, which takes longer than to read a small message.


@cache
def _request_schema(api: int, version: int) -> Any:
    return load_request_schema(api, version)


@cache
def _response_schema(api: int, version: int) -> Any:
    return load_response_schema(api, version)
