"""Whether and how far a compacted topic's partition is to be compacted by key.

Below the horizon, the last record of each key stays. The horizon is never in the newest file, and never
above a record younger than `min.compaction.lag.ms`.

Tombstones (rule 17) turn in phases: a pass notes up to where everything is clean (`streamlog.tombstones`)
and when that was; once `delete.retention.ms` passed since, the next pass drops tombstones below that
offset and opens the next phase. So a tombstone lives at least that long after it became clean, at most
twice as long, and it is dropped only when an earlier pass had removed all that it deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamlog.compaction.plan import Compact, clusters
from streamlog.config import TopicConfig
from streamlog.log.commit import CLEAN, TOMBSTONES, TOMBSTONES_AT, Segment


@dataclass(frozen=True, slots=True)
class CleanState:
    """How far earlier passes came, as the log's transactions have it."""

    clean: int = 0
    tombstones: int = 0
    tombstones_at_ms: int = 0


def plan_compaction(
    segments: Sequence[Segment],
    start: int,
    state: CleanState,
    config: TopicConfig,
    now_ms: int,
) -> Compact | None:
    """The pass that is due, None if none is."""
    if "compact" not in config.cleanup_policy:
        return None
    youngest_us = (now_ms - config.min_compaction_lag_ms) * 1000
    files: list[Segment] = []
    for part in clusters(segments)[:-1]:
        young = config.min_compaction_lag_ms and any(
            segment.max_timestamp_us > youngest_us for segment in part
        )
        if young or not all(segment.measured for segment in part):
            break
        files += part
    if not files:
        return None
    horizon = max(segment.last for segment in files) + 1
    drop_below = 0
    if state.tombstones and now_ms - state.tombstones_at_ms >= config.delete_retention_ms:
        drop_below = min(state.tombstones, state.clean, horizon)
    ratio = dirty_ratio(files, state.clean)
    if ratio > 0 and ratio >= config.min_cleanable_dirty_ratio:
        reason = f"{ratio:.0%} of it is new"
    elif drop_below:
        reason = f"tombstones are older than delete.retention.ms={config.delete_retention_ms}"
    else:
        return None
    return Compact(tuple(files), start, horizon, drop_below, reason)


def dirty_ratio(files: Sequence[Segment], clean: int) -> float:
    """The share of bytes that no pass has seen."""
    dirty = 0.0
    total = 0
    for segment in files:
        total += segment.size
        if segment.last >= clean:
            span = segment.last - segment.first + 1
            dirty += segment.size * min(1.0, (segment.last + 1 - clean) / span)
    return dirty / total if total else 0.0


def marks_after(
    plan: Compact, state: CleanState, tombstones_left: bool, now_ms: int
) -> dict[str, int]:
    """The transactions that go with a pass."""
    marks = {CLEAN: max(plan.horizon, state.clean)}
    if not tombstones_left:
        # No phase without a tombstone: its end would be a pass over all files for nothing.
        if state.tombstones:
            marks[TOMBSTONES] = 0
    elif plan.drop_below or not state.tombstones:
        marks[TOMBSTONES] = marks[CLEAN]
        marks[TOMBSTONES_AT] = now_ms
    return marks
