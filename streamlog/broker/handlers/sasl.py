"""SASL: the handshake and the exchange of credentials."""

from __future__ import annotations

from streamlog.broker.call import Handler

HANDLERS: dict[int, Handler] = {}
