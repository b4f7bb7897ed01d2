"""What may follow what: pure predicates over a log's state and the next commit.

I0  A commit of streamlog names the commit before it, and that is the one which was read.
I1  An append begins at the head: its first offset is the log's end, and its last is the new end less one.
I2  The head never goes back; neither does the log start, which never passes the head.
I3  Nothing follows a seal.
I4  The schema, the protocol and the columns' mapping stay as they were made.
I5  Another engine may rewrite files (OPTIMIZE), clean (VACUUM), and delete rows; it may not add records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamlog import schema
from streamlog.errors import CorruptLogError
from streamlog.log.commit import END, START, Commit

_HARMLESS_FEATURES = ("appendOnly", "invariants", "changeDataFeed")


def repair(version: int) -> str:
    """What to do about a version that must not be in the log.

    RESTORE of Delta is no help: it adds a commit and leaves this one where every reader passes it.
    """
    return (
        f"Stop all clients, move version {version} and all above it out of _delta_log (commits, "
        "checkpoints and _last_checkpoint); streamlog wrote none of them. Then write through streamlog "
        "only."
    )


def refuse(table: str, commit: Commit, what: str) -> CorruptLogError:
    """The error for a commit that breaks the log; names the version and the engine."""
    if commit.kind is None:
        action = repair(commit.version)
    else:
        action = "Restore that file of _delta_log from a backup; nothing was read past it."
    return CorruptLogError(f"{table}, {commit.author}: {what}. {action}")


def check_chain(table: str, commit: Commit, previous_id: str, previous_author: str = "") -> None:
    """I0: a commit of streamlog follows the very commit that was read before it (empty: not known)."""
    if commit.kind is not None and previous_id and commit.previous != previous_id:
        before = previous_author or f"version {commit.version - 1}"
        raise CorruptLogError(
            f"{table}, {commit.author}: it was written after commit {commit.previous}, but what is there "
            f"now is commit {previous_id}, {before}: another engine replaced a version. Stop all clients "
            f"and run `streamlog doctor --repair`, or restore version {commit.version - 1} of _delta_log "
            "from a backup; nothing was read past it."
        )


def check_append(table: str, end: int, commit: Commit) -> None:
    """I1 for a commit of kind append."""
    if len(commit.adds) != 1 or commit.removes:
        raise refuse(table, commit, "an append must add exactly one file and remove none")
    add = commit.adds[0]
    new_end = commit.txns.get(END)
    if (add.first_offset, new_end) != (end, end + (add.records or 0)):
        raise refuse(
            table,
            commit,
            f"it numbers {add.records} records from {add.first_offset} to a new end of {new_end}, "
            f"but the log ends at {end}",
        )


def check_head(table: str, start: int, end: int, commit: Commit) -> None:
    """I2 for any commit."""
    new_end = commit.txns.get(END, end)
    new_start = commit.txns.get(START, start)
    if new_end < end or new_start < start or new_start > new_end:
        raise refuse(
            table,
            commit,
            f"it moves the log from [{start}, {end}) to [{new_start}, {new_end}): ends never go back",
        )


def check_foreign(table: str, commit: Commit) -> None:
    """I5 by the commit's own words; the files it adds are compared by the state."""
    if not commit.changes_data:
        return
    operation = commit.operation.upper()
    if operation.startswith("DELETE"):
        return
    # FSCK takes files out of the table that are missing on storage: a repair, and a delete.
    if operation.startswith("FSCK") and not commit.adds:
        return
    raise refuse(
        table,
        commit,
        "it adds, changes or takes back records, which only streamlog may (other engines may OPTIMIZE, "
        "VACUUM and DELETE)",
    )


def check_definition(table: str, commit: Commit) -> None:
    """I4 for a commit."""
    found = None
    if commit.protocol is not None:
        found = protocol_fault(commit.protocol)
    if found is None and commit.metadata is not None:
        properties = commit.metadata.get("configuration") or {}
        found = metadata_fault(properties, commit.metadata.get("schemaString"))
    if found is not None:
        raise refuse(table, commit, found)


def protocol_fault(protocol: Mapping[str, Any]) -> str | None:
    """I4 for a protocol action: what is wrong with it."""
    reader = int(protocol.get("minReaderVersion", 1))
    features = sorted(
        set(protocol.get("readerFeatures") or []) | set(protocol.get("writerFeatures") or [])
    )
    harmful = [name for name in features if name not in _HARMLESS_FEATURES]
    if reader <= 1 and not harmful:
        return None
    switched = f" and {', '.join(harmful)} switched on" if harmful else ""
    return (
        f"the protocol was raised to reader version {reader}{switched}; streamlog's tables stay at "
        "reader version 1, so that every engine reads them"
    )


def metadata_fault(properties: Mapping[str, str], columns: str | None) -> str | None:
    """I4 for a metaData action: what is wrong with it."""
    mode = properties.get("delta.columnMapping.mode", "none")
    if mode != "none":
        return f"column mapping was switched on (mode {mode}); streamlog's tables must keep it off"
    if properties.get("delta.enableDeletionVectors", "false").lower() == "true":
        return "deletion vectors were switched on; streamlog's tables must keep them off"
    constraints = [name for name in properties if name.startswith("delta.constraints.")]
    if constraints:
        names = ", ".join(sorted(name.removeprefix("delta.constraints.") for name in constraints))
        return f"the constraint {names} was added, which streamlog's writers do not check"
    if columns is not None and not schema.same_columns(columns, schema.RECORD_SCHEMA):
        names = ", ".join(schema.RECORD_SCHEMA.names)
        return f"the schema was changed; a partition's columns are {names}"
    return None
