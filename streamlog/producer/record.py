"""One record as a caller gives it, brought into shape or refused. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from streamlog.errors import InvalidRequestError
from streamlog.model import Header
from streamlog.schema import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS

Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


def to_bytes(topic: str, what: str, given: object) -> bytes | None:
    """A key or value: bytes as they are, a str as UTF-8, anything else refused."""
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"{topic}: the {what} is no valid text: {error}") from error
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise InvalidRequestError(
        f"{topic}: the {what} is a {type(given).__name__}; allowed are bytes, str (sent as UTF-8) "
        "and None: serialise it first"
    )


def to_headers(topic: str, given: object) -> list[Header] | None:
    """Headers: pairs of a str and bytes (a str is sent as UTF-8), or a mapping; None if empty."""
    if given is None:
        return None
    pairs = given.items() if isinstance(given, Mapping) else given
    headers: list[Header] = []
    try:
        for name, value in pairs:  # type: ignore[attr-defined]
            if not isinstance(name, str):
                raise InvalidRequestError(
                    f"{topic}: a header's name is a {type(name).__name__} ({name!r}); "
                    "it must be a str"
                )
            to_bytes(topic, "name of a header", name)
            headers.append((name, to_bytes(topic, f"header {name!r}", value)))
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(
            f"{topic}: headers={given!r} are not pairs of a name and a value, "
            "like [('trace', b'1')]"
        ) from error
    return headers or None


def to_stamp(topic: str, given: object) -> int | None:
    """A timestamp: milliseconds since 1970, or an aware datetime; None is for now."""
    if given is None:
        return None
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise InvalidRequestError(
                f"{topic}: timestamp={given!r} has no time zone; give one, e.g. tzinfo=UTC"
            )
        given = round(given.timestamp() * 1000)
    if type(given) is not int:
        raise InvalidRequestError(
            f"{topic}: timestamp={given!r} is a {type(given).__name__}; "
            "give milliseconds since 1970 as an int, an aware datetime, or None for now"
        )
    if not MIN_TIMESTAMP_MS <= given <= MAX_TIMESTAMP_MS:
        raise InvalidRequestError(
            f"{topic}: timestamp={given} is out of range; allowed are {MIN_TIMESTAMP_MS} to "
            f"{MAX_TIMESTAMP_MS} milliseconds since 1970"
        )
    return given


def size_of(key: bytes | None, value: bytes | None, headers: list[Header] | None) -> int:
    """The bytes of a record that count against `max.message.bytes`."""
    size = len(key or b"") + len(value or b"")
    if headers:
        for name, data in headers:
            size += len(name.encode()) + len(data or b"")
    return size
