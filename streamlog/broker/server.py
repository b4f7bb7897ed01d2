"""Connections: frames in, responses out, in the order of the requests.

S1  Requests of a connection are handled at the same time, up to `max_in_flight`, and answered in order.
S2  A slow reader is not written to without end, nor is a fast writer read without end: the socket is left
    full. A frame that is too long, or no request at all, ends its connection and nobody else's.
    So does one that connects and does not log in or ask for anything soon, or that stalls in mid-request.
S3  Stopping: no new connections and no new requests; those under way are answered, within a limit.

Handlers may rely on this: of one connection, the synchronous beginning of each handler (up to its first
await) runs in the order of the requests. Produce requests are queued there.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from streamlog.broker import tls, wire
from streamlog.broker.apis import API_VERSIONS
from streamlog.broker.call import Call, Peer, Response
from streamlog.broker.dispatch import HANDLERS
from streamlog.broker.failures import error_response
from streamlog.broker.handlers.versions import announced
from streamlog.broker.kafka_errors import Code
from streamlog.broker.limits import Buckets
from streamlog.broker.memory import Memory
from streamlog.broker.security import NotAdmittedError
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

_log = logging.getLogger(__name__)
# The slowest that a request may arrive on average, once it began; else it is stalled.
_SLOWEST_BYTES_PER_SECOND = 100 << 10
_LINGER_SECONDS = 1.0


class Server:
    """The listening end of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._hosts: Counter[str] = Counter()
        self._open: set[Connection] = set()
        settings = broker.settings
        self._tls = tls.server_context(settings)
        self._rates = Buckets(settings.connections_per_second, settings.connections_burst)

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

    async def stop(self, seconds: float) -> None:
        """S3; what is under way has so long."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.drain()
        if self._connections:
            _, late = await asyncio.wait(self._connections, timeout=seconds)
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
        connection: Connection | None = None
        try:
            if not self._has_room(host):
                _log.warning("refused a connection of %s: too many", host)
                return
            peer = Peer(host, int(address[1]))
            if self._tls is not None:
                await self._encrypt(self._tls, writer, peer)
            connection = Connection(self._broker, reader, writer, peer)
            self._open.add(connection)
            await connection.run()
        except ssl.SSLError as error:
            _log.warning("no TLS with %s: %s", host, error.reason or error)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            if connection is not None:
                self._open.discard(connection)
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
            self._connections.discard(task)
            with suppress(ConnectionError, OSError):
                writer.close()

    def _has_room(self, host: str) -> bool:
        settings = self._broker.settings
        return (
            len(self._connections) <= settings.max_connections
            and self._hosts[host] <= settings.max_connections_per_host
            and self._rates.take(host, self._broker.runtime.clock.monotonic())
        )

    async def _encrypt(
        self, context: ssl.SSLContext, writer: asyncio.StreamWriter, peer: Peer
    ) -> None:
        """After the limits, so that a flood costs no handshakes, and those under way are counted.

        Nothing is awaited before this: bytes that were read already would be lost to TLS.
        """
        settings = self._broker.settings
        await writer.start_tls(context, ssl_handshake_timeout=settings.login_seconds)
        if not settings.mechanisms:
            certificate = writer.get_extra_info("peercert")
            peer.principal = tls.principal(certificate) or peer.principal


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
        self._last: asyncio.Task[bytes] | None = None
        self._asked = False
        self._login_by = asyncio.get_running_loop().time() + broker.settings.login_seconds
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
            size = int.from_bytes(await self._head(), "big", signed=True)
            most = self._broker.security.max_request_bytes(self.peer)
            if not 8 <= size <= most:
                _log.warning(
                    "%s sent a frame of %d bytes (allowed are 8 to %d): connection closed",
                    self.peer.host,
                    size,
                    most,
                )
                return
            await memory.take(size)
            try:
                patience = settings.stall_seconds + size / _SLOWEST_BYTES_PER_SECOND
                async with asyncio.timeout(self._patience(patience)):
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

    async def _head(self) -> bytes:
        """The length of the next request. A client that is silent for long is gone, or will come again."""
        usual = self._broker.settings.idle_seconds
        while True:
            patience = self._patience(usual)
            try:
                async with asyncio.timeout(patience):
                    return await self._reader.readexactly(4)
            except TimeoutError:
                # A login may have ended well while we waited for what comes after it.
                if patience >= usual or self._patience(usual) < usual:
                    raise

    def _patience(self, usual: float) -> float:
        """How many seconds a client has, or is left with until it must have shown itself."""
        if self._asked and self._broker.security.is_known(self.peer):
            return usual
        return min(usual, max(0.0, self._login_by - asyncio.get_running_loop().time()))

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
        self._asked = True
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
            except NotAdmittedError as error:
                _log.warning("%s: %s; connection closed", self.peer.host, error)
                self.peer.notes["close"] = True
                body = None
            except StreamlogError as error:
                _log.debug("API %d of %s: %s", call.api, self.peer.host, error)
                body = error_response(call, error)
            except Exception as error:
                _log.exception("API %d version %d of %s", call.api, call.version, self.peer.host)
                body = error_response(call, error)
            counted.answered(body)
        if self.peer.notes.get("close") and self._last is None:
            self._last = asyncio.current_task()
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
                # A client that does not read is not waited for any longer than one that does not ask.
                async with asyncio.timeout(self._broker.settings.idle_seconds):
                    await self._writer.drain()
            if task is self._last:
                if data:
                    await self._linger()
                return

    async def _linger(self) -> None:
        """Lets the client hang up first: of an answer and an end at once, some clients see only the end."""
        assert self._reading is not None
        self._reading.cancel()
        await asyncio.wait((self._reading,))
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while await self._reader.read(1 << 16):
                    pass


def _give_back(memory: Memory, size: int, _: asyncio.Task[bytes]) -> None:
    memory.give(size)


async def _ready(data: bytes) -> bytes:
    return data
