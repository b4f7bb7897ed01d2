"""Delta tables through the deltalake library: snapshots and checkpoints, and the only importer of it.

deltalake is imported on first use: a log without checkpoints is replayed by streamlog itself, and a
command-line call on a small root should not pay for the import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamlog.errors import CorruptLogError, UnavailableError

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from streamlog.storage.objects import Objects


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A live file of a snapshot; statistics are None where the engine that wrote it kept none."""

    path: str
    size: int
    records: int | None
    first_offset: int | None
    last_offset: int | None
    min_timestamp_us: int | None
    max_timestamp_us: int | None


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table at one version."""

    version: int
    files: tuple[LiveFile, ...]
    reader_version: int
    writer_version: int
    features: tuple[str, ...]
    properties: dict[str, str]
    schema_json: str
    transaction: Callable[[str], int | None]


def load_snapshot(objects: Objects, table: str, version: int) -> TableSnapshot:
    """The table pinned at `version`: an unpinned open of a hot local table fails on a gap (rule 5)."""
    delta = _open(objects, table, version)
    protocol = delta.protocol()
    features = (protocol.reader_features or []) + (protocol.writer_features or [])
    return TableSnapshot(
        version=version,
        files=tuple(_live_files(delta)),
        reader_version=protocol.min_reader_version,
        writer_version=protocol.min_writer_version,
        features=tuple(sorted(set(features))),
        properties=dict(delta.metadata().configuration),
        schema_json=delta.schema().to_json(),
        transaction=delta.transaction_version,
    )


def write_checkpoint(objects: Objects, table: str, version: int) -> None:
    """Writes Delta's checkpoint of `version`."""
    _open(objects, table, version).create_checkpoint()


def vacuum_candidates(objects: Objects, table: str, version: int, hours: int) -> list[str]:
    """Paths inside the table that no live or recently removed file names (delta-rs's dry run)."""
    found = _open(objects, table, version).vacuum(
        retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True
    )
    return [str(path) for path in found]


def _open(objects: Objects, table: str, version: int) -> DeltaTable:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    uri = f"{objects.uri.rstrip('/')}/{table}"
    try:
        return DeltaTable(uri, version=version, storage_options=objects.storage_options or None)
    except (DeltaError, OSError, ValueError) as error:
        raise _translated(table, version, error) from error


def _translated(table: str, version: int, error: Exception) -> Exception:
    text = str(error)
    lowered = text.lower()
    if "not found" in lowered or "no such file" in lowered or "timed out" in lowered:
        # A file that a clean-up took meanwhile, or the network: a second look decides.
        return UnavailableError(f"could not read {table} at version {version}: {text}")
    return CorruptLogError(
        f"{table} cannot be read at version {version}: {text}. "
        "Restore the damaged file of _delta_log from a backup or another copy; nothing was skipped."
    )


def _live_files(delta: DeltaTable) -> list[LiveFile]:
    import pyarrow as pa

    actions = pa.table(delta.get_add_actions(flatten=True))
    count = actions.num_rows

    def column(name: str, kind: pa.DataType | None = None) -> list[Any]:
        if name not in actions.column_names:
            return [None] * count
        values = actions[name]
        return list((values.cast(kind) if kind is not None else values).to_pylist())

    times = pa.timestamp("us", tz="UTC")

    def micros(name: str) -> list[Any]:
        if name not in actions.column_names:
            return [None] * count
        return list(actions[name].cast(times).cast(pa.int64()).to_pylist())

    return [
        LiveFile(*row)
        for row in zip(
            column("path"),
            column("size_bytes", pa.int64()),
            column("num_records", pa.int64()),
            column("min.offset", pa.int64()),
            column("max.offset", pa.int64()),
            micros("min.timestamp"),
            micros("max.timestamp"),
            strict=True,
        )
    ]
