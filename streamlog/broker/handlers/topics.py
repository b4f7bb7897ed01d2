"""Topics made, changed and deleted by Kafka's admin clients."""

from __future__ import annotations

from streamlog.broker.call import Handler

HANDLERS: dict[int, Handler] = {}
