"""`/metrics` and `/healthz` over HTTP: a tiny server that knows GET and nothing else.

H1  A request is one line and a few headers, which are not read but for their end, within limits of size and
    time; the connection is closed after the answer.
H2  Healthy means: this broker serves, is not draining, and the storage answered a heartbeat lately.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

from streamlog.broker.listening import cannot_listen
from streamlog.broker.survey import Survey

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

_log = logging.getLogger(__name__)

_SECONDS = 10.0
_MAX_HEAD = 16 << 10
_MAX_CONNECTIONS = 64
_METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class Http:
    """The listening end; for one event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._survey = Survey(broker)
        broker.metrics.add(self._survey)
        self._server: asyncio.Server | None = None
        self._open = 0

    @property
    def port(self) -> int | None:
        """Where it really listens; None if it does not."""
        if self._server is None or not self._server.sockets:
            return None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listens, if the settings say where."""
        settings = self._broker.settings
        if settings.http_port is None:
            return
        host, port = settings.http_host, settings.http_port
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=_MAX_HEAD)
        except OSError as error:
            raise cannot_listen(error, host, port, "--http") from error
        _log.info("metrics on http://%s:%s/metrics", host, self.port)

    async def stop(self) -> None:
        """Ends."""
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _MAX_CONNECTIONS:
                async with asyncio.timeout(_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                answer = await self._answer(head)
                async with asyncio.timeout(_SECONDS):
                    writer.write(answer)
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # Gone, or slow, or no HTTP at all: nothing to say to it.
            pass
        finally:
            self._open -= 1
            with suppress(OSError):
                writer.close()

    async def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(
                HTTPStatus.BAD_REQUEST, "text/plain", b"this is no request of HTTP/1\n"
            )
        method, path = words[0], words[1].split(b"?", 1)[0]
        if method != b"GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"only GET is known\n")
        if path == b"/metrics":
            await self._survey.refresh()
            return _response(HTTPStatus.OK, _METRICS_TYPE, self._broker.metrics.text())
        if path == b"/healthz":
            wrong = self._broker.unhealthy()
            status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
            body = {"status": wrong or "ok", "node": self._broker.cluster.me.node_id}
            return _response(status, "application/json", json.dumps(body).encode() + b"\n")
        return _response(HTTPStatus.NOT_FOUND, "text/plain", b"there are /metrics and /healthz\n")


def _response(status: HTTPStatus, kind: str, body: bytes) -> bytes:
    allow = "Allow: GET\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n{allow}Connection: close\r\n\r\n"
    )
    return head.encode() + body
