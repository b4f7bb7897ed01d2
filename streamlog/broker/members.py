"""The brokers of a root at one epoch, and how the next epoch follows. Pure.

V1  A view is numbered and never changes; all brokers go by the newest one. Leaders, coordinators and the
    controller follow from it alone, so two brokers with the same view say the same.
V2  A broker enters a view by its own doing only, and anybody who finds it dead may take it out. So two
    brokers that see a third differently do not undo each other's views.
V3  The controller stays as long as it lives, unless it does not maintain the root and another would.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass

from streamlog.broker.rendezvous import pick
from streamlog.errors import CorruptLogError


@dataclass(frozen=True, slots=True)
class Member:
    """A broker as the others know it. Of two with one node id, the higher claim is the holder."""

    node: int
    claim: int
    host: str
    port: int
    rack: str | None = None
    maintain: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """What tells it from any other that ever was."""
        return self.node, self.claim


@dataclass(frozen=True, slots=True)
class View:
    """The brokers of one epoch, by node id. Epoch 0, without any, is before the first one."""

    epoch: int = 0
    members: tuple[Member, ...] = ()
    controller: int | None = None

    def member(self, node: int) -> Member | None:
        """A broker by its node id."""
        return next((member for member in self.members if member.node == node), None)

    def next(self, members: Iterable[Member]) -> View:
        """The view that follows with these brokers."""
        ordered = tuple(sorted(members, key=lambda member: member.node))
        return View(self.epoch + 1, ordered, _controller(self, ordered))

    def to_bytes(self) -> bytes:
        """As it is stored."""
        body = {
            "epoch": self.epoch,
            "controller": self.controller,
            "members": [asdict(member) for member in self.members],
        }
        return json.dumps(body).encode()

    @classmethod
    def from_bytes(cls, where: str, data: bytes) -> View:
        """Reads what `to_bytes` writes."""
        try:
            body = json.loads(data)
            members = tuple(read_member(entry) for entry in body["members"])
            return cls(int(body["epoch"]), members, body["controller"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptLogError(
                f"{where} does not tell the brokers of an epoch ({error!r}); delete it while all brokers "
                "are stopped"
            ) from error


def read_member(entry: dict[str, object]) -> Member:
    """A member from its JSON; names it does not know are those of a newer version."""
    rack = entry.get("rack")
    return Member(
        int(str(entry["node"])),
        int(str(entry["claim"])),
        str(entry["host"]),
        int(str(entry["port"])),
        None if rack is None else str(rack),
        bool(entry.get("maintain", False)),
    )


def _controller(before: View, members: tuple[Member, ...]) -> int | None:
    if not members:
        return None
    fit = [member for member in members if member.maintain] or list(members)
    former = before.member(before.controller) if before.controller is not None else None
    if former is not None and any(member.key == former.key for member in fit):
        return former.node
    return pick("controller", [member.node for member in fit])


def without_dead(view: View, me: Member, dead: Collection[tuple[int, int]]) -> View | None:
    """The view that should follow: me in it, the dead not; None if that is so already (V2)."""
    kept = [m for m in view.members if m.node != me.node and m.key not in dead]
    members = tuple(sorted((*kept, me), key=lambda member: member.node))
    return None if members == view.members else view.next(members)
