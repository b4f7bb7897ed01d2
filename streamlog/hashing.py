"""Kafka's murmur2, for one key and for a whole Arrow column: which partition a key belongs to.

Invariants:
1. Equal to Kafka's default partitioner, bit for bit: a key is in the partition where a Kafka client
   would have put it. Changing the result for any key breaks the order of every existing topic.
2. `partitions_for(keys, n)[i] == partition_for(keys[i], n)` for every key that is not null.
3. Pure: no state, safe to call from any thread; buffers are only read, and never past their end.

The column is hashed without making a Python object a key: the words of all keys are gathered from
the data buffer, first word of every key, second word of every key and so on. Rows go in blocks so
that the working arrays stay in the processor's cache.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamlog.errors import InvalidRequestError

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF

# Fewer keys than this are hashed one by one: some forty numpy calls cost more than that.
_SCALAR_BELOW = 24
_BLOCK = 16384
# A few very long keys are finished one by one: every word would cost a round of numpy calls.
_FEW = 16

_M32 = np.uint32(_M)
_TAIL_MASK = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], dtype=np.uint32)
_TAIL_FACTOR = np.array([1, _M, _M, _M], dtype=np.uint32)

_Words = npt.NDArray[np.uint32]
_Ints = npt.NDArray[np.int64]


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 of `data`, signed as in Java."""
    h = _murmur2_unsigned(data)
    return h - 0x100000000 if h & 0x80000000 else h


def partition_for(key: bytes, partitions: int) -> int:
    """The partition, of `partitions`, that Kafka's default partitioner gives to `key`."""
    _check_partitions(partitions)
    return (_murmur2_unsigned(key) & 0x7FFFFFFF) % partitions


def partitions_for(keys: pa.Array[Any], partitions: int) -> npt.NDArray[np.int32]:
    """`partition_for` of every key of a binary or string array; any partition where it is null."""
    _check_partitions(partitions)
    count = len(keys)
    if partitions == 1 or count == 0:
        return np.zeros(count, dtype=np.int32)
    if count < _SCALAR_BELOW:
        return _one_by_one(keys, partitions)
    hashes = _hash_column(keys)
    hashes &= np.uint32(0x7FFFFFFF)
    hashes %= np.uint32(partitions)
    return hashes.view(np.int32)


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= 0x7FFFFFFF:
        raise InvalidRequestError(
            f"{partitions} is not a number of partitions; give an integer from 1 to 2147483647."
        )


def _murmur2_unsigned(data: bytes) -> int:
    return _continue(data, 0, (_SEED ^ len(data)) & _MASK)


def _continue(data: bytes, done: int, h: int) -> int:
    """Finish the hash `h` of `data`, whose first `done` bytes (a multiple of 4) are in it."""
    length = len(data)
    words = (length - done) >> 2
    for word in struct.unpack_from(f"<{words}I", data, done):
        k = (word * _M) & _MASK
        h = (h * _M & _MASK) ^ ((k ^ (k >> 24)) * _M & _MASK)
    if length & 3:
        h = ((h ^ int.from_bytes(data[length & ~3 :], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def _one_by_one(keys: pa.Array[Any], partitions: int) -> npt.NDArray[np.int32]:
    if pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type):
        keys = keys.cast(pa.large_binary())
    return np.array(
        [(_murmur2_unsigned(key or b"") & 0x7FFFFFFF) % partitions for key in keys.to_pylist()],
        dtype=np.int32,
    )


def _hash_column(keys: pa.Array[Any]) -> _Words:
    offsets, data = _layout(keys)
    count = len(offsets) - 1
    hashes = np.empty(count, dtype=np.uint32)
    for first in range(0, count, _BLOCK):
        last = min(first + _BLOCK, count)
        block = offsets[first : last + 1].astype(np.int64)
        _hash_block(block[:-1], block[1:], data, hashes[first:last])
    return hashes


def _layout(keys: pa.Array[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """The offsets of the array's own rows (a slice shares its parent's buffers), and the data."""
    kinds = pa.types
    if kinds.is_binary(keys.type) or kinds.is_string(keys.type):
        width: type[np.signedinteger[Any]] = np.int32
    else:
        width = np.int64
        if not (kinds.is_large_binary(keys.type) or kinds.is_large_string(keys.type)):
            keys = keys.cast(pa.large_binary())
    _, offset_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=width)[keys.offset : keys.offset + len(keys) + 1]
    if data_buffer is None or data_buffer.size < 4:
        # Too short to hold one word: a padded copy keeps the gathering free of a special case.
        data = np.zeros(4, dtype=np.uint8)
        if data_buffer is not None:
            data[: data_buffer.size] = np.frombuffer(data_buffer, dtype=np.uint8)
    else:
        data = np.frombuffer(data_buffer, dtype=np.uint8)
    return offsets, data


def _hash_block(starts: _Ints, ends: _Ints, data: npt.NDArray[np.uint8], out: _Words) -> None:
    # A word begins at any byte: with a view of overlapping words, gathering is one index operation.
    words: _Words = np.ndarray((len(data) - 3,), dtype="<u4", buffer=data, strides=(1,))
    lengths = ends - starts
    h = lengths.astype(np.uint32)
    h ^= np.uint32(_SEED)
    whole = lengths >> 2
    shortest = int(whole.min())
    longest = int(whole.max())
    for i in range(shortest):
        _mix(h, words[starts + 4 * i])
    if longest > shortest:
        long_keys = _mix_the_rest(h, whole, shortest, starts, words)
    else:
        long_keys = None

    rest = lengths & 3
    tails = ends - rest
    if tails[-1] >= len(words):
        # Near the end of the buffer a word is read from further left and moved into place.
        places = np.minimum(tails, len(words) - 1)
        tail = words[places] >> ((tails - places) << 3).astype(np.uint32)
    else:
        tail = words[tails]
    tail &= _TAIL_MASK[rest]
    np.bitwise_xor(h, tail, out=h)
    h *= _TAIL_FACTOR[rest]
    h ^= h >> np.uint32(13)
    h *= _M32
    np.bitwise_xor(h, h >> np.uint32(15), out=out)
    if long_keys is not None:
        rows, done, state = long_keys
        for row, hash_so_far in zip(rows.tolist(), state.tolist(), strict=True):
            key = data[starts[row] : ends[row]].tobytes()
            # Continued from the state after `done` bytes: no word is hashed twice.
            out[row] = _continue(key, done, hash_so_far)


def _mix(h: _Words, k: _Words) -> None:
    """One round of murmur2, in place, for all keys: `h` takes in the words `k`."""
    k *= _M32
    k ^= k >> np.uint32(24)
    k *= _M32
    h *= _M32
    h ^= k


def _mix_the_rest(
    h: _Words, whole: _Ints, done: int, starts: _Ints, words: _Words
) -> tuple[npt.NDArray[np.intp], int, _Words] | None:
    """Mix in the words after the first `done`, for the keys that have more.

    Returns the keys still unfinished when only few long ones are left: rows, bytes done, states.
    """
    rows = np.flatnonzero(whole > done)
    state = h[rows]
    while len(rows):
        if len(rows) <= _FEW and int(whole[rows].max()) - done > _FEW:
            return rows, 4 * done, state
        _mix(state, words[starts[rows] + 4 * done])
        done += 1
        more = whole[rows] > done
        finished = ~more
        h[rows[finished]] = state[finished]
        rows = rows[more]
        state = state[more]
    return None
