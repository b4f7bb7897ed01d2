"""Which requests a broker answers, and in which versions.

The minima are low because librdkafka and aiokafka need them. Produce is announced from version 0 though
0 to 2 are refused: with a minimum of 3, librdkafka 2.0 silently sends gzip, snappy and lz4 uncompressed
(Kafka 4 does the same).
"""

from __future__ import annotations

from typing import NamedTuple

PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
OFFSET_COMMIT = 8
OFFSET_FETCH = 9
FIND_COORDINATOR = 10
JOIN_GROUP = 11
HEARTBEAT = 12
LEAVE_GROUP = 13
SYNC_GROUP = 14
DESCRIBE_GROUPS = 15
LIST_GROUPS = 16
SASL_HANDSHAKE = 17
API_VERSIONS = 18
CREATE_TOPICS = 19
DELETE_TOPICS = 20
DELETE_RECORDS = 21
INIT_PRODUCER_ID = 22
OFFSET_FOR_LEADER_EPOCH = 23
DESCRIBE_ACLS = 29
CREATE_ACLS = 30
DELETE_ACLS = 31
DESCRIBE_CONFIGS = 32
ALTER_CONFIGS = 33
DESCRIBE_LOG_DIRS = 35
SASL_AUTHENTICATE = 36
CREATE_PARTITIONS = 37
DELETE_GROUPS = 42
INCREMENTAL_ALTER_CONFIGS = 44
OFFSET_DELETE = 47
DESCRIBE_USER_SCRAM_CREDENTIALS = 50
ALTER_USER_SCRAM_CREDENTIALS = 51
DESCRIBE_CLUSTER = 60
CONSUMER_GROUP_HEARTBEAT = 68


class Versions(NamedTuple):
    """The versions of an API: announced from `announced`, served from `first` to `last`."""

    first: int
    last: int
    announced: int


def _served(first: int, last: int, announced: int | None = None) -> Versions:
    return Versions(first, last, first if announced is None else announced)


APIS: dict[int, Versions] = {
    PRODUCE: _served(3, 13, announced=0),
    FETCH: _served(4, 16),
    LIST_OFFSETS: _served(1, 9),
    METADATA: _served(0, 12),
    OFFSET_COMMIT: _served(2, 9),
    OFFSET_FETCH: _served(1, 9),
    FIND_COORDINATOR: _served(0, 5),
    JOIN_GROUP: _served(0, 9),
    HEARTBEAT: _served(0, 4),
    LEAVE_GROUP: _served(0, 5),
    SYNC_GROUP: _served(0, 5),
    DESCRIBE_GROUPS: _served(0, 5),
    LIST_GROUPS: _served(0, 4),
    SASL_HANDSHAKE: _served(0, 1),
    API_VERSIONS: _served(0, 4),
    CREATE_TOPICS: _served(2, 7),
    DELETE_TOPICS: _served(1, 6),
    DELETE_RECORDS: _served(0, 2),
    INIT_PRODUCER_ID: _served(0, 5),
    OFFSET_FOR_LEADER_EPOCH: _served(2, 4),
    DESCRIBE_ACLS: _served(1, 3),
    CREATE_ACLS: _served(1, 3),
    DELETE_ACLS: _served(1, 3),
    DESCRIBE_CONFIGS: _served(1, 4),
    ALTER_CONFIGS: _served(0, 2),
    DESCRIBE_LOG_DIRS: _served(1, 4),
    SASL_AUTHENTICATE: _served(0, 2),
    CREATE_PARTITIONS: _served(0, 3),
    DELETE_GROUPS: _served(0, 2),
    INCREMENTAL_ALTER_CONFIGS: _served(0, 1),
    OFFSET_DELETE: _served(0, 0),
    DESCRIBE_USER_SCRAM_CREDENTIALS: _served(0, 0),
    ALTER_USER_SCRAM_CREDENTIALS: _served(0, 0),
    DESCRIBE_CLUSTER: _served(0, 1),
    # Always refused, in words that clients pass on.
    CONSUMER_GROUP_HEARTBEAT: _served(0, 1),
}
