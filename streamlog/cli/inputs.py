"""What one line of input means: a value, a key and a value, or a JSON object.

Pure functions from bytes to `Outgoing`; what is wrong with a line is a `ValueError` whose message
makes sense after "line 7: ". The JSON form is the one `consume --json` prints, so topics can be
copied through a pipe.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from streamlog.display import preview
from streamlog.model import Header

# What `consume --json` prints beside the record itself: where it came from.
_PROVENANCE = frozenset({"topic", "offset", "tstype"})
_FIELDS = frozenset({"key", "value", "headers", "partition", "timestamp"})
_ALIASES = {"payload": "value", "ts": "timestamp"}

MIN_TIMESTAMP_MS = 0
MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The end of the year 9999, beyond which neither Python nor SQL engines have a date."""


class Outgoing(NamedTuple):
    """A record to be sent; what is None here, the line says nothing about (but key and value)."""

    key: bytes | None
    value: bytes | None
    headers: list[Header] | None = None
    partition: int | None = None
    timestamp: int | None = None


Parser = Callable[[bytes], Outgoing | None]
"""Makes a record of a line; None means there is nothing in it to send."""


def line_parser(*, key: bytes | None, separator: bytes | None, empty_is_null: bool) -> Parser:
    """Lines are values, or, with a separator, a key and a value."""

    def value_of(data: bytes) -> bytes | None:
        return None if empty_is_null and not data else data

    if separator is None:
        return lambda line: Outgoing(key, value_of(line))
    parted_by = separator

    def keyed(line: bytes) -> Outgoing:
        left, found, right = line.partition(parted_by)
        if not found:
            raise ValueError(f"no key separator '{preview(parted_by)}' in '{preview(line, 40)}'")
        return Outgoing(left, value_of(right))

    return keyed


def json_parser(*, key: bytes | None) -> Parser:
    """Lines are objects with key, value, headers, partition, timestamp; blank lines are skipped."""

    def parse(line: bytes) -> Outgoing | None:
        if not line.strip():
            return None
        fields = _object(line)
        return Outgoing(
            _binary("key", fields["key"]) if "key" in fields else key,
            _binary("value", fields.get("value")),
            _headers(fields.get("headers")),
            _integer("partition", fields.get("partition")),
            _timestamp(fields.get("timestamp")),
        )

    return parse


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of "1700000000000" or of an ISO time (UTC unless it names its zone).

    >>> parse_time("2023-11-14T22:13:20Z"), parse_time("2023-11-14 22:13:20"), parse_time("17")
    (1700000000000, 1700000000000, 17)
    """
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        # The length first: int() of a million digits is slow, and no such time exists.
        return check_time(int(text) if len(text) <= 20 else MAX_TIMESTAMP_MS + 1, text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: give milliseconds since 1970 or ISO 8601, "
            "such as 2026-01-31T12:00:00Z"
        ) from None
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    delta = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return check_time(
        (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000, text
    )


def check_time(timestamp_ms: int, shown: object) -> int:
    """The same timestamp, or a `ValueError` if no calendar has it."""
    if not MIN_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise ValueError(
            f"timestamp {shown} is out of range: milliseconds since 1970 run from "
            f"{MIN_TIMESTAMP_MS} to {MAX_TIMESTAMP_MS} (the year 9999)"
        )
    return timestamp_ms


def parse_header(text: str) -> Header:
    """The header of `name=value`; without `=` the value is null.

    >>> parse_header("a=b=c"), parse_header("flag")
    (('a', b'b=c'), ('flag', None))
    """
    name, found, value = text.partition("=")
    if not name:
        raise ValueError(f"header {text!r} has no name: write NAME=VALUE")
    return name, value.encode("utf-8", "surrogateescape") if found else None


def _object(line: bytes) -> dict[str, object]:
    try:
        data = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON: {error.msg} at column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise ValueError(f"invalid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(
            f"a JSON object is needed, such as "
            f'{{"key": "k", "value": "v"}}, not {preview(line, 40)}'
        )
    fields: dict[str, object] = {}
    for name, value in data.items():
        field = _ALIASES.get(name, name)
        if field in _PROVENANCE:
            continue
        if field not in _FIELDS:
            known = sorted(_FIELDS)
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ValueError(
                f"unknown field '{preview(name.encode('utf-8', 'replace'), 40)}': {hint}"
            )
        if field in fields:
            raise ValueError(f"field {field!r} is given twice")
        fields[field] = value
    return fields


def _binary(name: str, value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{name} holds half a surrogate pair, which is no character") from None
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{name} is not valid base64: {error}") from None
    raise ValueError(
        f'{name} must be a string, null or {{"base64": "..."}}, not {_kind(value)}'
        " (to send JSON itself, write it as a string)"
    )


def _headers(value: object) -> list[Header] | None:
    if value is None:
        return None
    if isinstance(value, dict):
        pairs: list[tuple[object, object]] = list(value.items())
    elif isinstance(value, list) and all(isinstance(x, list) and len(x) == 2 for x in value):
        pairs = [(x[0], x[1]) for x in value]
    elif isinstance(value, list) and len(value) % 2 == 0:
        # kcat prints them flat: name, value, name, value.
        pairs = list(zip(value[::2], value[1::2], strict=True))
    else:
        raise ValueError(
            'headers must be an object {"name": "value"}, pairs [["name", "value"]] '
            'or a flat list ["name", "value"]'
        )
    headers: list[Header] = []
    for name, content in pairs:
        if not isinstance(name, str):
            raise ValueError(f"a header's name must be a string, not {_kind(name)}")
        headers.append((name, _binary(f"header {name!r}", content)))
    return headers


def _integer(name: str, value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} must be a whole number, not {_kind(value)}")


def _timestamp(value: object) -> int | None:
    if isinstance(value, str):
        return parse_time(value)
    number = _integer("timestamp", value)
    return None if number is None else check_time(number, number)


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return kinds.get(type(value), "null" if value is None else "a number")
