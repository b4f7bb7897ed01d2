"""Which handler answers which request, and how a failure is told where the handler did not.

D1  Every API of `apis.APIS` has a handler and an error response; a test walks both tables.
D2  An error that concerns one topic, partition or group is answered there by the handler itself. What
    reaches `error_response` failed as a whole: its code is put where the response has room for one, or
    the connection ends, never a silent hang.
"""

from __future__ import annotations

from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.handlers import (
    acls,
    configs,
    credentials,
    fetch,
    groups,
    metadata,
    offsets,
    produce,
    sasl,
    topics,
    versions,
)
from streamlog.broker.kafka_errors import code_of

HANDLERS: dict[int, Handler] = {
    api: handler
    for module in (
        versions,
        metadata,
        produce,
        fetch,
        offsets,
        topics,
        configs,
        groups,
        sasl,
        acls,
        credentials,
    )
    for api, handler in module.HANDLERS.items()
}


def error_response(call: Call, error: Exception) -> Response:
    """A response that says that the request failed as a whole."""
    return {"error_code": code_of(error), "error_message": str(error)}
