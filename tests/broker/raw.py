"""One request to a broker by a plain socket, for what no client can be made to send."""

from __future__ import annotations

import socket
import struct
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from streamlog.broker import apis
from tests.broker.messages import request_frame


def request(api: int, version: int, **fields: Any) -> Any:
    """A request's body; lists of dictionaries become the structures that they stand for."""
    return _built(load_request_schema(api, version), fields)


def _built(schema: Any, given: dict[str, Any]) -> Any:
    from tests.broker.messages import parts

    values = {}
    for name, value in given.items():
        item = parts(schema.__dataclass_fields__[name].type)[2]
        if isinstance(value, list):
            values[name] = tuple(_built(item, v) if isinstance(v, dict) else v for v in value)
        else:
            values[name] = value
    return schema(**values)


def ask(address: str, api: int, version: int, body: Any) -> Any:
    """The answer to a request, read by kio; None if the connection was closed instead."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        frame = request_frame(api, version, body)
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        with connection.makefile("rb") as stream:
            head = stream.read(4)
            if not head:
                return None
            data = stream.read(struct.unpack(">i", head)[0])
    schema: Any = load_response_schema(api, version)
    header = 5 if schema.__flexible__ and api != apis.API_VERSIONS else 4
    answer, size = entity_reader(schema)(data, header)
    assert size == len(data) - header
    return answer
