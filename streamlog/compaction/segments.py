"""Which small files become one segment: size-tiered, so that the cost follows the new data.

A file is small below half of `segment.bytes`. Files that together fill a segment are merged into one;
otherwise `FAN_IN` of a similar size must lie side by side, or something larger follows them: then no more
will come. So a record is rewritten about once a tier, and there are few tiers: at 50 appends a second and
a run a minute, thousands of files become one, and some of those a segment. What is left unmerged is less
than `FAN_IN` files a tier, and one beside each full segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from streamlog.compaction.plan import Merge, clusters, total_bytes
from streamlog.log.commit import Segment

FAN_IN = 32
# Below this all files count as equally small: a Parquet file of one record has about 2 KB.
_LOWEST_TIER = 64 << 10

Cluster = tuple[Segment, ...]


def plan_merges(segments: Sequence[Segment], target: int, fan_in: int = FAN_IN) -> list[Merge]:
    """The merges that are due, oldest first; no file is in two of them."""
    bounds = [max(target // 2, 1)]
    while bounds[-1] > _LOWEST_TIER:
        bounds.append(max(bounds[-1] // fan_in, _LOWEST_TIER))
    found: list[Merge] = []
    for run, closed in _runs(clusters(segments), bounds[0]):
        full, rest = _filled(run, target)
        found += [Merge(_flat(parts), "together they fill a segment") for parts in full]
        found += [
            Merge(_flat(parts), f"{len(parts)} small files lie side by side")
            for parts in _tiered(rest, bounds[1:], fan_in, closed)
        ]
    return found


def _runs(parts: Sequence[Cluster], bound: int) -> list[tuple[list[Cluster], bool]]:
    """Maximal stretches of clusters below a size, each with whether something larger follows it."""

    def small(part: Cluster) -> bool:
        return total_bytes(part) < bound and all(segment.measured for segment in part)

    runs = [(is_small, list(run)) for is_small, run in groupby(parts, small)]
    return [(run, at < len(runs) - 1) for at, (is_small, run) in enumerate(runs) if is_small]


def _filled(run: Sequence[Cluster], target: int) -> tuple[list[list[Cluster]], list[Cluster]]:
    """Groups of at least the target size, and the rest."""
    full: list[list[Cluster]] = []
    batch: list[Cluster] = []
    size = 0
    for part in run:
        batch.append(part)
        size += total_bytes(part)
        if size >= target:
            full.append(batch)
            batch, size = [], 0
    return full, batch


def _tiered(
    run: Sequence[Cluster], lower: Sequence[int], fan_in: int, closed: bool
) -> list[list[Cluster]]:
    """The whole run if it counts enough pieces or will get no more, else what is due of its smaller parts."""
    smaller = _runs(run, lower[0]) if lower else []
    pieces = len(run) - sum(len(part) - 1 for part, _ in smaller)
    if pieces >= (2 if closed else fan_in):
        return [list(run)]
    return [
        merge
        for part, ends in smaller
        for merge in _tiered(part, lower[1:], fan_in, closed or ends)
    ]


def _flat(parts: Sequence[Cluster]) -> tuple[Segment, ...]:
    return tuple(segment for part in parts for segment in part)
