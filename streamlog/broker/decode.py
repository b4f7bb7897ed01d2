"""Structures of Kafka's messages read from bytes that anybody may have sent, by readers made once a schema.

kio has a reader of its own, in Rust and faster (1 us for a Produce request, 10 us here), but it must not be
given bytes of strangers: for an array that claims four thousand million entries it asks for the memory, and
the whole process is aborted when there is none; and it refuses tagged fields that it does not know.

R1  Nothing is allocated for what the bytes only claim: a length is compared with what is left first, and
    the entries of all arrays of a message together are limited.
R2  A tagged field that the schema does not know is skipped, as KIP-482 has it.
R3  Whatever the bytes are, reading gives an entity of the schema or raises ValueError, struct.error,
    IndexError or OverflowError.

Pure functions; any number of threads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from dataclasses import MISSING, fields
from datetime import timedelta
from functools import cache
from typing import Any, Final, cast
from uuid import UUID

from streamlog.broker.shapes import Shape, shape_of

MAX_ENTRIES: Final = 500_000

# Bytes, position and the budget of entries (a list of one number, counted down); value and new position.
_Read = Callable[[bytes, int, list[int]], tuple[Any, int]]

_I8, _I16, _I32, _I64 = (struct.Struct(f">{code}") for code in "bhiq")
_NUMBERS: Final = {
    "int8": _I8,
    "int16": _I16,
    "int32": _I32,
    "int64": _I64,
    "uint16": struct.Struct(">H"),
    "uint32": struct.Struct(">I"),
    "float64": struct.Struct(">d"),
}
_ZERO_UUID: Final = bytes(16)
_VARINT_BITS: Final = 35


def read(schema: Any, data: bytes, at: int) -> tuple[Any, int]:
    """An entity of `schema`, and where the next thing begins."""
    return _entity(schema)(data, at, [MAX_ENTRIES])


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= _VARINT_BITS:
            raise ValueError("a variable-length number does not end")


def _slice(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if size < 0 or end > len(data):
        raise ValueError(f"{size} bytes are claimed where {len(data) - at} are left")
    return data[at:end], end


def _number(form: struct.Struct) -> _Read:
    unpack, size = form.unpack_from, form.size

    def read_number(data: bytes, at: int, _: list[int]) -> tuple[Any, int]:
        return unpack(data, at)[0], at + size

    return read_number


def _duration(form: struct.Struct) -> _Read:
    unpack, size = form.unpack_from, form.size

    def read_duration(data: bytes, at: int, _: list[int]) -> tuple[Any, int]:
        return timedelta(milliseconds=unpack(data, at)[0]), at + size

    return read_duration


def _bool(data: bytes, at: int, _: list[int]) -> tuple[Any, int]:
    return data[at] != 0, at + 1


def _uuid(data: bytes, at: int, _: list[int]) -> tuple[Any, int]:
    raw, at = _slice(data, at, 16)
    return None if raw == _ZERO_UUID else UUID(bytes=raw), at


def _sized(length: struct.Struct | None, *, text: bool, optional: bool) -> _Read:
    """A string or bytes; without a `length`, that is a variable-length number and one too high."""

    def read_sized(data: bytes, at: int, _: list[int]) -> tuple[Any, int]:
        if length is None:
            size, at = _varint(data, at)
            size -= 1
        else:
            size = length.unpack_from(data, at)[0]
            at += length.size
        if size == -1 and optional:
            return None, at
        raw, at = _slice(data, at, size)
        return raw.decode() if text else raw, at

    return read_sized


def _array(item: _Read, *, flexible: bool, optional: bool) -> _Read:
    def read_array(data: bytes, at: int, budget: list[int]) -> tuple[Any, int]:
        if flexible:
            count, at = _varint(data, at)
            count -= 1
        else:
            count = _I32.unpack_from(data, at)[0]
            at += 4
        if count == -1 and optional:
            return None, at
        budget[0] -= count
        # An entry takes a byte at least.
        if not 0 <= count <= len(data) - at or budget[0] < 0:
            raise ValueError(
                f"an array claims {count} entries where {len(data) - at} bytes are left"
            )
        entries = []
        for _ in range(count):
            entry, at = item(data, at, budget)
            entries.append(entry)
        return tuple(entries), at

    return read_array


def _nullable(item: _Read) -> _Read:
    def read_nullable(data: bytes, at: int, budget: list[int]) -> tuple[Any, int]:
        (there,) = _I8.unpack_from(data, at)
        return (None, at + 1) if there < 0 else item(data, at + 1, budget)

    return read_nullable


def _primitive(kind: str, *, flexible: bool, optional: bool) -> _Read:
    if kind in _NUMBERS:
        return _number(_NUMBERS[kind])
    if kind in ("timedelta_i32", "timedelta_i64"):
        return _duration(_I32 if kind == "timedelta_i32" else _I64)
    if kind == "bool":
        return _bool
    if kind == "uuid":
        return _uuid
    if kind == "string":
        return _sized(None if flexible else _I16, text=True, optional=optional)
    if kind in ("bytes", "records"):
        return _sized(None if flexible else _I32, text=False, optional=optional)
    raise NotImplementedError(f"no reader for {kind}")


def _field(field: Any, shape: Shape, *, flexible: bool) -> _Read:
    if shape.entity is not None:
        item = _entity(shape.entity)
    else:
        kind = str(field.metadata["kafka_type"])
        item = _primitive(kind, flexible=flexible, optional=shape.optional and not shape.array)
    if shape.array:
        return _array(item, flexible=flexible, optional=shape.optional)
    return _nullable(item) if shape.entity is not None and shape.optional else item


def _missing(field: Any, shape: Shape) -> Any:
    """What a tagged field is that was not sent."""
    if field.default is not MISSING:
        return field.default
    if shape.array:
        return ()
    if shape.entity is not None:
        nested = fields(shape.entity)
        return shape.entity(
            **{each.name: _missing(each, shape_of(cast(Hashable, each.type))) for each in nested}
        )
    kind = field.metadata["kafka_type"]
    zeros = {"string": "", "bytes": b"", "bool": False, "uuid": None}
    if kind.startswith("timedelta"):
        return timedelta(0)
    return zeros.get(kind, 0)


@cache
def _entity(schema: Any) -> _Read:
    flexible: bool = schema.__flexible__
    plain: list[tuple[str, _Read]] = []
    tagged: dict[int, tuple[str, _Read]] = {}
    missing: dict[str, Any] = {}
    for field in fields(schema):
        shape = shape_of(cast(Hashable, field.type))
        # A client's id in the header is in the old form always: whoever reads it knows no version yet.
        compact = flexible and field.name != "client_id"
        reader = _field(field, shape, flexible=compact)
        if "tag" in field.metadata:
            tagged[int(field.metadata["tag"])] = field.name, reader
            missing[field.name] = _missing(field, shape)
        else:
            plain.append((field.name, reader))

    def read_entity(data: bytes, at: int, budget: list[int]) -> tuple[Any, int]:
        values: dict[str, Any] = missing.copy()
        for name, reader in plain:
            values[name], at = reader(data, at, budget)
        if flexible:
            count, at = _varint(data, at)
            for _ in range(count):
                tag, at = _varint(data, at)
                size, at = _varint(data, at)
                end = _slice_end(data, at, size)
                if tag in tagged:
                    name, reader = tagged[tag]
                    values[name], at = reader(data, at, budget)
                    if at != end:
                        raise ValueError(f"tag {tag} has {size} bytes, but not as many were read")
                at = end
        return schema(**values), at

    return read_entity


def _slice_end(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise ValueError(f"a tag claims {size} bytes where {len(data) - at} are left")
    return at + size
