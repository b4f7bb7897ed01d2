"""Which partition a record goes to, and cutting a batch by it. Pure.

A key decides by Kafka's murmur2, so that equal keys share a partition, here and in Kafka. Records
without a key all follow the batch's sticky partition: one file a batch instead of one a partition.
An explicit partition wins over both. Cutting is stable: within a partition the order of the batch
is kept.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamlog.batch import RecordColumns
from streamlog.errors import InvalidRequestError, PartitionNotFoundError
from streamlog.hashing import partitions_for
from streamlog.producer.settings import PartitionFunction


def assign(
    keys: pa.Array,
    partitions: int,
    sticky: int,
    explicit: NDArray[np.int64] | pa.Array | None = None,
) -> NDArray[np.integer] | None:
    """The partition of each record, or None if all go to partition `sticky % partitions`.

    `explicit` is a partition a record; null in a column, or -1 in numbers, means "by key".
    """
    sticky %= partitions
    keyless = partitions == 1 or keys.null_count == len(keys)
    if keyless and explicit is None:
        return None
    if keyless:
        assigned = np.full(len(keys), sticky, np.int32)
    else:
        assigned = partitions_for(keys, partitions)
        if keys.null_count:
            assigned = np.where(keys.is_null().to_numpy(zero_copy_only=False), sticky, assigned)
    if isinstance(explicit, pa.Array):
        explicit = explicit.fill_null(-1).to_numpy(zero_copy_only=False)
    if explicit is not None:
        assigned = np.where(explicit < 0, assigned, explicit)
    # numpy sorts 16-bit integers by radix, several times faster than wider ones by merging.
    return assigned.astype(np.int16 if partitions <= 1 << 15 else np.int32, copy=False)


def split(
    columns: RecordColumns, assigned: NDArray[np.integer] | None, sticky: int
) -> list[tuple[int, RecordColumns]]:
    """`columns` by partition, each part in the order it had."""
    if assigned is None:
        return [(sticky, columns)]
    counts = np.bincount(assigned)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        return [(int(present[0]), columns)]
    order = pa.array(np.argsort(assigned, kind="stable"))
    gathered = RecordColumns(
        key=_take(columns.key, order),
        value=_take(columns.value, order),
        timestamp=_take(columns.timestamp, order),
        headers=_take_headers(columns.headers, order),
    )
    parts = []
    start = 0
    for partition in present.tolist():
        count = int(counts[partition])
        parts.append((partition, gathered.slice(start, count)))
        start += count
    return parts


def check_explicit(partition: object, topic: str, partitions: int) -> int:
    """A partition given by the caller, checked."""
    if type(partition) is not int:
        raise InvalidRequestError(
            f"{topic}: partition={partition!r} is a {type(partition).__name__}; give an int or None"
        )
    if not 0 <= partition < partitions:
        raise PartitionNotFoundError(
            f"{topic}: there is no partition {partition}; it has 0 to {partitions - 1}"
        )
    return partition


def ask(
    function: PartitionFunction, topic: str, key: bytes | None, value: bytes | None, partitions: int
) -> int:
    """The user's own choice; whatever it does wrong is an error of this record alone."""
    try:
        partition = function(key, value, partitions)
    except Exception as error:
        raise InvalidRequestError(
            f"{topic}: the partitioner raised {type(error).__name__}: {error}; "
            "the record was not sent"
        ) from error
    if isinstance(partition, np.integer):
        partition = int(partition)
    if type(partition) is not int or not 0 <= partition < partitions:
        raise PartitionNotFoundError(
            f"{topic}: the partitioner returned {partition!r}; allowed are 0 to {partitions - 1}"
        )
    return partition


def _take(column: pa.Array, order: pa.Array) -> pa.Array:
    return pc.take(column, order, boundscheck=False)


def _take_headers(headers: pa.Array, order: pa.Array) -> pa.Array:
    # Hardly any batch has headers, and a column of nulls looks the same in every order.
    return headers if headers.null_count == len(headers) else _take(headers, order)
