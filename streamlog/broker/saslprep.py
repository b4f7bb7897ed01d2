"""SASLprep (RFC 4013): one form for names and passwords that look the same.

Kafka's own clients do not prepare what they send, so a name or password that preparation would change
(a ligature, a wide digit) reaches a SCRAM client's hash as it was typed, and PLAIN's check prepared.
"""

from __future__ import annotations

import stringprep
import unicodedata

from streamlog.errors import InvalidRequestError

_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def saslprep(text: str) -> str:
    """The prepared form; refuses what may be in no name or password, without repeating it.

    >>> saslprep("I\\u00adX"), saslprep("\\u2168"), saslprep("user")
    ('IX', 'IX', 'user')
    """
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(c) else c for c in text if not stringprep.in_table_b1(c)
    )
    form = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if any(prohibited(c) for c in form for prohibited in _PROHIBITED):
        raise InvalidRequestError(
            "control and other unprintable characters are not allowed in names and passwords"
        )
    if any(stringprep.in_table_a1(c) for c in form):
        raise InvalidRequestError(
            "a name or password has a character that SASLprep does not know (newer than Unicode 3.2)"
        )
    if any(stringprep.in_table_d1(c) for c in form) and (
        any(stringprep.in_table_d2(c) for c in form)
        or not (stringprep.in_table_d1(form[0]) and stringprep.in_table_d1(form[-1]))
    ):
        raise InvalidRequestError(
            "a name or password mixes characters that are read from the right and from the left"
        )
    return form
