"""Record batches against aiokafka's codec, which real clients use; and against damage."""

from __future__ import annotations

import struct

import crc32c
import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.broker import records
from streamlog.broker.codecs import decompress
from streamlog.broker.kafka_errors import Code, KafkaError
from streamlog.schema import RECORD_SCHEMA

LIMIT = 1 << 24
NOW = 1_700_000_000_000

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

_headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3)
_rows = st.lists(
    st.tuples(
        st.integers(0, 4_102_444_800_000),
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=300),
        st.just([]) | _headers,
    ),
    min_size=1,
    max_size=120,
)


def built(rows: list[Row], codec: int = 0) -> bytes:
    """What a client would send."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 30)
    for index, (stamp, key, value, headers) in enumerate(rows):
        builder.append(index, timestamp=stamp, key=key, value=value, headers=headers)
    return bytes(builder.build())


def decoded(raw: bytes, limit: int = LIMIT) -> list[Row]:
    (batch,) = records.parse(raw)
    columns = records.decode(batch, now_ms=NOW, log_append_time=False, limit=limit).columns
    times = columns.timestamp.view(pa.int64()).to_numpy() // 1000
    return [
        (int(time), key, value, [(h["key"], h["value"]) for h in headers or ()])
        for time, key, value, headers in zip(
            times,
            columns.key.to_pylist(),
            columns.value.to_pylist(),
            columns.headers.to_pylist(),
            strict=True,
        )
    ]


def stored(rows: list[Row], offsets: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(offsets, pa.int64()),
            pa.array(np.array([r[0] for r in rows]) * 1000).view(RECORD_SCHEMA.field(1).type),
            pa.array([r[1] for r in rows], pa.binary()),
            pa.array([r[2] for r in rows], pa.binary()),
            pa.array(
                [[{"key": k, "value": v} for k, v in r[3]] or None for r in rows],
                RECORD_SCHEMA.field("headers").type,
            ),
        ],
        schema=RECORD_SCHEMA,
    )


@settings(max_examples=80, deadline=None)
@given(rows=_rows, codec=st.integers(0, 4))
def test_what_a_client_sends_is_read_as_it_is(rows: list[Row], codec: int) -> None:
    assert decoded(built(rows, codec)) == rows


@pytest.mark.parametrize("size", [0, 1, 63, 64, 100, 5000])
@pytest.mark.parametrize("count", [1, 39, 40, 41, 200, 9000])
def test_runs_of_equal_records_are_found(size: int, count: int) -> None:
    rows: list[Row] = [(NOW, b"k", b"v" * size, []) for _ in range(count)]
    rows[count // 2] = (NOW + 70_000, None, b"another", [("h", b"1")])
    assert decoded(built(rows)) == rows


@settings(max_examples=60, deadline=None)
@given(rows=_rows, gaps=st.lists(st.integers(1, 400), min_size=120, max_size=120))
def test_what_consumers_are_sent_is_read_by_their_codec(rows: list[Row], gaps: list[int]) -> None:
    offsets = [77 + sum(gaps[:index]) for index in range(len(rows))]
    raw = records.encode(stored(rows, offsets), leader_epoch=3)
    batch = DefaultRecordBatch(raw)
    assert batch.validate_crc()
    found = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch]
    assert found == [(offset, *row) for offset, row in zip(offsets, rows, strict=True)]
    assert batch.next_offset == offsets[-1] + 1


def test_a_slice_of_stored_records_is_encoded_alone() -> None:
    rows: list[Row] = [(NOW + i, b"k%d" % i, None if i % 3 else b"v", []) for i in range(10)]
    part = stored(rows, list(range(10))).slice(4, 3)
    found = [(r.offset, r.key, r.value) for r in DefaultRecordBatch(records.encode(part, 0))]
    assert found == [(i, b"k%d" % i, rows[i][2]) for i in (4, 5, 6)]


def test_a_gap_is_a_batch_without_records() -> None:
    raw = records.encode_gap(40, 49, leader_epoch=1)
    batch = DefaultRecordBatch(raw)
    assert (batch.validate_crc(), batch.next_offset, list(batch)) == (True, 50, [])


def test_only_offset_and_epoch_change_on_the_way_to_consumers() -> None:
    raw = built([(NOW, b"k", b"v", [])] * 3, codec=4)
    (batch,) = records.parse(raw)
    sent = batch.at(500, leader_epoch=9)
    assert DefaultRecordBatch(sent).validate_crc()
    assert [r.offset for r in DefaultRecordBatch(sent)] == [500, 501, 502]
    assert sent[16:] == raw[16:]


def test_records_without_a_time_get_ours_and_are_not_passed_on_as_they_came() -> None:
    (batch,) = records.parse(built([(-1, None, b"v", [])] * 2))
    result = records.decode(batch, now_ms=NOW, log_append_time=False, limit=LIMIT)
    assert result.columns.timestamp.view(pa.int64()).to_pylist() == [NOW * 1000] * 2
    assert not result.exact
    stamped = records.decode(batch, now_ms=NOW + 1, log_append_time=True, limit=LIMIT)
    assert stamped.columns.timestamp.view(pa.int64()).to_pylist() == [(NOW + 1) * 1000] * 2


def _resealed(raw: bytearray) -> bytes:
    struct.pack_into(">I", raw, 17, crc32c.crc32c(memoryview(raw)[21:]))
    return bytes(raw)


@settings(max_examples=300, deadline=None)
@given(
    where=st.integers(61, 400),
    byte=st.integers(0, 255),
    count=st.sampled_from([3, 60]),
    cut=st.integers(0, 5),
)
def test_a_damaged_batch_with_a_right_check_sum_is_refused_or_read(
    where: int, byte: int, count: int, cut: int
) -> None:
    raw = bytearray(built([(NOW + i, b"key", b"value", [("h", b"x")]) for i in range(count)]))
    raw[61 + (where - 61) % (len(raw) - 61)] = byte
    if cut:
        del raw[-cut:]
        struct.pack_into(">i", raw, 8, len(raw) - 12)
    code = None
    try:
        assert len(decoded(_resealed(raw))) == count
    except KafkaError as error:
        code = error.code
    assert code in (None, Code.CORRUPT_MESSAGE)


def test_a_wrong_check_sum_an_old_format_and_a_torn_batch_are_refused() -> None:
    raw = built([(NOW, b"k", b"v", [])])
    flipped = bytearray(raw)
    flipped[-1] ^= 1
    old = bytearray(raw)
    old[16] = 1
    for data, code, words in (
        (bytes(flipped), Code.CORRUPT_MESSAGE, "check sum"),
        (raw[:-1], Code.CORRUPT_MESSAGE, "says it has"),
        (raw[:30], Code.CORRUPT_MESSAGE, "too few"),
        (bytes(old), Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, "format 1"),
    ):
        with pytest.raises(KafkaError, match=words) as caught:
            records.parse(data)
        assert caught.value.code is code


@pytest.mark.parametrize(("field", "value"), [(57, 2), (57, 0), (57, -5), (23, 7)])
def test_a_count_that_does_not_fit_is_refused(field: int, value: int) -> None:
    raw = bytearray(built([(NOW, b"k", b"v", [])]))
    struct.pack_into(">i", raw, field, value)
    with pytest.raises(KafkaError) as caught:
        decoded(_resealed(raw))
    assert caught.value.code in (Code.INVALID_RECORD, Code.CORRUPT_MESSAGE)


def test_transactional_batches_are_refused() -> None:
    raw = bytearray(built([(NOW, b"k", b"v", [])]))
    raw[22] |= 0b10000
    with pytest.raises(KafkaError, match="transactions"):
        records.parse(_resealed(raw))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_small_batch_that_swells_beyond_the_limit_is_refused(codec: int) -> None:
    rows: list[Row] = [(NOW, None, bytes(900_000), []) for _ in range(4)]
    raw = built(rows, codec)
    assert len(raw) < 400_000
    assert decoded(raw, limit=4_000_000) == rows
    with pytest.raises(KafkaError, match="3000000 bytes") as caught:
        decoded(raw, limit=3_000_000)
    assert caught.value.code is Code.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_nonsense_is_corrupt(codec: int) -> None:
    for data in (b"", b"nonsense" * 9, built([(NOW, b"k", b"v", [])], codec)[61:-3]):
        with pytest.raises(KafkaError) as caught:
            decompress(codec, memoryview(data), LIMIT)
        assert caught.value.code in (Code.CORRUPT_MESSAGE, Code.MESSAGE_TOO_LARGE)


def test_an_unknown_compression_is_told() -> None:
    with pytest.raises(KafkaError, match="number 6") as caught:
        decompress(6, memoryview(b"x"), LIMIT)
    assert caught.value.code is Code.UNSUPPORTED_COMPRESSION_TYPE
