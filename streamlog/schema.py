"""The shape of a record on storage: Arrow schema, Delta schema, format version.

Every partition table has exactly these columns, with reader version 1 and writer version 2 and no table
features, so that every Delta engine reads it. `timestamp` is UTC microseconds in the file and carries
Kafka's milliseconds.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

FORMAT_VERSION = 1

HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")

RECORD_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP_TYPE),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)

# Kafka's range: milliseconds from 1970; the upper end is the last year Delta engines can print.
MIN_TIMESTAMP_MS = 0
MAX_TIMESTAMP_MS = 253_402_300_799_999

_PRIMITIVES: dict[pa.DataType, str] = {
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    TIMESTAMP_TYPE: "timestamp",
}


def _delta_type(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return {
            "type": "array",
            "elementType": _delta_type(kind.value_type),
            "containsNull": True,
        }
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_delta_field(field) for field in kind]}
    return _PRIMITIVES[kind]


def _delta_field(field: pa.Field) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": _delta_type(field.type),
        "nullable": field.nullable,
        "metadata": {},
    }


def delta_schema(schema: pa.Schema) -> str:
    """An Arrow schema as Delta's `schemaString`."""
    fields = [_delta_field(field) for field in schema]
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


def same_columns(schema_string: str, expected: pa.Schema) -> bool:
    """Whether a table's `schemaString` still has the expected names and types, in order."""
    try:
        found = json.loads(schema_string)["fields"]
    except (ValueError, KeyError, TypeError):
        return False
    wanted = json.loads(delta_schema(expected))["fields"]
    return [_bare(field) for field in found] == [_bare(field) for field in wanted]


def _bare(value: Any) -> Any:
    """Drops what engines may lawfully add (column metadata) or render differently (nullability)."""
    if isinstance(value, dict):
        return {
            key: _bare(inner)
            for key, inner in value.items()
            if key not in ("metadata", "nullable", "containsNull")
        }
    if isinstance(value, list):
        return [_bare(inner) for inner in value]
    return value
