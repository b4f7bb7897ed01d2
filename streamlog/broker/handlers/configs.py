"""Settings of topics and brokers, described and altered."""

from __future__ import annotations

from streamlog.broker.call import Handler

HANDLERS: dict[int, Handler] = {}
