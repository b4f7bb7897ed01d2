"""murmur2 equals Kafka's, and the column hash equals the hash of one key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import InvalidRequestError
from streamlog.hashing import murmur2, partition_for, partitions_for

# From Kafka's UtilsTest: the contract with every other client of the protocol.
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}

short_keys = st.binary(max_size=200)
# Shapes that take different ways through the code: few and many, equal and mixed lengths, empties.
columns = st.one_of(
    st.lists(short_keys, max_size=12),
    st.lists(short_keys, min_size=24, max_size=80),
    st.lists(st.binary(max_size=3), min_size=24, max_size=60),
    st.integers(0, 40).flatmap(
        lambda n: st.lists(st.binary(min_size=n, max_size=n), min_size=24, max_size=60)
    ),
)
partition_counts = st.one_of(st.integers(1, 64), st.sampled_from([1000, 2**31 - 1]))


def one_by_one(keys: list[bytes], partitions: int) -> list[int]:
    return [partition_for(key, partitions) for key in keys]


@pytest.mark.parametrize(("key", "expected"), KAFKA_VECTORS.items())
def test_a_key_hashes_as_in_kafka(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected
    assert partition_for(key, 7) == (expected & 0x7FFFFFFF) % 7


def test_a_column_hashes_as_in_kafka() -> None:
    keys = list(KAFKA_VECTORS) * 10
    found = partitions_for(pa.array(keys, pa.binary()), 2**31 - 1)
    assert found.tolist() == [(KAFKA_VECTORS[k] & 0x7FFFFFFF) % (2**31 - 1) for k in keys]


@given(keys=columns, partitions=partition_counts)
def test_a_column_hashes_as_its_keys_do(keys: list[bytes], partitions: int) -> None:
    found = partitions_for(pa.array(keys, pa.binary()), partitions)
    assert found.dtype == np.int32
    assert found.tolist() == one_by_one(keys, partitions)


@given(keys=columns, data=st.data())
def test_a_slice_hashes_its_own_rows_only(keys: list[bytes], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(keys)))
    length = data.draw(st.integers(0, len(keys) - first))
    found = partitions_for(pa.array(keys, pa.binary()).slice(first, length), 13)
    assert found.tolist() == one_by_one(keys[first : first + length], 13)


@given(keys=st.lists(st.none() | short_keys, max_size=80), first=st.integers(0, 10))
def test_nulls_do_not_disturb_the_keys_beside_them(keys: list[bytes | None], first: int) -> None:
    found = partitions_for(pa.array(keys, pa.binary()).slice(first), 11)
    assert len(found) == max(0, len(keys) - first)
    for key, partition in zip(keys[first:], found.tolist(), strict=True):
        assert 0 <= partition < 11
        if key is not None:
            assert partition == partition_for(key, 11)


@pytest.mark.parametrize("count", [1, 23, 24, 100])
@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary(9),
        pa.binary_view(),
    ],
    ids=str,
)
def test_every_binary_layout_is_hashed_alike(kind: pa.DataType, count: int) -> None:
    texts = [f"key-{i:05d}" for i in range(count)]
    column = pa.array(texts, pa.string())
    column = column.cast(kind) if kind != pa.binary(9) else column.cast(pa.binary()).cast(kind)
    expected = one_by_one([text.encode() for text in texts], 12)
    assert partitions_for(column, 12).tolist() == expected


@pytest.mark.parametrize("count", [0, 5, 30])
def test_a_column_of_nulls_only_is_hashed(count: int) -> None:
    found = partitions_for(pa.nulls(count, pa.binary()), 5)
    assert len(found) == count
    assert all(0 <= partition < 5 for partition in found.tolist())


@pytest.mark.parametrize("tail", [b"", b"x", b"xy", b"xyz", b"wxyz"])
def test_the_end_of_an_unpadded_buffer_is_not_overrun(tail: bytes) -> None:
    """A foreign buffer ends with its last key: there is nothing to read beyond it."""
    keys = [b""] * 30 + [b"k" * i for i in range(8)] + [tail, b"", b""]
    offsets = np.concatenate([[0], np.cumsum([len(key) for key in keys])]).astype(np.int32)
    column = pa.Array.from_buffers(
        pa.binary(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(keys))]
    )
    assert partitions_for(column, 97).tolist() == one_by_one(keys, 97)


@pytest.mark.parametrize("keys", [[b""] * 30, [b"a"] + [b""] * 29, [b""] * 29 + [b"abc"]])
def test_a_buffer_shorter_than_a_word_is_hashed(keys: list[bytes]) -> None:
    assert partitions_for(pa.array(keys, pa.binary()), 97).tolist() == one_by_one(keys, 97)


def test_a_few_very_long_keys_among_short_ones_are_hashed() -> None:
    keys = [b"short-%d" % i for i in range(50)]
    keys[7] = bytes(range(256)) * 40
    keys[31] = bytes(range(251)) * 41
    assert partitions_for(pa.array(keys, pa.binary()), 97).tolist() == one_by_one(keys, 97)


def test_more_rows_than_a_block_are_hashed() -> None:
    keys = [b"user-%d" % i for i in range(40_000)]
    assert partitions_for(pa.array(keys, pa.binary()), 97).tolist() == one_by_one(keys, 97)


@pytest.mark.parametrize("partitions", [0, -1, 2**31])
def test_an_impossible_number_of_partitions_is_refused(partitions: int) -> None:
    with pytest.raises(InvalidRequestError, match="from 1 to 2147483647"):
        partition_for(b"key", partitions)
    with pytest.raises(InvalidRequestError, match="from 1 to 2147483647"):
        partitions_for(pa.array([b"key"]), partitions)
