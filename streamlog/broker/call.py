"""One request on its way through a broker: who asks, what, and of which broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

ANONYMOUS = "User:ANONYMOUS"


@dataclass(slots=True)
class Peer:
    """The other end of a connection. `principal` changes when it authenticates."""

    host: str
    port: int = 0
    principal: str = ANONYMOUS
    # What a handshake under way keeps between two requests.
    sasl: Any = field(default=None, repr=False)
    client_id: str = ""
    client_software: str = ""
    # "close": the connection ends after the answer of the request that sets it.
    notes: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A request with its context. `body` is the parsed message; its attributes are Kafka's fields."""

    broker: Broker
    peer: Peer
    api: int
    version: int
    client_id: str
    # Not for logs: it may hold credentials, or a whole batch of records.
    body: Any = field(repr=False)


Response = Mapping[str, Any]
# None means: no response at all (a Produce request with acks=0).
Handler = Callable[[Call], Awaitable[Response | None]]
