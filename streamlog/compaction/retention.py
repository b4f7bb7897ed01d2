"""Which records are past their time: whole files from the oldest on, the newest never.

By `retention.ms` a file goes when its youngest record is too old; by `retention.bytes` while the rest is
still as large as allowed. The first file that stays ends it, as in Kafka: the log has no holes. Nothing is
read or rewritten; the log start moves and the files leave the table in one commit.

`retention.hold.groups=hold` keeps what a group has not read, at most `retention.hold.max.ms` beyond the
record's time (beyond `retention.ms`; for `retention.bytes`, beyond the record's timestamp).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamlog.compaction.plan import Retain, clusters, total_bytes, total_records
from streamlog.config import TopicConfig
from streamlog.log.commit import Segment


def plan_retention(
    segments: Sequence[Segment],
    start: int,
    config: TopicConfig,
    now_ms: int,
    committed: Mapping[str, int] | None = None,
) -> Retain | None:
    """What goes now; `committed` is the next offset that each group will read."""
    if "delete" not in config.cleanup_policy:
        return None
    parts = clusters(segments)
    left = total_bytes(segments)
    gone: list[Segment] = []
    reasons: list[str] = []
    holding: set[str] = set()
    losing: set[str] = set()
    for part in parts[:-1]:
        size = total_bytes(part)
        age_ms = now_ms - max(segment.max_timestamp_us for segment in part) // 1000
        limit = config.retention_ms
        reason = ""
        if limit is not None and age_ms > limit:
            reason, over_ms = f"older than retention.ms={limit}", age_ms - limit
        elif config.retention_bytes is not None and left - size >= config.retention_bytes:
            reason, over_ms = f"beyond retention.bytes={config.retention_bytes}", age_ms
        if not reason:
            break
        last = max(segment.last for segment in part)
        behind = {name for name, offset in (committed or {}).items() if offset <= last}
        if behind and config.retention_hold_groups != "none":
            hold = config.retention_hold_groups == "hold"
            if hold and over_ms <= config.retention_hold_max_ms:
                holding |= behind
                break
            losing |= behind
        gone += part
        left -= size
        if reason not in reasons:
            reasons.append(reason)
    notes = []
    if losing:
        notes.append(f"unread by {', '.join(sorted(losing))}")
    if holding:
        notes.append(f"more is held for {', '.join(sorted(holding))}")
    if not gone and not notes:
        return None
    before = max((segment.last + 1 for segment in gone), default=start)
    return Retain(max(before, start), tuple(gone), "; ".join(reasons), "; ".join(notes))


def records_gone(plan: Retain, start: int) -> int:
    """Records that readers lose: those at or above the log start (about, where gaps are)."""
    below = sum(max(0, min(start, segment.last + 1) - segment.first) for segment in plan.files)
    return max(0, total_records(plan.files) - below)
