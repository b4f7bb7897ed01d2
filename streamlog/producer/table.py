"""Arrow tables as `send_batch` takes them, brought into the log's columns or refused. Pure.

Columns: `value` (required), `key`, `headers`, `timestamp`, `partition`. Binary data is passed on
without a copy; other layouts (strings, large or view types) are cast, which copies at most their
offsets. All checks look at whole columns; a table with one bad record is refused whole, before
anything of it is queued.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamlog.batch import RecordColumns
from streamlog.errors import InvalidRequestError, PartitionNotFoundError, RecordTooLargeError
from streamlog.log.topics import TopicInfo
from streamlog.schema import HEADERS_TYPE, MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, TIMESTAMP_TYPE

COLUMNS = ("value", "key", "headers", "timestamp", "partition")


class Piece(NamedTuple):
    """A run of rows: its columns, and the partitions it names (null: by key)."""

    columns: RecordColumns
    partition: pa.Array | None


def pieces(data: object, info: TopicInfo, now_ms: int, piece_bytes: int) -> list[Piece]:
    """The rows of a table, checked, in runs of about `piece_bytes`."""
    found: list[Piece] = []
    row = 0
    for batch in _runs(_table(data, info), piece_bytes):
        if batch.num_rows:
            found.append(_piece(batch, info, now_ms, row))
            row += batch.num_rows
    return found


def _table(data: object, info: TopicInfo) -> pa.Table:
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if not isinstance(data, pa.Table):
        raise InvalidRequestError(
            f"{info.name}: send_batch takes a pyarrow Table or RecordBatch, "
            f"not a {type(data).__name__}"
        )
    names = data.column_names
    for name in names:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"allowed are {', '.join(COLUMNS)}"
            raise InvalidRequestError(f"{info.name}: send_batch knows no column {name!r}; {hint}")
        if names.count(name) > 1:
            raise InvalidRequestError(f"{info.name}: the table has two columns named {name!r}")
    if "value" not in names:
        raise InvalidRequestError(
            f"{info.name}: the table has no column 'value'; it has {', '.join(names) or 'none'}"
        )
    return data


def _runs(table: pa.Table, piece_bytes: int) -> Iterator[pa.RecordBatch]:
    count = max(1, -(-table.nbytes // piece_bytes))
    if table.column("value").num_chunks > 4 * count:
        table = table.combine_chunks()
    yield from table.to_batches(max_chunksize=max(1, -(-table.num_rows // count)))


def _piece(batch: pa.RecordBatch, info: TopicInfo, now_ms: int, row: int) -> Piece:
    given = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
    count = batch.num_rows
    value = _binary(given["value"], "value", info)
    key = _binary(given["key"], "key", info) if "key" in given else pa.nulls(count, pa.binary())
    if key.null_count and "compact" in info.config.cleanup_policy:
        raise InvalidRequestError(
            f"{info.name}: {key.null_count} rows have no key; a compacted topic keeps the last "
            "record a key, so every record needs one"
        )
    headers = _headers(given["headers"], info) if "headers" in given else None
    _check_sizes(key, value, headers, info, row)
    if "timestamp" in given:
        timestamp = _timestamp(given["timestamp"], info, now_ms)
    else:
        timestamp = pa.array(np.full(count, now_ms * 1000)).view(TIMESTAMP_TYPE)
    partition = _partition(given["partition"], info) if "partition" in given else None
    if headers is None:
        headers = pa.nulls(count, HEADERS_TYPE)
    return Piece(RecordColumns(key, value, timestamp, headers), partition)


def _binary(column: pa.Array, name: str, info: TopicInfo) -> pa.Array:
    kind = column.type
    if kind == pa.binary():
        return column
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    accepted = (
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        *(pa.types.is_fixed_size_binary, pa.types.is_null),
    )
    if not any(check(kind) for check in accepted):
        raise _ill_typed(info, name, kind, "binary or string")
    try:
        return column.cast(pa.binary())
    except pa.ArrowInvalid as error:
        raise InvalidRequestError(f"{info.name}: column {name!r}: {error}") from error


def _headers(column: pa.Array, info: TopicInfo) -> pa.Array:
    kind = column.type
    if pa.types.is_null(kind):
        return None
    wanted = "list<struct<key: string, value: binary>>"
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not listed or not pa.types.is_struct(kind.value_type):
        raise _ill_typed(info, "headers", kind, wanted)
    if [field.name for field in kind.value_type] != ["key", "value"]:
        raise _ill_typed(info, "headers", kind, wanted)
    try:
        headers = column.cast(HEADERS_TYPE)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _ill_typed(info, "headers", kind, wanted) from error
    entries = headers.flatten()
    if entries.null_count or entries.field("key").null_count:
        raise InvalidRequestError(f"{info.name}: a header has no key; every header needs a name")
    return headers


def _timestamp(column: pa.Array, info: TopicInfo, now_ms: int) -> pa.Array:
    kind = column.type
    try:
        if pa.types.is_integer(kind) or pa.types.is_null(kind):
            millis = column.cast(pa.int64())
        elif pa.types.is_timestamp(kind):
            if kind.tz is None:
                raise InvalidRequestError(
                    f"{info.name}: column 'timestamp' is {kind}, without a time zone; say which one, "
                    "e.g. by a cast to pa.timestamp('us', tz='UTC')"
                )
            # Finer units are cut to milliseconds; seconds must not wrap around.
            unit = pa.timestamp("ms", tz=kind.tz)
            millis = column.cast(unit, safe=kind.unit == "s").view(pa.int64())
        else:
            raise _ill_typed(info, "timestamp", kind, "an integer (milliseconds) or a timestamp")
    except pa.ArrowInvalid as error:
        raise InvalidRequestError(f"{info.name}: column 'timestamp': {error}") from error
    millis = millis.fill_null(now_ms)
    bounds = pc.min_max(millis)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low < MIN_TIMESTAMP_MS or high > MAX_TIMESTAMP_MS:
        raise InvalidRequestError(
            f"{info.name}: timestamp {low if low < MIN_TIMESTAMP_MS else high} is out of range; "
            f"allowed are {MIN_TIMESTAMP_MS} to {MAX_TIMESTAMP_MS} milliseconds since 1970"
        )
    return pc.multiply(millis, 1000).view(TIMESTAMP_TYPE)


def _partition(column: pa.Array, info: TopicInfo) -> pa.Array:
    if pa.types.is_null(column.type):
        return None
    if not pa.types.is_integer(column.type):
        raise _ill_typed(info, "partition", column.type, "an integer")
    if column.null_count == len(column):
        return None
    bounds = pc.min_max(column)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low < 0 or high >= info.partitions:
        raise PartitionNotFoundError(
            f"{info.name}: there is no partition {low if low < 0 else high}; "
            f"it has 0 to {info.partitions - 1}"
        )
    return column.cast(pa.int32())


def _check_sizes(
    key: pa.Array, value: pa.Array, headers: pa.Array | None, info: TopicInfo, row: int
) -> None:
    limit = info.config.max_message_bytes
    if headers is None and key.nbytes + value.nbytes <= limit:
        return
    sizes = _lengths(key) + _lengths(value)
    if headers is not None:
        entries = headers.flatten()
        each = _lengths(entries.field("key")) + _lengths(entries.field("value"))
        ends = np.cumsum(np.concatenate(([0], each)))
        counts = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False)
        stops = np.cumsum(np.concatenate(([0], counts)))
        sizes = sizes + ends[stops[1:]] - ends[stops[:-1]]
    largest = int(sizes.argmax())
    if sizes[largest] > limit:
        raise RecordTooLargeError(
            f"{info.name}: row {row + largest} has {sizes[largest]} bytes; max.message.bytes is "
            f"{limit}: cut the record, or raise the topic's limit; nothing of the table was sent"
        )


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = (
        pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return lengths


def _ill_typed(info: TopicInfo, name: str, kind: pa.DataType, wanted: str) -> InvalidRequestError:
    return InvalidRequestError(f"{info.name}: column {name!r} is {kind}; it must be {wanted}")
