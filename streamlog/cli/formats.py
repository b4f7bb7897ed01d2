r"""How a consumed record is printed: kcat's format tokens, or one JSON object a line.

Tokens: %t topic, %p partition, %o offset, %k key, %s value, %T timestamp in milliseconds, %h
headers (name=value,…), %K and %S the length of key and value (-1 for null), %R the value's length
as four bytes (big endian), %% a percent sign. Escapes: \n \r \t \0 \\ and \xNN. Keys and values are
printed as the bytes they are.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

from streamlog.model import Header, Record

DEFAULT_FORMAT = "%s\\n"

Render = Callable[[Record], bytes]

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def unescape(text: str) -> bytes:
    r"""The bytes of a text with \n, \t, \r, \0, \\ and \xNN in it.

    >>> unescape(r"a\tb\x00")
    b'a\tb\x00'
    """
    parts: list[bytes] = []
    position = 0
    while position < len(text):
        character = text[position]
        if character != "\\":
            parts.append(character.encode("utf-8", "surrogateescape"))
            position += 1
            continue
        code = text[position + 1 : position + 2]
        digits = text[position + 2 : position + 4]
        if code in _ESCAPES:
            parts.append(_ESCAPES[code])
            position += 2
        elif (
            code == "x" and len(digits) == 2 and all(c in "0123456789abcdefABCDEF" for c in digits)
        ):
            parts.append(bytes.fromhex(digits))
            position += 4
        else:
            raise ValueError(
                f"unknown escape '\\{code}' in {text!r}: use \\n \\r \\t \\0 \\\\ or \\xNN"
            )
    return b"".join(parts)


def compile_format(text: str, *, null: bytes = b"") -> Render:
    r"""A function that prints a record by kcat's tokens; `null` stands for a null key or value.

    >>> record = Record("orders", 0, 7, 1700000000000, b"k", None, (("h", b"1"),))
    >>> compile_format(r"%t-%p@%o %k=%s %S [%h]\n", null=b"NULL")(record)
    b'orders-0@7 k=NULL -1 [h=1]\n'
    """
    tokens: dict[str, Render] = {
        "t": lambda r: r.topic.encode(),
        "p": lambda r: b"%d" % r.partition,
        "o": lambda r: b"%d" % r.offset,
        "k": lambda r: null if r.key is None else r.key,
        "s": lambda r: null if r.value is None else r.value,
        "T": lambda r: b"%d" % r.timestamp,
        "h": lambda r: b",".join(_header(header, null) for header in r.headers),
        "K": lambda r: b"%d" % (-1 if r.key is None else len(r.key)),
        "S": lambda r: b"%d" % (-1 if r.value is None else len(r.value)),
        "R": lambda r: (-1 if r.value is None else len(r.value)).to_bytes(4, "big", signed=True),
        "%": _constant(b"%"),
    }
    parts: list[Render] = []
    for index, piece in enumerate(_split(text)):
        if index % 2 == 0:
            if piece:
                parts.append(_constant(unescape(piece)))
        elif piece in tokens:
            parts.append(tokens[piece])
        else:
            known = " ".join(f"%{name}" for name in tokens)
            raise ValueError(f"unknown token '%{piece}' in {text!r}: known are {known}")
    return lambda record: b"".join([part(record) for part in parts])


def json_renderer(timestamp_types: Callable[[str], str]) -> Render:
    """A function that prints a record as kcat's -J does; binary becomes {"base64": …}."""

    def render(record: Record) -> bytes:
        body = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "tstype": timestamp_types(record.topic),
            "ts": record.timestamp,
            "headers": [part for name, value in record.headers for part in (name, _text(value))],
            "key": _text(record.key),
            "payload": _text(record.value),
        }
        return json.dumps(body, ensure_ascii=False).encode("utf-8") + b"\n"

    return render


def _split(text: str) -> list[str]:
    """Literal, token, literal, token, …, literal."""
    pieces = [""]
    position = 0
    while position < len(text):
        if text[position] == "%":
            pieces += [text[position + 1 : position + 2], ""]
            position += 2
        elif text[position] == "\\":
            # An escape stays whole: in "\\%s" the backslash is one literal character.
            pieces[-1] += text[position : position + 2]
            position += 2
        else:
            pieces[-1] += text[position]
            position += 1
    return pieces


def _constant(data: bytes) -> Render:
    return lambda _: data


def _header(header: Header, null: bytes) -> bytes:
    name, value = header
    return name.encode() + b"=" + (null if value is None else value)


def _text(data: bytes | None) -> object:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}
