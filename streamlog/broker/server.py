"""Connections: frames in, responses out, in the order of the requests.

S1  Requests of a connection are handled at the same time, up to `max_in_flight`, and answered in order.
S2  A slow reader is not written to without end, nor is a fast writer read without end: the socket is left
    full. A frame that is too long, or no request at all, ends its connection and nobody else's.
S3  Stopping: no new connections and no new requests; those under way are answered, within a limit.

Handlers may rely on this: of one connection, the synchronous beginning of each handler (up to its first
await) runs in the order of the requests. Produce requests are queued there.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from streamlog.broker import wire
from streamlog.broker.apis import API_VERSIONS
from streamlog.broker.call import Call, Peer, Response
from streamlog.broker.dispatch import HANDLERS
from streamlog.broker.failures import error_response
from streamlog.broker.handlers.versions import announced
from streamlog.broker.kafka_errors import Code
from streamlog.broker.memory import Memory
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

_log = logging.getLogger(__name__)


class Server:
    """The listening end of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._hosts: Counter[str] = Counter()
        self._open: set[Connection] = set()

    @property
    def port(self) -> int:
        """Where we really listen; settings may have said 0."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    async def start(self) -> None:
        """Takes the address; nobody is served before `serve`."""
        settings = self._broker.settings
        self._server = await asyncio.start_server(
            self._accept,
            settings.host,
            settings.port,
            backlog=1024,
            limit=1 << 18,
            start_serving=False,
        )

    async def serve(self) -> None:
        """Begins to listen."""
        assert self._server is not None
        await self._server.start_serving()

    async def stop(self) -> None:
        """S3."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.drain()
        if self._connections:
            _, late = await asyncio.wait(
                self._connections, timeout=self._broker.settings.drain_seconds
            )
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        address = writer.get_extra_info("peername") or ("?", 0)
        host = str(address[0])
        self._hosts[host] += 1
        settings = self._broker.settings
        connection = Connection(self._broker, reader, writer, Peer(host, int(address[1])))
        try:
            if (
                len(self._connections) > settings.max_connections
                or self._hosts[host] > settings.max_connections_per_host
            ):
                _log.warning("refused a connection of %s: too many", host)
                return
            self._open.add(connection)
            await connection.run()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(connection)
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
            self._connections.discard(task)
            with suppress(ConnectionError, OSError):
                writer.close()


class Connection:
    """One client."""

    def __init__(
        self,
        broker: Broker,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Peer,
    ) -> None:
        self._broker = broker
        self._reader = reader
        self._writer = writer
        self.peer = peer
        self._answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(broker.settings.max_in_flight)
        self._reading: asyncio.Task[None] | None = None
        raw = writer.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def drain(self) -> None:
        """Reads no more; what was read is still answered."""
        if self._reading is not None:
            self._reading.cancel()

    async def run(self) -> None:
        """Serves until the client goes, errs, or we drain."""
        self._reading = asyncio.create_task(self._read())
        writing = asyncio.create_task(self._write())
        try:
            await asyncio.wait((self._reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                # The client sends no more, or something it should not: answer the rest, then go.
                self._answers.put_nowait(None)
                await writing
        finally:
            self._reading.cancel()
            writing.cancel()
            while not self._answers.empty():
                answer = self._answers.get_nowait()
                if answer is not None:
                    answer.cancel()
            for task in (self._reading, writing):
                with suppress(
                    ConnectionError,
                    TimeoutError,
                    asyncio.IncompleteReadError,
                    asyncio.CancelledError,
                ):
                    await task

    async def _read(self) -> None:
        settings = self._broker.settings
        memory = self._broker.memory
        while True:
            await self._room.acquire()
            # A client that is silent for long is gone, or will come again.
            async with asyncio.timeout(settings.idle_seconds):
                head = await self._reader.readexactly(4)
            size = int.from_bytes(head, "big", signed=True)
            if not 8 <= size <= settings.max_request_bytes:
                _log.warning(
                    "%s sent a frame of %d bytes (allowed are 8 to %d): connection closed",
                    self.peer.host,
                    size,
                    settings.max_request_bytes,
                )
                return
            await memory.take(size)
            try:
                async with asyncio.timeout(settings.idle_seconds):
                    frame = await self._reader.readexactly(size)
                task = self._begin(frame)
            except BaseException:
                memory.give(size)
                raise
            if task is None:
                memory.give(size)
                return
            task.add_done_callback(partial(_give_back, memory, size))
            self._answers.put_nowait(task)

    def _begin(self, frame: bytes) -> asyncio.Task[bytes] | None:
        self._broker.metrics.received(len(frame) + 4)
        try:
            request = wire.parse_request(frame)
        except wire.UnsupportedVersionError as error:
            if error.api == API_VERSIONS:
                # KIP-511: answered in version 0, with what we do serve.
                body = announced() | {"error_code": Code.UNSUPPORTED_VERSION}
                data = wire.write_response(API_VERSIONS, 0, error.correlation_id, body)
                return asyncio.create_task(_ready(data))
            _log.warning("%s: %s; connection closed", self.peer.host, error)
            return None
        except wire.MalformedRequestError as error:
            _log.warning("%s: %s; connection closed", self.peer.host, error)
            return None
        self.peer.client_id = request.client_id or ""
        call = Call(
            self._broker,
            self.peer,
            request.api,
            request.version,
            request.client_id or "",
            request.body,
        )
        return asyncio.create_task(self._answer(call, request.correlation_id))

    async def _answer(self, call: Call, correlation_id: int) -> bytes:
        body: Response | None
        with self._broker.metrics.request(call) as counted:
            try:
                self._broker.security.admit(call)
                body = await HANDLERS[call.api](call)
            except StreamlogError as error:
                _log.debug("API %d of %s: %s", call.api, self.peer.host, error)
                body = error_response(call, error)
            except Exception as error:
                _log.exception("API %d version %d of %s", call.api, call.version, self.peer.host)
                body = error_response(call, error)
            counted.answered(body)
        if body is None:
            return b""
        return wire.write_response(call.api, call.version, correlation_id, body)

    async def _write(self) -> None:
        while True:
            task = await self._answers.get()
            if task is None:
                return
            data = await task
            self._room.release()
            if data:
                self._writer.write(data)
                self._broker.metrics.sent(len(data))
                await self._writer.drain()
            elif self.peer.notes.get("close"):
                return


def _give_back(memory: Memory, size: int, _: asyncio.Task[bytes]) -> None:
    memory.give(size)


async def _ready(data: bytes) -> bytes:
    return data
