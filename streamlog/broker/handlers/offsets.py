"""ListOffsets and OffsetForLeaderEpoch: where partitions begin and end."""

from __future__ import annotations

from streamlog.broker.call import Handler

HANDLERS: dict[int, Handler] = {}
