"""One Delta commit: what streamlog reads of it, and how it writes its own.

A commit of streamlog carries in `commitInfo.streamlog` its kind, a unique id, and the id of the commit
before, so that the versions form a chain: if another engine ever replaces a version, the next commit's
`previous` does not match and the reader stops (rule 4). A foreign commit has no id; its content's hash
stands in, so the chain runs through it.

Example, one line an action:

    {"commitInfo":{"operation":"STREAMLOG APPEND",…,"streamlog":{"kind":"append","id":…,"previous":…}}}
    {"txn":{"appId":"streamlog.end","version":4300,"lastUpdated":253402300799000}}
    {"add":{"path":"00000000000000004200-….parquet",…,"stats":"{\\"numRecords\\":100,…}"}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal
from urllib.parse import unquote

from streamlog import schema
from streamlog.errors import CorruptLogError
from streamlog.model import to_datetime
from streamlog.paths import parse_data_file
from streamlog.storage.delta import LiveFile
from streamlog.version import read_version

Kind = Literal["create", "append", "fence", "truncate", "rewrite", "seal", "replace"]

END = "streamlog.end"
START = "streamlog.start"
SEALED = "streamlog.sealed"
# Below this offset each key has one record (rule 17); and up to where, and since when (store time in
# milliseconds), tombstones are known to be clean.
CLEAN = "streamlog.clean"
TOMBSTONES = "streamlog.tombstones"
TOMBSTONES_AT = "streamlog.tombstones_at"
# The epoch of the last controller (a broker that maintains the root) that committed to a partition.
CONTROLLER = "streamlog.controller"

# Year 9999: no `delta.setTransactionRetentionDuration` may ever drop the head (rule 11).
NEVER_MS = 253_402_300_799_000
_STREAMLOG_PREFIX = "streamlog."


@dataclass(frozen=True, slots=True)
class Segment:
    """One immutable data file with its index: the offsets and times it holds."""

    path: str
    size: int
    records: int
    first: int
    last: int
    min_timestamp_us: int
    max_timestamp_us: int
    # False: another engine wrote it without statistics, and it was gone before it could be measured.
    # Its ranges are then the widest possible.
    measured: bool = True

    @property
    def sorted(self) -> bool:
        """Files of streamlog are in offset order; another engine's rewrite need not be."""
        return parse_data_file(self.path.rsplit("/", 1)[-1]) is not None


@dataclass(frozen=True, slots=True)
class Commit:
    """The parts of a commit that decide anything."""

    version: int
    id: str
    previous: str | None
    kind: str | None
    operation: str
    engine: str
    adds: tuple[LiveFile, ...]
    removes: tuple[str, ...]
    changes_data: bool
    txns: dict[str, int]
    protocol: dict[str, Any] | None
    metadata: dict[str, Any] | None
    timestamp_ms: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def author(self) -> str:
        """Which version this is and who made it, for messages."""
        return f"version {self.version} by {self.engine} ({self.operation})"


def _timestamp_us(text: object, *, up: bool) -> int | None:
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - to_datetime(0)
    micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    # Engines cut statistics to the millisecond: the true maximum may lie up to 999 us above.
    return micros + 999 if up and micros % 1000 == 0 else micros


def _live_file(add: Mapping[str, Any]) -> LiveFile:
    raw = add.get("stats")
    stats: Mapping[str, Any] = json.loads(raw) if isinstance(raw, str) and raw else {}
    low: Mapping[str, Any] = stats.get("minValues") or {}
    high: Mapping[str, Any] = stats.get("maxValues") or {}
    return LiveFile(
        path=unquote(add["path"]),
        size=int(add["size"]),
        records=stats.get("numRecords"),
        first_offset=low.get("offset"),
        last_offset=high.get("offset"),
        min_timestamp_us=_timestamp_us(low.get("timestamp"), up=False),
        max_timestamp_us=_timestamp_us(high.get("timestamp"), up=True),
    )


def parse(table: str, version: int, data: bytes) -> Commit:
    """Reads a commit file; anything unreadable is an error that names table and version."""
    where = f"{table}, version {version}"
    if not data.strip():
        raise CorruptLogError(
            f"the commit of {where} is empty: a power cut can leave this after acks=1. If it is the "
            "newest version, delete that file of _delta_log (its records were never durable); "
            "otherwise restore it from a backup."
        )
    info: dict[str, Any] = {}
    adds: list[LiveFile] = []
    removes: list[str] = []
    txns: dict[str, int] = {}
    protocol: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    changes_data = False
    try:
        for line in data.splitlines():
            if not line:
                continue
            for name, action in json.loads(line).items():
                if name == "add":
                    adds.append(_live_file(action))
                    changes_data |= bool(action.get("dataChange", True))
                elif name == "remove":
                    removes.append(unquote(action["path"]))
                    changes_data |= bool(action.get("dataChange", True))
                elif name == "txn":
                    txns[action["appId"]] = int(action["version"])
                elif name == "commitInfo":
                    info = action
                elif name == "protocol":
                    protocol = action
                elif name == "metaData":
                    metadata = action
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptLogError(
            f"the commit of {where} is not valid Delta JSON ({error}). Restore that file of "
            "_delta_log from a backup; nothing was read past it."
        ) from error
    own = info.get("streamlog")
    own = own if isinstance(own, dict) else {}
    return Commit(
        version=version,
        id=str(own.get("id") or "sha256:" + hashlib.sha256(data).hexdigest()[:32]),
        previous=own.get("previous"),
        kind=own.get("kind"),
        operation=str(info.get("operation", "unknown")),
        engine=str(info.get("engineInfo") or info.get("clientVersion") or "an unknown engine"),
        adds=tuple(adds),
        removes=tuple(removes),
        changes_data=changes_data,
        txns=txns,
        protocol=protocol,
        metadata=metadata,
        timestamp_ms=int(info.get("timestamp") or 0),
        details=own,
    )


def _iso(micros: int, *, up: bool) -> str:
    millis = -(-micros // 1000) if up else micros // 1000
    return to_datetime(millis).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def add_action(segment: Segment, now_ms: int, *, data_change: bool) -> dict[str, Any]:
    """The `add` of a data file, with its statistics."""
    stats = {
        "numRecords": segment.records,
        "minValues": {
            "offset": segment.first,
            "timestamp": _iso(segment.min_timestamp_us, up=False),
        },
        "maxValues": {
            "offset": segment.last,
            "timestamp": _iso(segment.max_timestamp_us, up=True),
        },
        "nullCount": {"offset": 0, "timestamp": 0},
    }
    return {
        "add": {
            "path": segment.path,
            "partitionValues": {},
            "size": segment.size,
            "modificationTime": now_ms,
            "dataChange": data_change,
            "stats": json.dumps(stats, separators=(",", ":")),
        }
    }


def plain_add(path: str, size: int, records: int, now_ms: int) -> dict[str, Any]:
    """The `add` of a small table's one live file."""
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": size,
            "modificationTime": now_ms,
            "dataChange": True,
            "stats": json.dumps({"numRecords": records}, separators=(",", ":")),
        }
    }


def remove_action(path: str, size: int, now_ms: int, *, data_change: bool) -> dict[str, Any]:
    """The `remove` of a file; `now_ms` is store time, which vacuum compares with (rule 7)."""
    return {
        "remove": {
            "path": path,
            "deletionTimestamp": now_ms,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": size,
        }
    }


def txn_action(app_id: str, version: int, now_ms: int) -> dict[str, Any]:
    """A `txn`; streamlog's own never expire, producers' do after the table's seven days."""
    updated = NEVER_MS if app_id.startswith(_STREAMLOG_PREFIX) else now_ms
    return {"txn": {"appId": app_id, "version": version, "lastUpdated": updated}}


def create_actions(
    table_id: str, columns: Any, now_ms: int, properties: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Protocol and metadata of a new table. By hand and not by deltalake, because version 0 must carry
    the head and a commit id and be durable before it is visible; deltalake's create can do neither."""
    return [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "-".join(
                    (table_id[:8], table_id[8:12], table_id[12:16], table_id[16:20], table_id[20:])
                ),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema.delta_schema(columns),
                "partitionColumns": [],
                "createdTime": now_ms,
                "configuration": {
                    "delta.enableExpiredLogCleanup": "false",
                    "delta.setTransactionRetentionDuration": "interval 7 days",
                    **(properties or {}),
                },
            }
        },
    ]


@cache
def _engine() -> str:
    return f"streamlog/{read_version()}"


def build(
    kind: Kind,
    *,
    commit_id: str,
    previous: str | None,
    now_ms: int,
    actions: Sequence[Mapping[str, Any]],
    details: Mapping[str, Any] | None = None,
) -> bytes:
    """The bytes of a commit of streamlog."""
    own: dict[str, Any] = {"kind": kind, "id": commit_id, "previous": previous}
    if details:
        own.update(details)
    info = {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": f"STREAMLOG {kind.upper()}",
            "operationParameters": {},
            "isBlindAppend": kind == "append",
            "engineInfo": _engine(),
            "streamlog": own,
        }
    }
    lines = [json.dumps(action, separators=(",", ":")) for action in (info, *actions)]
    return ("\n".join(lines) + "\n").encode()
