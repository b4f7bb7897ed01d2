"""Fetch: records out of partitions."""

from __future__ import annotations

from streamlog.broker.call import Handler

HANDLERS: dict[int, Handler] = {}
