"""ApiVersions: what this broker serves."""

from __future__ import annotations

from typing import Any

from streamlog.broker import apis
from streamlog.broker.call import Call, Handler, Response


def announced() -> dict[str, Any]:
    """The body of the answer."""
    return {
        "api_keys": [
            {"api_key": api, "min_version": served.announced, "max_version": served.last}
            for api, served in sorted(apis.APIS.items())
        ]
    }


async def api_versions(call: Call) -> Response:
    """Answers what every client asks first."""
    name = getattr(call.body, "client_software_name", "")
    version = getattr(call.body, "client_software_version", "")
    call.peer.client_software = f"{name} {version}".strip()
    return announced()


HANDLERS: dict[int, Handler] = {apis.API_VERSIONS: api_versions}
