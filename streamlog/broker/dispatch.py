"""Which handler answers which request.

D1  Every API of `apis.APIS` has a handler here and an error response in `failures`; a test walks both.
D2  An error that concerns one topic, partition or group is answered there by the handler itself. What
    reaches `failures.error_response` failed as a whole.
"""

from __future__ import annotations

from streamlog.broker.call import Handler
from streamlog.broker.handlers import (
    acls,
    cluster,
    configs,
    credentials,
    fetch,
    groups,
    metadata,
    offsets,
    produce,
    refused,
    sasl,
    topics,
    versions,
)

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
        cluster,
        groups,
        refused,
        sasl,
        acls,
        credentials,
    )
    for api, handler in module.HANDLERS.items()
}
