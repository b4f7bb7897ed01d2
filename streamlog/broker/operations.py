"""What a caller may do with a resource, as a number with a bit for each operation (KIP-430)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamlog.broker.acls import CLUSTER
from streamlog.broker.call import Call

__all__ = ["CLUSTER", "authorized"]

# Kafka's numbers of the operations that each kind of resource knows.
_OPERATIONS: Final[Mapping[str, Mapping[str, int]]] = {
    "cluster": {
        "create": 5,
        "alter": 7,
        "describe": 8,
        "cluster_action": 9,
        "describe_configs": 10,
        "alter_configs": 11,
        "idempotent_write": 12,
    },
    "topic": {
        "read": 3,
        "write": 4,
        "create": 5,
        "delete": 6,
        "alter": 7,
        "describe": 8,
        "describe_configs": 10,
        "alter_configs": 11,
    },
    "group": {"read": 3, "delete": 6, "describe": 8},
}


def authorized(call: Call, kind: str, name: str) -> int:
    """The operations that the caller may do."""
    allows = call.broker.security.allows
    return sum(1 << bit for op, bit in _OPERATIONS[kind].items() if allows(call, op, kind, name))
