"""What strangers can do to a broker: too many connections, too slow, too long, no sense at all."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

import streamlog
from streamlog.broker import apis
from tests.broker.harness import RunningBroker, running_broker
from tests.broker.messages import EVERY, request_frame
from tests.broker.raw import request
from tests.broker.secured import SECONDS, secured, users

HELLO = request_frame(apis.API_VERSIONS, 0, request(apis.API_VERSIONS, 0))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with streamlog.connect(tmp_path / "root") as log:
        users(log).add("alice", "x")
    return tmp_path / "root"


def opened(broker: RunningBroker) -> socket.socket:
    host, _, port = broker.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def answered(connection: socket.socket) -> bool:
    """Whether a request is answered; False if the connection ends instead."""
    try:
        connection.sendall(framed(HELLO))
        return len(connection.recv(4)) == 4
    except ConnectionError:
        return False


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_host"])
def test_one_connection_too_many_is_refused_and_others_go_on(root: Path, limit: str) -> None:
    with running_broker(root, **{limit: 3}) as broker, ExitStack() as stack:
        open_ones = [stack.enter_context(opened(broker)) for _ in range(3)]
        assert all(answered(connection) for connection in open_ones)
        with opened(broker) as fourth:
            assert not answered(fourth)
        assert answered(open_ones[0])
        open_ones[1].close()
        eventually(lambda: broker.broker.server.connections == 2)
        with opened(broker) as next_one:
            assert answered(next_one)


def test_connections_that_come_too_fast_are_refused(root: Path) -> None:
    with (
        running_broker(root, connections_per_second=1e-6, connections_burst=5) as broker,
        ExitStack() as stack,
    ):
        fates = [answered(stack.enter_context(opened(broker))) for _ in range(8)]
        assert fates == [True] * 5 + [False] * 3


@pytest.mark.parametrize("sent", [b"", framed(HELLO)[:2], framed(HELLO)[:-1]])
def test_who_connects_and_asks_for_nothing_whole_is_ended(root: Path, sent: bytes) -> None:
    with running_broker(root, login_seconds=0.3) as broker, opened(broker) as connection:
        connection.sendall(sent)
        assert ended(connection)


def test_who_has_asked_may_be_silent_for_longer(root: Path) -> None:
    with running_broker(root, login_seconds=0.3) as broker, opened(broker) as connection:
        assert answered(connection)
        time.sleep(0.6)
        connection.recv(1 << 16)
        assert answered(connection)


def test_who_does_not_log_in_is_ended_however_much_it_asks(root: Path) -> None:
    with secured(root, login_seconds=0.5) as broker, opened(broker) as connection:
        started = time.monotonic()
        while answered(connection):
            connection.recv(1 << 16)
            assert time.monotonic() - started < SECONDS
            time.sleep(0.05)


def test_a_login_that_went_well_ends_the_hurry(root: Path) -> None:
    with secured(root, login_seconds=0.5) as broker, opened(broker) as connection:
        for api, fields in (
            (apis.SASL_HANDSHAKE, {"mechanism": "PLAIN"}),
            (apis.SASL_AUTHENTICATE, {"auth_bytes": b"\0alice\0x"}),
        ):
            connection.sendall(framed(request_frame(api, 1, request(api, 1, **fields))))
            assert len(connection.recv(1 << 16)) > 8
        time.sleep(1.0)
        assert answered(connection)


def test_a_request_that_stalls_half_way_is_ended_and_its_memory_given_back(root: Path) -> None:
    with running_broker(root, stall_seconds=0.2) as broker, opened(broker) as connection:
        assert answered(connection)
        connection.recv(1 << 16)
        connection.sendall(struct.pack(">i", 20_000) + b"half")
        eventually(lambda: broker.broker.memory.used >= 20_000)
        assert ended(connection)
        eventually(lambda: broker.broker.memory.used == 0)


@pytest.mark.parametrize("size", [-1, 0, 7, 2001, 1 << 30])
def test_a_length_that_is_not_allowed_ends_the_connection(root: Path, size: int) -> None:
    with running_broker(root, max_request_bytes=2000) as broker, opened(broker) as connection:
        connection.sendall(struct.pack(">i", size))
        assert ended(connection)
        with opened(broker) as other:
            assert answered(other)


def test_before_a_login_requests_are_short(root: Path) -> None:
    with secured(root) as broker, opened(broker) as connection:
        connection.sendall(struct.pack(">i", 100_000))
        assert ended(connection)


def test_nonsense_ends_its_own_connection_only(root: Path) -> None:
    rng = Random(7)
    with running_broker(root, connections_burst=100_000) as broker, opened(broker) as good:
        for api, version in rng.sample(EVERY, 60):
            head = struct.pack(">hhi", api, version, 1)
            with opened(broker) as bad:
                bad.sendall(framed(head + rng.randbytes(rng.randrange(60))))
                bad.shutdown(socket.SHUT_WR)
                while bad.recv(1 << 16):
                    pass
            assert answered(good)
            good.recv(1 << 16)
