"""Lines of a byte stream, as they come, in bounded memory.

Lines are bytes: no encoding is assumed and no byte but the newline means anything. What one read
returned is handed on before the next read may block, so a line piped in slowly is produced at once.
Memory is bounded by one chunk and `limit`: a line beyond it is refused while only its beginning was
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

CHUNK_BYTES = 1 << 18


class LineTooLongError(Exception):
    """The line with this number (the first is 1) is longer than allowed."""

    def __init__(self, number: int) -> None:
        super().__init__(f"line {number} is too long")
        self.number = number


def read_lines(read: Callable[[int], bytes], limit: int) -> Iterator[list[bytes]]:
    """Lists of whole lines without their newlines; `read(n)` gives up to n bytes, b"" at the end.

    >>> import io
    >>> list(read_lines(io.BytesIO(b"a\\nb\\n\\nlast").read, 10))
    [[b'a', b'b', b''], [b'last']]
    """
    number = 0
    begun: list[bytes] = []
    begun_bytes = 0
    while chunk := read(CHUNK_BYTES):
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and begun:
            begun.append(lines[0])
            lines[0] = b"".join(begun)
            begun, begun_bytes = [], 0
        if rest:
            begun.append(rest)
            begun_bytes += len(rest)
        if lines:
            if max(map(len, lines)) > limit:
                good = next(i for i, line in enumerate(lines) if len(line) > limit)
                yield lines[:good]
                raise LineTooLongError(number + good + 1)
            number += len(lines)
            yield lines
        if begun_bytes > limit:
            raise LineTooLongError(number + 1)
    if begun:
        yield [b"".join(begun)]


def read_all(read: Callable[[int], bytes], limit: int) -> bytes | None:
    """The whole stream as one value, or None as soon as it proves longer than `limit`."""
    pieces: list[bytes] = []
    total = 0
    while chunk := read(CHUNK_BYTES):
        pieces.append(chunk)
        total += len(chunk)
        if total > limit:
            return None
    return b"".join(pieces)
