"""How long ago, as people type it: `7d`, `12h`, `90s`."""

from __future__ import annotations

import re

_UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h|d|w)")


def parse_duration(text: str) -> int:
    """Milliseconds of a whole number and a unit.

    >>> parse_duration("7d"), parse_duration("90s"), parse_duration("250ms")
    (604800000, 90000, 250)
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is no duration: give a whole number and a unit out of "
            f"{', '.join(_UNITS_MS)}, such as 7d or 12h"
        )
    return int(match[1]) * _UNITS_MS[match[2]]
