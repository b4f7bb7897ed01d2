"""Kafka's messages as bytes: requests parsed, responses written. The only module that knows kio.

kio has the schema of every message and version, and a parser in Rust (0.9 us for a Produce request). Two
things are done here instead:

W1  A tagged field that the schema does not know is skipped, as KIP-482 has it; kio raises KeyError. Only
    then is a request read a second time, field by field, by `_Slow`.
W2  Responses are written from plain dictionaries: a handler names what it knows, a version takes the
    fields that it has, and the rest is zero, empty or null. kio would have us build a data class a version
    first, which costs more than the writing (4 and 11 us for a Produce response; this takes 5).

Pure functions; any number of threads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin
from uuid import UUID

from kio.index import load_entity_schema, load_request_schema, load_response_schema
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.serial.readers import read_unsigned_varint
from kio.static.constants import EntityType

from streamlog.broker.apis import API_VERSIONS, APIS
from streamlog.errors import StreamlogError

Body = Mapping[str, Any]
_Write = Callable[[bytearray, Any], None]

_I8, _I16, _I32, _I64 = (struct.Struct(f">{code}") for code in "bhiq")
_U16, _U32, _F64 = (struct.Struct(f">{code}") for code in "HId")
_HEADER_START = struct.Struct(">hhi")
_ZERO_UUID = bytes(16)


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
    schema: Any = load_request_schema(api, version)
    header_schema: Any = schema.__header_schema__
    try:
        header, used = _read(header_schema, frame, 0)
        body, _ = _read(schema, frame, used)
    except (SerialError, ValueError, struct.error, IndexError, OverflowError, TypeError) as error:
        raise MalformedRequestError(
            f"a request of API {api} version {version} cannot be read: {error!r}"
        ) from error
    return Request(api, version, correlation_id, header.client_id, body)


def write_response(api: int, version: int, correlation_id: int, body: Body) -> bytes:
    """The frame of a response, its length included."""
    schema: Any = load_response_schema(api, version)
    out = bytearray(4)
    out += _I32.pack(correlation_id)
    # The response to ApiVersions has the old header always: its reader does not know yet what we speak.
    if schema.__flexible__ and api != API_VERSIONS:
        out.append(0)
    _writer(schema)(out, body)
    _I32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def write_data(name: str, version: int, body: Body) -> bytes:
    """A structure that is carried inside a message, such as a consumer's subscription."""
    schema = load_entity_schema(name, version, EntityType.data)
    out = bytearray()
    _writer(schema)(out, body)
    return bytes(out)


def parse_data(name: str, version: int, data: bytes) -> Any:
    """Reads what `write_data` writes."""
    try:
        return _read(load_entity_schema(name, version, EntityType.data), data, 0)[0]
    except (SerialError, ValueError, struct.error, IndexError, KeyError) as error:
        raise MalformedRequestError(f"{name} cannot be read: {error!r}") from error


# Reading


def _read(schema: Any, data: bytes, at: int) -> tuple[Any, int]:
    """An entity, and where the next thing begins."""
    try:
        entity, size = entity_reader(schema)(data, at)
    except KeyError:
        return _Slow(data, at).entity(schema)
    return entity, at + size


class _Slow:
    """A request read field by field, for the sake of tags that nobody here knows (W1)."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def entity(self, schema: Any) -> tuple[Any, int]:
        return self._entity(schema), self._at

    def _entity(self, schema: Any) -> Any:
        from kio.serial import _parse

        given: dict[str, Any] = {}
        tagged: dict[int, Any] = {}
        for field in fields(schema):
            shape = _shape(cast(Hashable, field.type))
            tag = field.metadata.get("tag")
            if tag is not None:
                tagged[int(tag)] = (field, shape)
            elif shape.entity is None:
                header = schema in (HeaderV1, HeaderV2)
                given[field.name] = self._take(
                    _parse.get_field_reader(schema, field, header, False)
                )
            else:
                given[field.name] = self._nested(schema, shape)
        if schema.__flexible__:
            given |= self._tags(schema, tagged)
        return schema(**given)

    def _nested(self, schema: Any, shape: _Shape) -> Any:
        if not shape.array:
            if shape.optional and self._byte() < 0:
                return None
            return self._entity(shape.entity)
        count = self._take(read_unsigned_varint) - 1 if schema.__flexible__ else self._int32()
        if count > len(self._data):
            raise ValueError(f"an array of {count} entries in {len(self._data)} bytes")
        return None if count < 0 else tuple(self._entity(shape.entity) for _ in range(count))

    def _tags(self, schema: Any, tagged: Mapping[int, Any]) -> dict[str, Any]:
        from kio.serial import _parse
        from kio.serial._implicit_defaults import get_tagged_field_default

        found: dict[str, Any] = {}
        for field, _ in tagged.values():
            missing = field.default is MISSING
            found[field.name] = get_tagged_field_default(field) if missing else field.default
        for _ in range(self._take(read_unsigned_varint)):
            tag = self._take(read_unsigned_varint)
            size = self._take(read_unsigned_varint)
            end = self._at + size
            if end > len(self._data):
                raise ValueError(f"tag {tag} claims {size} bytes")
            if tag in tagged:
                field, shape = tagged[tag]
                if shape.entity is None:
                    reader = _parse.get_field_reader(schema, field, False, True)
                    found[field.name] = self._take(reader)
                else:
                    found[field.name] = self._nested(schema, shape)
            self._at = end
        return found

    def _take(self, reader: Any) -> Any:
        value, size = reader(self._data, self._at)
        self._at += size
        return value

    def _byte(self) -> int:
        (value,) = _I8.unpack_from(self._data, self._at)
        self._at += 1
        return int(value)

    def _int32(self) -> int:
        (value,) = _I32.unpack_from(self._data, self._at)
        self._at += 4
        return int(value)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a field's annotation says."""

    array: bool
    optional: bool
    entity: Any


@cache
def _shape(annotation: Any) -> _Shape:
    optional = array = False
    if get_origin(annotation) is UnionType:
        optional = NoneType in get_args(annotation)
        annotation = next(arg for arg in get_args(annotation) if arg is not NoneType)
    if get_origin(annotation) is tuple:
        array = True
        annotation = get_args(annotation)[0]
        if get_origin(annotation) is UnionType:
            optional = optional or NoneType in get_args(annotation)
            annotation = next(arg for arg in get_args(annotation) if arg is not NoneType)
    return _Shape(array, optional, annotation if hasattr(annotation, "__flexible__") else None)


# Writing


def _varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _number(form: struct.Struct) -> _Write:
    pack = form.pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _write_bool(out: bytearray, value: Any) -> None:
    out.append(1 if value else 0)


def _write_uuid(out: bytearray, value: Any) -> None:
    if isinstance(value, UUID):
        value = value.bytes
    out += value or _ZERO_UUID


def _compact(out: bytearray, value: Any) -> None:
    if value is None:
        out.append(0)
        return
    data = value.encode() if isinstance(value, str) else value
    _varint(out, len(data) + 1)
    out += data


def _legacy_text(out: bytearray, value: Any) -> None:
    if value is None:
        out += b"\xff\xff"
        return
    data = value.encode()
    out += _I16.pack(len(data))
    out += data


def _legacy_bytes(out: bytearray, value: Any) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
        return
    out += _I32.pack(len(value))
    out += value


_NUMBERS: dict[str, struct.Struct] = {
    "int8": _I8,
    "int16": _I16,
    "int32": _I32,
    "int64": _I64,
    "uint16": _U16,
    "uint32": _U32,
    "float64": _F64,
    "error_code": _I16,
    "timedelta_i32": _I32,
    "timedelta_i64": _I64,
    "datetime_i64": _I64,
}


def _primitive(kind: str, flexible: bool) -> tuple[_Write, Any]:
    """How a value is written, and what stands for a missing one that may not be null."""
    if kind in _NUMBERS:
        return _number(_NUMBERS[kind]), 0
    if kind == "bool":
        return _write_bool, False
    if kind == "uuid":
        return _write_uuid, _ZERO_UUID
    if kind == "string":
        return (_compact if flexible else _legacy_text), ""
    if kind in ("bytes", "records"):
        return (_compact if flexible else _legacy_bytes), b""
    raise NotImplementedError(f"no writer for {kind}")


def _array(item: _Write, flexible: bool) -> _Write:
    def write(out: bytearray, value: Sequence[Any] | None) -> None:
        if flexible:
            _varint(out, 0 if value is None else len(value) + 1)
        else:
            out += _I32.pack(-1 if value is None else len(value))
        for entry in value or ():
            item(out, entry)

    return write


def _default(field: Any, shape: _Shape, kind: str | None, zero: Any) -> Any:
    """What a version writes for a field that the handler did not name."""
    if field.default is not MISSING:
        value = field.default
        # Times are numbers here, as on the wire; -1 is Kafka's "no time".
        if kind is not None and kind.startswith(("timedelta", "datetime")):
            return -1 if value is None else int(value.total_seconds() * 1000)
        return value
    if shape.array:
        return ()
    return None if shape.optional else zero


@cache
def _writer(schema: Any) -> _Write:
    flexible: bool = schema.__flexible__
    plain: list[tuple[str, _Write, Any]] = []
    tagged: list[tuple[int, str, _Write, Any]] = []
    for field in fields(schema):
        shape = _shape(cast(Hashable, field.type))
        kind = field.metadata.get("kafka_type")
        zero: Any = {}
        if shape.entity is not None:
            write = _writer(shape.entity)
        else:
            write, zero = _primitive(str(kind), flexible)
        tag = field.metadata.get("tag")
        if shape.array:
            write = _array(write, flexible)
        elif shape.entity is not None and shape.optional and tag is None:
            write = _nullable(write)
        default = _default(field, shape, kind, zero)
        if kind == "datetime_i64" and default is None:
            default = -1
        if tag is None:
            plain.append((field.name, write, default))
        else:
            tagged.append((int(tag), field.name, write, default))
    tagged.sort(key=lambda entry: entry[0])

    def write_body(out: bytearray, body: Body) -> None:
        get = body.get
        for name, write, default in plain:
            write(out, get(name, default))
        if not flexible:
            return
        given = [entry for entry in tagged if get(entry[1], entry[3]) != entry[3]]
        _varint(out, len(given))
        for tag, name, write, _ in given:
            inner = bytearray()
            write(inner, body[name])
            _varint(out, tag)
            _varint(out, len(inner))
            out += inner

    return write_body


def _nullable(write: _Write) -> _Write:
    def write_or_null(out: bytearray, value: Any) -> None:
        if value is None:
            out += b"\xff"
            return
        out += b"\x01"
        write(out, value)

    return write_or_null
