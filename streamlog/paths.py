"""Every name on storage, formatted and parsed in one place.

Numbers are zero-padded so that listings sort: the version of a Delta commit has 20 digits by Delta's own
rule, a data file begins with the 20 digits of its first offset, like Kafka's segments:

    topics/orders/0/00000000000000004200-5f0c….parquet
    topics/orders/0/_delta_log/00000000000000000017.json

A topic that is deleted and made again lives under another path (`topics/orders~2/`): `~` is not allowed
in topic names, so no two topics can meet.
"""

from __future__ import annotations

import re

MARKER = "_streamlog.json"
TOPICS_TABLE = "__topics"
TOPICS_DIR = "topics"
PRODUCERS_DIR = "__producers"
OFFSETS_DIR = "__consumer_offsets"
GROUPS_DIR = "__groups"
STAGING_DIR = "__spark"
LEASE_DIR = "__maintenance"
PROBE_DIR = "__doctor"
REPAIRS_DIR = "__repairs"
PRODUCER_IDS_DIR = "__producer_ids"
BROKERS_DIR = "__brokers"
BROKER_IDS_DIR = "__broker_ids"
USERS_TABLE = "__users"
ACLS_TABLE = "__acls"

_COMPONENT_MAX = 240

_COMMIT = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint(\.[\w.-]+)?\.parquet$")
_DATA = re.compile(r"^(\d{20})-[0-9a-f]{32}\.parquet$")
_HOLDER = re.compile(r"^(\d{10})\.(\d{10})$")


def topic_dir(name: str, incarnation: int) -> str:
    """The folder of a topic; its first incarnation bears the plain name."""
    return f"{TOPICS_DIR}/{name}" if incarnation == 1 else f"{TOPICS_DIR}/{name}~{incarnation}"


def partition_dir(name: str, incarnation: int, partition: int) -> str:
    """The folder of a partition: a Delta table."""
    return f"{topic_dir(name, incarnation)}/{partition}"


def log_dir(table: str) -> str:
    """Delta's log folder of a table."""
    return f"{table}/_delta_log"


def commit_file(table: str, version: int) -> str:
    """The commit of one version."""
    return f"{table}/_delta_log/{version:020d}.json"


def parse_commit(name: str) -> int | None:
    """The version that a file name in `_delta_log` commits, or None."""
    match = _COMMIT.match(name)
    return int(match[1]) if match else None


def parse_checkpoint(name: str) -> int | None:
    """The version that a file name in `_delta_log` is a checkpoint of, or None."""
    match = _CHECKPOINT.match(name)
    return int(match[1]) if match else None


def data_file(first_offset: int, unique: str) -> str:
    """The name, inside its table, of a data file that begins with this offset."""
    return f"{first_offset:020d}-{unique}.parquet"


def parse_data_file(name: str) -> int | None:
    """The first offset of a data file written by streamlog, or None for another engine's file."""
    match = _DATA.match(name)
    return int(match[1]) if match else None


def producer_dir(producer_id: str) -> str:
    """The folder of the epochs that a producer id went through."""
    return f"{PRODUCERS_DIR}/{encode(producer_id)}"


def producer_epoch(producer_id: str, epoch: int) -> str:
    """The marker that one holder of a producer id took this epoch."""
    return f"{producer_dir(producer_id)}/{epoch:010d}"


def group_table(group: str) -> str:
    """The Delta table of a group's committed offsets."""
    return f"{OFFSETS_DIR}/{encode(group)}"


def group_marker(group: str) -> str:
    """The object that tells that there is, or was, such a group."""
    return f"{GROUPS_DIR}/{encode(group)}/group.json"


def member_dir(group: str) -> str:
    """The folder of a group's heartbeats."""
    return f"{GROUPS_DIR}/{encode(group)}/members"


def member_beat(group: str, member: str) -> str:
    """The heartbeat of one member: an object that it overwrites."""
    return f"{member_dir(group)}/{encode(member)}"


def fits(name: str) -> bool:
    """Whether a text can be a path component: file systems allow 255 bytes, some suffixes included."""
    return 0 < len(encode(name)) <= _COMPONENT_MAX


def broker_claim(node: int, claim: int) -> str:
    """The marker that a broker took a node id, as its holder number `claim`."""
    return f"{BROKER_IDS_DIR}/{node:010d}.{claim:010d}"


def broker_beat(node: int, claim: int) -> str:
    """The heartbeat of a broker: an object that it overwrites."""
    return f"{BROKERS_DIR}/live/{node:010d}.{claim:010d}"


def broker_view(epoch: int) -> str:
    """The brokers of one epoch."""
    return f"{BROKERS_DIR}/epochs/{epoch:010d}"


def parse_broker(name: str) -> tuple[int, int] | None:
    """The node id and the claim in a file name of the two kinds above, or None."""
    match = _HOLDER.match(name)
    return (int(match[1]), int(match[2])) if match else None


def encode(name: str) -> str:
    """Any text as one safe path component: `%XX` for what is not [A-Za-z0-9_-], so never `.` or `..`."""
    return "".join(
        chr(b) if chr(b).isascii() and (chr(b).isalnum() or chr(b) in "_-") else f"%{b:02X}"
        for b in name.encode()
    )
