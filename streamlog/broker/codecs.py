"""Compression of record batches, bounded: a few kilobytes must not become all of our memory.

By codec number of Kafka's batch attributes: 0 none, 1 gzip, 2 snappy (raw, or in the blocks of the xerial
library, as Java clients send it), 3 lz4 (frames), 4 zstd.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import cramjam

from streamlog.broker.kafka_errors import Code, KafkaError

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_SMALLEST = 1 << 16


def decompress(codec: int, data: memoryview, limit: int) -> bytes | memoryview:
    """The plain bytes; a KafkaError if they are none, or more than `limit`."""
    if codec == 0:
        return data
    try:
        if codec == 1:
            return _gzip(data, limit)
        if codec == 2:
            return _snappy(data, limit)
        if codec == 3:
            return _grown(cramjam.lz4.decompress_into, data, limit)
        if codec == 4:
            return _grown(cramjam.zstd.decompress_into, data, limit)
    except (zlib.error, cramjam.DecompressionError, struct.error, ValueError) as error:
        raise KafkaError(
            Code.CORRUPT_MESSAGE, f"a batch is not valid {NAMES[codec]}: {error}"
        ) from error
    raise KafkaError(Code.UNSUPPORTED_COMPRESSION_TYPE, f"there is no compression number {codec}")


def _too_large(limit: int) -> KafkaError:
    return KafkaError(
        Code.MESSAGE_TOO_LARGE, f"a batch has more than {limit} bytes once it is decompressed"
    )


def _gzip(data: memoryview, limit: int) -> bytes:
    stream = zlib.decompressobj(31)
    plain = stream.decompress(data, limit + 1)
    if len(plain) > limit:
        raise _too_large(limit)
    if not stream.eof:
        raise ValueError("it ends too early")
    return plain


def _snappy(data: memoryview, limit: int) -> bytes:
    if bytes(data[:8]) != _XERIAL:
        return _block(data, limit, limit)
    at = _XERIAL_HEADER
    blocks: list[bytes] = []
    left = limit
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        if size < 0 or at + size > len(data):
            raise ValueError(f"a block of {size} bytes in {len(data)}")
        blocks.append(_block(data[at : at + size], left, limit))
        left -= len(blocks[-1])
        at += size
    return b"".join(blocks)


def _block(data: memoryview, left: int, limit: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(data) > left:
        raise _too_large(limit)
    return bytes(cramjam.snappy.decompress_raw(data))


def _grown(decompress_into: Callable[[Any, Any], int], data: memoryview, limit: int) -> memoryview:
    """Into a buffer that grows up to the limit: neither format has to say its size beforehand."""
    size = min(limit, max(_SMALLEST, 4 * len(data)))
    while True:
        room = bytearray(size)
        try:
            return memoryview(room)[: decompress_into(data, room)]
        except cramjam.DecompressionError:
            # Too small, or broken: the next, larger attempt tells.
            if size == limit:
                if _overflows(decompress_into, data, limit):
                    raise _too_large(limit) from None
                raise
            size = min(limit, size * 4)


def _overflows(decompress_into: Callable[[Any, Any], int], data: memoryview, limit: int) -> bool:
    """Whether twice the room would have helped."""
    try:
        decompress_into(data, bytearray(2 * limit))
    except cramjam.DecompressionError:
        return False
    return True
