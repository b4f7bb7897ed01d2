"""Who of several brokers serves what: rendezvous hashing. Pure functions, the same answer everywhere.

Each pair of a thing and a broker has a score; the highest wins. So when a broker goes, only what it had
moves, and when one comes, it takes its share and nothing else moves. For a topic's partitions the spread is
bounded too: the first n of them give no broker more than a quarter above its share, rounded up. That moves a
few more than need be (1.3 times at 3 brokers and 12 partitions, 1.5 at 5 and 50), and in return 4
partitions on 3 brokers never end up on one.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b


def score(thing: str, node: int) -> int:
    """How much a broker is the one for a thing."""
    return int.from_bytes(blake2b(f"{thing}\0{node}".encode(), digest_size=8).digest(), "big")


def pick(thing: str, nodes: Sequence[int]) -> int:
    """The broker for one thing on its own, such as a group.

    >>> pick("group/billing", [1, 2, 3]) in (1, 2, 3)
    True
    """
    return max(nodes, key=lambda node: (score(thing, node), node))


class Spread:
    """The brokers of one topic's partitions, worked out as far as asked for."""

    def __init__(self, topic_id: str, nodes: Sequence[int]) -> None:
        self._topic_id = topic_id
        self._load = dict.fromkeys(sorted(nodes), 0)
        self._found: list[int] = []

    def node(self, partition: int) -> int:
        """Who has a partition; it depends on those before it, not on how many there are."""
        while len(self._found) <= partition:
            self._found.append(self._next(len(self._found)))
        return self._found[partition]

    def _next(self, partition: int) -> int:
        most = -(-5 * (partition + 1) // (4 * len(self._load)))
        free = [node for node, load in self._load.items() if load < most]
        node = pick(f"{self._topic_id}/{partition}", free)
        self._load[node] += 1
        return node
