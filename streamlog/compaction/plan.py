"""What maintenance would do to a partition: frozen, with the reason, before anything is done.

A plan is made from one version of a partition. Applying it re-checks that every file it depends on is
still live (rule 16): appends never void a plan, another job's rewrite of the same files does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from streamlog.log.commit import Segment

Action = Literal["merge", "retain", "compact", "erase"]


@dataclass(frozen=True, slots=True)
class Merge:
    """Small files that lie side by side become one segment."""

    files: tuple[Segment, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Retain:
    """The log start moves to `before`; the files wholly below it go."""

    before: int
    files: tuple[Segment, ...]
    reason: str
    # What groups have to do with it: held back for one, or taken away from one.
    note: str = ""


@dataclass(frozen=True, slots=True)
class Compact:
    """Of each key below `horizon` the last record stays.

    Tombstones below `drop_below` go as well. `files` are all the pass reads; which of them change is
    known only when the keys were compared.
    """

    files: tuple[Segment, ...]
    start: int
    horizon: int
    drop_below: int
    reason: str


Step = Merge | Retain | Compact


def action_of(step: Step) -> Action:
    """The word for a step."""
    if isinstance(step, Merge):
        return "merge"
    return "retain" if isinstance(step, Retain) else "compact"


def clusters(segments: Sequence[Segment]) -> list[tuple[Segment, ...]]:
    """Files in offset order; those that overlap (another engine's rewrite) are together in one cluster.

    >>> def file(first, last):
    ...     return Segment(f"{first}", 1, last - first + 1, first, last, 0, 0)
    >>> [len(found) for found in clusters([file(0, 4), file(5, 9), file(7, 12), file(13, 13)])]
    [1, 2, 1]
    """
    found: list[tuple[Segment, ...]] = []
    reach = -1
    for segment in segments:
        if found and segment.first <= reach:
            found[-1] = (*found[-1], segment)
        else:
            found.append((segment,))
        reach = max(reach, segment.last)
    return found


def total_bytes(segments: Iterable[Segment]) -> int:
    """Bytes of files."""
    return sum(segment.size for segment in segments)


def total_records(segments: Iterable[Segment]) -> int:
    """Records in files."""
    return sum(segment.records for segment in segments)
