"""Requests made by hand, for what Kafka's clients do not show: leader epochs, racks, drained answers."""

from __future__ import annotations

import socket
import struct
from typing import Any, NamedTuple

from kio.index import load_response_schema
from kio.serial import entity_reader

from streamlog.broker import apis

SECONDS = 30.0
METADATA_VERSION = 7


class Seen(NamedTuple):
    """What one broker's metadata says."""

    brokers: dict[int, tuple[str, int, str | None]]
    controller: int
    leaders: tuple[int, ...]
    epoch: int


def metadata_frame(correlation_id: int = 1) -> bytes:
    """A Metadata request for all topics, its length included."""
    client = b"test"
    body = struct.pack(">hhih", apis.METADATA, METADATA_VERSION, correlation_id, len(client))
    body += client + struct.pack(">i?", -1, False)
    return struct.pack(">i", len(body)) + body


def read_frame(connection: socket.socket) -> bytes:
    """One response, without its length."""
    head = _exactly(connection, 4)
    return _exactly(connection, struct.unpack(">i", head)[0])


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError(f"the connection ended after {len(data)} of {size} bytes")
        data += part
    return data


def parse_metadata(frame: bytes) -> Any:
    schema: Any = load_response_schema(apis.METADATA, METADATA_VERSION)
    return entity_reader(schema)(frame, 4)[0]


def ask(address: str, topic: str) -> Seen:
    """What a broker says about the brokers and one topic."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS) as connection:
        connection.sendall(metadata_frame())
        found = parse_metadata(read_frame(connection))
    entry = next(entry for entry in found.topics if entry.name == topic)
    partitions = sorted(entry.partitions, key=lambda part: part.partition_index)
    epochs = {int(part.leader_epoch) for part in partitions}
    assert len(epochs) == 1
    return Seen(
        {int(b.node_id): (b.host, int(b.port), b.rack) for b in found.brokers},
        int(found.controller_id),
        tuple(int(part.leader_id) for part in partitions),
        epochs.pop(),
    )
