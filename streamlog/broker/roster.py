"""The brokers of a root on storage: who holds which node id, who beats, which views there were. Blocks.

    __broker_ids/0000000003.0000000001    node id 3 was taken, for the first time: put if absent
    __brokers/live/0000000003.0000000001  its holder's heartbeat, overwritten; deleted when it leaves
    __brokers/epochs/0000000017           the brokers of epoch 17: put if absent

R1  Two brokers never hold the same (node id, claim): the marker is put if absent and never deleted.
R2  A heartbeat's content is the same but for its number, so others read it once.
R3  Views below the newest few are deleted. A broker that slept may then put one under a number long past;
    nobody goes by it, itself included, for everybody takes the highest number that a listing shows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from streamlog import paths
from streamlog.broker.members import Member, View, read_member
from streamlog.errors import UnavailableError
from streamlog.storage.objects import Objects

_VIEWS_KEPT = 8
_CLAIM_ATTEMPTS = 20

Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Look:
    """One listing: the newest epoch there is, and a text for each heartbeat that changes with it."""

    epoch: int
    beats: dict[Key, str]
    old: tuple[int, ...]


class Roster:
    """The objects of a root's brokers; several threads."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    # node ids

    def claims(self, node: int) -> list[int]:
        """Who held a node id, by number."""
        return sorted(claim for held, claim in self._holders() if held == node)

    def claim(self, node: int, claim: int, incarnation: str) -> bool:
        """Takes a node id as its next holder; False if another did."""
        body = json.dumps({"incarnation": incarnation}).encode()
        return self._objects.put_if_absent(paths.broker_claim(node, claim), body, durable=False)

    def claim_new(self, incarnation: str) -> Key:
        """Takes the next node id that nobody ever had."""
        for _ in range(_CLAIM_ATTEMPTS):
            node = max((held for held, _ in self._holders()), default=0) + 1
            if self.claim(node, 1, incarnation):
                return node, 1
        raise UnavailableError(
            f"no node id could be taken in {_CLAIM_ATTEMPTS} attempts; try again, or set node_id"
        )

    def _holders(self) -> list[Key]:
        found = (paths.parse_broker(name) for name in self._objects.names(paths.BROKER_IDS_DIR))
        return [holder for holder in found if holder is not None]

    # heartbeats

    def beat(self, member: Member, number: int, incarnation: str, every: float) -> None:
        """Shows that a broker lives."""
        body = asdict(member) | {"incarnation": incarnation, "beat": number, "every": every}
        self._objects.put(paths.broker_beat(*member.key), json.dumps(body).encode())

    def sign(self, key: Key) -> str | None:
        """A text that changes with each heartbeat of one broker; None if there is none."""
        info = self._objects.head(paths.broker_beat(*key))
        return None if info is None else f"{info.etag}/{info.modified}"

    def holder(self, key: Key) -> tuple[Member, float] | None:
        """What a heartbeat says: who it is, and how often it comes."""
        data = self._objects.get(paths.broker_beat(*key))
        if data is None:
            return None
        try:
            body = json.loads(data)
            return read_member(body), float(body["every"])
        except (ValueError, KeyError, TypeError, AttributeError):
            # Written by hand, or of a newer version: it can be watched, not read.
            return None

    def forget(self, keys: Sequence[Key]) -> None:
        """Deletes heartbeats."""
        self._objects.delete([paths.broker_beat(*key) for key in keys])

    # views

    def look(self) -> Look:
        """What there is now, in one request."""
        epochs: list[int] = []
        beats: dict[Key, str] = {}
        for info in self._objects.list(paths.BROKERS_DIR):
            folder, _, name = info.path.rpartition("/")
            if folder.endswith("/epochs") and name.isdigit():
                epochs.append(int(name))
            elif folder.endswith("/live"):
                key = paths.parse_broker(name)
                if key is not None:
                    beats[key] = f"{info.etag}/{info.modified}"
        epochs.sort()
        return Look(epochs[-1] if epochs else 0, beats, tuple(epochs[:-_VIEWS_KEPT]))

    def view(self, epoch: int) -> View | None:
        """The view of an epoch; None if it is not there."""
        if epoch == 0:
            return View()
        path = paths.broker_view(epoch)
        data = self._objects.get(path)
        return None if data is None else View.from_bytes(path, data)

    def propose(self, view: View) -> bool:
        """Makes a view the one of its epoch; False if another was first."""
        path = paths.broker_view(view.epoch)
        return self._objects.put_if_absent(path, view.to_bytes(), durable=True)

    def forget_views(self, epochs: Sequence[int]) -> None:
        """Deletes views that are long past."""
        self._objects.delete([paths.broker_view(epoch) for epoch in epochs])
