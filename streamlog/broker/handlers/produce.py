"""Produce and InitProducerId: records into partitions."""

from __future__ import annotations

from streamlog.broker.call import Handler

HANDLERS: dict[int, Handler] = {}
