"""Messages of every API and version, filled by chance from a seed; and a writer of requests, written
apart from both kio's and ours, that can slip tagged fields of the future into every structure."""

from __future__ import annotations

import struct
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from random import Random
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from streamlog.broker.apis import APIS

EVERY = [
    (api, version)
    for api, served in sorted(APIS.items())
    for version in range(served.first, served.last + 1)
]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def parts(annotation: Any) -> tuple[bool, bool, Any]:
    """Of a field's annotation: is it an array, may it be null, and the type of an item."""
    array = optional = False
    for _ in range(3):
        if get_origin(annotation) is UnionType:
            optional = True
            annotation = next(arg for arg in get_args(annotation) if arg is not NoneType)
        elif get_origin(annotation) is tuple:
            array, annotation = True, get_args(annotation)[0]
    return array, optional, annotation


def sample(schema: Any, rng: Random, *, full: bool = False) -> Any:
    """An entity of kio with chance values; `full` has no nulls and at least one entry in each array."""
    return schema(**{field.name: _value(field, rng, full) for field in fields(schema)})


def _value(field: Any, rng: Random, full: bool) -> Any:
    array, optional, item = parts(field.type)
    kind = field.metadata.get("kafka_type")
    if optional and not full and kind not in ("uuid", "datetime_i64") and rng.random() < 0.3:
        return None
    if array:
        count = rng.randint(1 if full else 0, 2)
        return tuple(_item(item, kind, rng, full) for _ in range(count))
    return _item(item, kind, rng, full)


def _item(item: Any, kind: str | None, rng: Random, full: bool) -> Any:
    if kind is None:
        return sample(item, rng, full=full)
    if kind in _BITS:
        return rng.choice([0, -1, rng.randint(-(1 << _BITS[kind]), (1 << _BITS[kind]) - 1)])
    values: dict[str, Any] = {
        "bool": rng.random() < 0.5,
        "bytes": rng.randbytes(rng.choice([0, 3, 200])),
        "datetime_i64": _EPOCH + timedelta(milliseconds=rng.randint(0, 1 << 41)),
        "error_code": rng.choice(list(ErrorCode)),
        "float64": rng.random(),
        "records": rng.randbytes(rng.choice([0, 3, 200])),
        "string": rng.choice(["", "orders", "grün", "x" * 200]),
        "timedelta_i32": timedelta(milliseconds=rng.randint(-1, (1 << 31) - 1)),
        "timedelta_i64": timedelta(milliseconds=rng.randint(-1, 1 << 41)),
        "uint16": rng.randint(0, (1 << 16) - 1),
        "uuid": UUID(bytes=rng.randbytes(16), version=4),
    }
    return values[kind]


def as_body(value: Any) -> Any:
    """An entity as a handler would give it: a dictionary, times as numbers."""
    if isinstance(value, tuple):
        return [as_body(item) for item in value]
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(milliseconds=1)
    if hasattr(value, "__flexible__"):
        values = {field: getattr(value, field.name) for field in fields(value)}
        # Nobody gives a tagged structure for the sake of its defaults.
        return {
            field.name: as_body(value)
            for field, value in values.items()
            if "tag" not in field.metadata or value != field.default
        }
    return value


def request_frame(api: int, version: int, body: Any, *, future_tags: bool = False) -> bytes:
    """The frame of a request (without its length), of client "tester" and correlation id 7."""
    schema: Any = load_request_schema(api, version)
    out = bytearray(struct.pack(">hhi", api, version, 7))
    header = schema.__header_schema__
    if header.__version__ >= 1:
        out += struct.pack(">h", 6) + b"tester"
    if header.__version__ >= 2:
        out += _tags([], future_tags)
    out += _entity(body, future_tags)
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _tags(known: list[tuple[int, bytes]], future: bool) -> bytes:
    given = sorted([*known, *([(9_999, b"from the future"), (10_000, b"")] if future else [])])
    return _varint(len(given)) + b"".join(
        _varint(tag) + _varint(len(data)) + data for tag, data in given
    )


def _entity(entity: Any, future: bool) -> bytes:
    flexible = entity.__flexible__
    out = bytearray()
    tagged = []
    for field in fields(entity):
        value = getattr(entity, field.name)
        array, optional, _ = parts(field.type)
        kind = field.metadata.get("kafka_type")
        data = b""
        if array:
            size = -1 if value is None else len(value)
            data += _varint(size + 1) if flexible else struct.pack(">i", size)
            for item in value or ():
                data += _plain(item, kind, flexible, future)
        elif kind is None and optional:
            data += b"\xff" if value is None else b"\x01" + _entity(value, future)
        else:
            data += _plain(value, kind, flexible, future)
        if "tag" in field.metadata:
            tagged.append((int(field.metadata["tag"]), data))
        else:
            out += data
    return bytes(out) + (_tags(tagged, future) if flexible else b"")


def _plain(value: Any, kind: str | None, flexible: bool, future: bool) -> bytes:
    forms = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H"}
    forms |= {"timedelta_i32": "i", "timedelta_i64": "q", "datetime_i64": "q", "error_code": "h"}
    forms |= {"bool": "?", "float64": "d"}
    if kind is None:
        return _entity(value, future)
    if kind in forms:
        number = as_body(value)
        return struct.pack(">" + forms[kind], -1 if number is None else number)
    if kind == "uuid":
        return bytes(16) if value is None else bytes(value.bytes)
    data = value.encode() if isinstance(value, str) else value
    size = -1 if data is None else len(data)
    if flexible:
        return _varint(size + 1) + (data or b"")
    return struct.pack(">h" if kind == "string" else ">i", size) + (data or b"")
