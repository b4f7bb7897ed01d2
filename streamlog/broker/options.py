"""A broker's settings from everywhere they may be given: a file, the environment, the command line.

O1  The command line outdoes the environment (`STREAMLOG_BROKER_<NAME>`), which outdoes the file (TOML).
O2  Names are those of `BrokerSettings`, and three that stand for a host and a port together: `listen`,
    `advertise` and `http`. An unknown name is refused wherever it stands, with the nearest valid one.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from streamlog.broker.settings import BrokerSettings
from streamlog.errors import InvalidRequestError

PREFIX = "STREAMLOG_BROKER_"

_ADDRESSES = {
    "listen": ("host", "port"),
    "advertise": ("advertised_host", "advertised_port"),
    "http": ("http_host", "http_port"),
}
_FIELDS: dict[str, Field[Any]] = {field.name: field for field in fields(BrokerSettings)}
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


def load_settings(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]
) -> BrokerSettings:
    """The settings of a broker (O1)."""
    values: dict[str, Any] = {}
    if file is not None:
        for name, value in read_file(file).items():
            values |= _read(name, value, f"{file}: {name}")
    for variable, text in environment.items():
        if variable.startswith(PREFIX):
            values |= _read(variable.removeprefix(PREFIX).lower(), text, variable)
    for name, value in flags.items():
        values |= _read(name, value, name)
    return BrokerSettings(**values)


def read_file(file: Path) -> dict[str, Any]:
    """The names and values of a file."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidRequestError(f"cannot read the settings in {file}: {why}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequestError(
            f"{file} is not valid TOML: {error}; write one setting a line, such as num_partitions = 4"
        ) from error


def parse_address(text: str, where: str) -> tuple[str, int]:
    """The host and the port of HOST:PORT.

    >>> parse_address("127.0.0.1:9092", "listen"), parse_address("[::1]:0", "listen")
    (('127.0.0.1', 9092), ('::1', 0))
    """
    host, colon, port = text.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not bare or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise InvalidRequestError(
            f"{where}: {text!r} is no address; give HOST:PORT, such as 127.0.0.1:9092, with a port up to "
            "65535"
        )
    if ":" in bare and not bracketed:
        raise InvalidRequestError(
            f"{where}: {text!r} is no address; put an IPv6 address into brackets, such as [::1]:9092"
        )
    return bare, int(port)


def _read(name: str, value: object, where: str) -> dict[str, Any]:
    plain = name.replace(".", "_").replace("-", "_")
    if plain in _ADDRESSES:
        host, port = parse_address(str(value), where)
        return dict(zip(_ADDRESSES[plain], (host, port), strict=True))
    field = _FIELDS.get(plain)
    if field is None:
        known = sorted({*_FIELDS, *_ADDRESSES})
        near = difflib.get_close_matches(plain, known, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
        raise InvalidRequestError(f"{where}: there is no such setting of a broker{hint}")
    return {plain: _typed(value, str(field.type), where)}


def _typed(value: object, kind: str, where: str) -> object:
    """A value as the setting's type wants it; text is read, as the environment has nothing else."""
    optional = "None" in kind
    if optional and isinstance(value, str) and not value.strip():
        return None
    if kind.startswith(("tuple", "frozenset", "list")):
        return _many(value, kind, where)
    if kind.startswith("bool"):
        if isinstance(value, bool):
            return value
        text = str(value).strip().lower()
        if text in _TRUE | _FALSE:
            return text in _TRUE
        if "tuple" in kind:
            return _many(value, "tuple", where)
        raise _wrong(value, where, "true or false")
    if kind.startswith("int"):
        if isinstance(value, str):
            try:
                return int(value.strip().replace("_", ""))
            except ValueError:
                raise _wrong(value, where, "a whole number") from None
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise _wrong(value, where, "a whole number")
    if kind.startswith("float"):
        if isinstance(value, bool):
            raise _wrong(value, where, "a number")
        try:
            return float(str(value))
        except ValueError:
            raise _wrong(value, where, "a number") from None
    if kind.startswith("Path"):
        return Path(str(value))
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise _wrong(value, where, "text")


def _many(value: object, kind: str, where: str) -> object:
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, list):
        parts = [str(part) for part in value]
    else:
        raise _wrong(value, where, "a list")
    return frozenset(parts) if kind.startswith("frozenset") else tuple(parts)


def _wrong(value: object, where: str, allowed: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where}: {value!r} is not valid; give {allowed}")
