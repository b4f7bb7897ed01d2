"""Where `consume` begins: the value of `--offset`, parsed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from streamlog.cli.inputs import parse_time

# The largest offset a Delta table can hold.
_MAX_OFFSET = 2**63 - 1


class Origin(Enum):
    """What the number of a `StartAt` counts from."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ABSOLUTE = "offset"
    FROM_END = "from end"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAt:
    """A place; `number` is an offset, a count of records before the end, or a time in ms."""

    origin: Origin
    number: int = 0


def parse_start(text: str) -> StartAt:
    """The place that `--offset` names; kcat's words are understood too.

    >>> parse_start("-5")
    StartAt(origin=<Origin.FROM_END: 'from end'>, number=5)
    """
    if text in ("earliest", "beginning"):
        return StartAt(origin=Origin.EARLIEST)
    if text in ("latest", "end"):
        return StartAt(origin=Origin.LATEST)
    marker, found, time = text.partition("@")
    if found and marker in ("", "s"):
        return StartAt(origin=Origin.TIME, number=parse_time(time))
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(
            f"{text!r} is no offset: give a number (0 is the first record ever written), "
            "-N for the last N records of each partition, earliest, latest, "
            "or @TIME with milliseconds since 1970 or ISO 8601"
        )
    if len(digits) > 19 or int(digits) > _MAX_OFFSET:
        raise ValueError(f"offset {text} is out of range: the largest is {_MAX_OFFSET}")
    if text.startswith("-"):
        return StartAt(origin=Origin.FROM_END, number=int(digits))
    return StartAt(origin=Origin.ABSOLUTE, number=int(digits))
