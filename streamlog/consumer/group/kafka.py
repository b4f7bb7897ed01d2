"""What a group keeps for Kafka's clients beside what every group has: who serves it, and the members' bytes.

A group is served by brokers or by embedded members, never by both: it has this part from the moment a
broker took it over until it is reset, deleted, or taken by an embedded member (which needs it to be empty).

K1  One broker serves a group at a time: the one whose *mark* is in the table. Whoever takes over writes a
    mark of its own, which nobody ever used before, and every change by a broker is made only in a version
    that still has its mark. So a broker that was replaced, and does not know it, changes nothing.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The broker's own heartbeat for a group, among its members' (whose ids end in hexadecimal digits).
COORDINATOR_BEAT = "@coordinator"


@dataclass(frozen=True, slots=True)
class KafkaMember:
    """What only the members understand: the subscription that one sent, and what the leader gave it."""

    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPart:
    """The brokers' part of a group's state."""

    node: int
    mark: str
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, KafkaMember] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For the note of a commit."""
        return {
            "node": self.node,
            "mark": self.mark,
            "protocol_type": self.protocol_type,
            "protocol": self.protocol,
            "leader": self.leader,
            "members": {
                key: [_text(member.metadata), _text(member.assignment)]
                for key, member in self.members.items()
            },
        }

    @staticmethod
    def from_json(data: Mapping[str, Any] | None) -> KafkaPart | None:
        """From the note of a commit; None for a group that no broker serves."""
        if data is None:
            return None
        return KafkaPart(
            node=int(data["node"]),
            mark=str(data["mark"]),
            protocol_type=str(data["protocol_type"]),
            protocol=data["protocol"],
            leader=data["leader"],
            members={
                key: KafkaMember(b64decode(metadata), b64decode(assignment))
                for key, (metadata, assignment) in data["members"].items()
            },
        )


def _text(data: bytes) -> str:
    return b64encode(data).decode()
