"""Requests that are announced only to be refused, in a way that clients tell their users about.

The next-generation protocol of groups (KIP-848): to a broker that does not announce it, librdkafka waits
for ever, without a word. Refused with UNSUPPORTED_VERSION, it and the Java client fail at once.
"""

from __future__ import annotations

from streamlog.broker import apis
from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.kafka_errors import Code, KafkaError


async def consumer_group_heartbeat(call: Call) -> Response:
    """Refuses a member of the next-generation protocol."""
    raise KafkaError(
        Code.UNSUPPORTED_VERSION,
        f"client {call.client_id!r} wants the next-generation protocol of groups (KIP-848), and only "
        "the classic one is served: set group.protocol=classic",
    )


HANDLERS: dict[int, Handler] = {apis.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat}
