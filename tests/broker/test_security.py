"""Logins and TLS, with clients that nobody here wrote."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka.admin import AdminClient
from kafka.errors import KafkaError as PythonKafkaError

import streamlog
from streamlog.broker import apis, tls, wire
from streamlog.broker.kafka_errors import Code
from streamlog.broker.settings import BrokerSettings
from streamlog.errors import InvalidRequestError
from tests.broker.harness import RunningBroker
from tests.broker.messages import request_frame
from tests.broker.raw import ask, request
from tests.broker.secured import (
    CA,
    CERTS,
    CLIENTS,
    PASSWORD,
    SECONDS,
    TLS,
    by_confluent,
    config,
    consume,
    produce,
    secured,
    users,
)

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
REFUSED = (confluent_kafka.KafkaException, PythonKafkaError, AioKafkaError)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def log(root: Path) -> Iterator[streamlog.Log]:
    with streamlog.connect(root) as log:
        log.create_topic("orders")
        users(log).add("alice", PASSWORD)
        yield log


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


# Logins


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_client_logs_in_by_every_mechanism(
    root: Path, log: streamlog.Log, mechanism: str, encrypted: bool
) -> None:
    with secured(root, **(TLS if encrypted else {})) as broker:
        for client in CLIENTS:
            assert client(broker, mechanism=mechanism, tls=encrypted) == {"orders"}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_and_an_unknown_user_are_refused_alike(
    root: Path, log: streamlog.Log, mechanism: str
) -> None:
    told: list[str] = []
    with secured(root, failed_logins_burst=10_000) as broker:
        for user, password in (("alice", "wrong"), ("nobody", PASSWORD), ("Alice", PASSWORD)):
            for client in CLIENTS:
                with pytest.raises(REFUSED):
                    client(broker, 1.5, user=user, password=password, mechanism=mechanism)
            told.append(_first_error(broker, user, password, mechanism))
    assert told[0] == told[1] == told[2]
    assert "Authentication failed" in told[0]


def _first_error(broker: RunningBroker, user: str, password: str, mechanism: str) -> str:
    errors: list[confluent_kafka.KafkaError] = []
    given = config(broker, user, password, mechanism) | {"error_cb": errors.append}
    client = AdminClient(given)
    eventually(lambda: client.poll(0.05) > 0 or bool(errors))
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
    # The port of the client's end, and how long it took, are not the same each time.
    words = errors[0].str()
    return words[words.index("Authentication failed") :].partition(" (after")[0]


def test_a_client_that_does_not_log_in_gets_nothing(root: Path, log: streamlog.Log) -> None:
    with secured(root) as broker:
        everything = request(apis.METADATA, 9, topics=None, **_METADATA)
        assert ask(broker.address, apis.METADATA, 9, everything) is None
        with pytest.raises(confluent_kafka.KafkaException):
            by_confluent(broker, 1.5, user=None)
        assert ask(broker.address, apis.API_VERSIONS, 0, request(apis.API_VERSIONS, 0)) is not None


_METADATA = {
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


def test_only_mechanisms_that_are_offered_are_taken(root: Path, log: streamlog.Log) -> None:
    with secured(root, sasl=("SCRAM-SHA-512",)) as broker:
        body = request(apis.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        answer = ask(broker.address, apis.SASL_HANDSHAKE, 1, body)
        assert answer.error_code == Code.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ("SCRAM-SHA-512",)
        assert by_confluent(broker, mechanism="SCRAM-SHA-512") == {"orders"}


def test_the_handshake_of_before_kafka_1_is_refused_with_words(
    root: Path, log: streamlog.Log
) -> None:
    """After it a client would send bare tokens."""
    with secured(root) as broker:
        body = request(apis.SASL_HANDSHAKE, 0, mechanism="PLAIN")
        answer = ask(broker.address, apis.SASL_HANDSHAKE, 0, body)
        assert answer.error_code == Code.UNSUPPORTED_VERSION


def test_a_broker_without_logins_says_so(root: Path, log: streamlog.Log) -> None:
    with secured(root, sasl=False) as broker:
        body = request(apis.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        answer = ask(broker.address, apis.SASL_HANDSHAKE, 1, body)
        assert answer.error_code == Code.ILLEGAL_SASL_STATE
        assert by_confluent(broker, user=None) == {"orders"}


def test_a_message_out_of_turn_ends_the_connection(root: Path, log: streamlog.Log) -> None:
    with secured(root) as broker:
        body = request(apis.SASL_AUTHENTICATE, 1, auth_bytes=b"\0alice\0" + PASSWORD.encode())
        answer = ask(broker.address, apis.SASL_AUTHENTICATE, 1, body)
        assert answer.error_code == Code.ILLEGAL_SASL_STATE


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    "message",
    [b"", b"\xff\xfe", b"\0", b"\0\0\0", b"n,,", b"n,,n=a,r=", b"p=x,,n=a,r=b", b"x" * 10_000],
)
def test_a_message_that_is_none_fails_as_a_wrong_password_does(
    root: Path, log: streamlog.Log, mechanism: str, message: bytes
) -> None:
    with secured(root) as broker, Raw(broker) as raw:
        raw.ask(apis.SASL_HANDSHAKE, 1, mechanism=mechanism)
        answer = raw.ask(apis.SASL_AUTHENTICATE, 1, auth_bytes=message)
        assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
        assert raw.ended()


class Raw:
    """A connection by hand."""

    def __init__(self, broker: RunningBroker) -> None:
        host, _, port = broker.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=SECONDS)
        self.stream = self.socket.makefile("rb")

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.socket.close()

    def ask(self, api: int, version: int, **fields: Any) -> Any:
        from kio.index import load_response_schema
        from kio.serial import entity_reader

        frame = request_frame(api, version, request(api, version, **fields))
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self.stream.read(4))
        data = self.stream.read(size)
        schema: Any = load_response_schema(api, version)
        return entity_reader(schema)(data, 5 if schema.__flexible__ and api != 18 else 4)[0]

    def ended(self) -> bool:
        try:
            return self.stream.read(1) == b""
        except ConnectionError:
            return True


def test_failed_logins_of_a_host_are_limited_even_with_the_right_password(
    root: Path, log: streamlog.Log
) -> None:
    with secured(root, failed_logins_burst=3, failed_logins_per_second=1e-6) as broker:

        def code(password: str) -> int:
            with Raw(broker) as raw:
                raw.ask(apis.SASL_HANDSHAKE, 1, mechanism="PLAIN")
                token = f"\0alice\0{password}".encode()
                return int(raw.ask(apis.SASL_AUTHENTICATE, 1, auth_bytes=token).error_code)

        assert code(PASSWORD) == Code.NONE
        for _ in range(3):
            assert code("wrong") == Code.SASL_AUTHENTICATION_FAILED
        assert code(PASSWORD) == Code.SASL_AUTHENTICATION_FAILED


def test_a_failed_login_is_answered_late(root: Path, log: streamlog.Log) -> None:
    with secured(root, login_delay_seconds=0.7) as broker, Raw(broker) as raw:
        raw.ask(apis.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        started = time.monotonic()
        raw.ask(apis.SASL_AUTHENTICATE, 1, auth_bytes=b"\0nobody\0x")
        assert time.monotonic() - started >= 0.6


# Changes count without a restart


def test_users_come_change_and_go_while_a_broker_runs(root: Path, log: streamlog.Log) -> None:
    with secured(root, failed_logins_burst=10_000) as broker:
        known = users(log)
        known.add("bob", "bobs")
        eventually(lambda: "bob" in broker.broker.security._known)
        assert by_confluent(broker, user="bob", password="bobs") == {"orders"}

        client = AdminClient(config(broker, "bob", "bobs"))
        assert client.list_topics(timeout=SECONDS)
        credential = known.read()["bob"].credential
        known.set_password("bob", "new")
        eventually(lambda: broker.broker.security._known["bob"].credential != credential)
        # A connection of the old password does nothing more.
        with pytest.raises(confluent_kafka.KafkaException):
            client.list_topics(timeout=1.5)
        assert by_confluent(broker, user="bob", password="new") == {"orders"}

        client = AdminClient(config(broker, "bob", "new"))
        assert client.list_topics(timeout=SECONDS)
        known.delete("bob")
        eventually(lambda: "bob" not in broker.broker.security._known)
        with pytest.raises(confluent_kafka.KafkaException):
            client.list_topics(timeout=1.5)


def test_a_silent_store_leaves_the_last_known_users_in_place(
    root: Path,
    log: streamlog.Log,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with secured(root) as broker:
        security = broker.broker.security

        def silent() -> None:
            raise OSError("no answer")

        monkeypatch.setattr(security.users, "read", silent)
        eventually(lambda: "are not refreshed" in caplog.text)
        assert by_confluent(broker) == {"orders"}
        monkeypatch.undo()
        users(log).add("bob", "bobs")
        eventually(lambda: "bob" in security._known)


# TLS


def test_records_go_through_tls_large_ones_too(root: Path, log: streamlog.Log) -> None:
    value = bytes(range(256)) * (8 << 10)
    with secured(root, **TLS) as broker:
        more = {"tls": True, "message.max.bytes": 8 << 20, "compression.type": "none"}
        log.alter_topic("orders", {"max.message.bytes": 8 << 20})
        assert produce(broker, "orders", value, **more) is None
        assert (
            consume(broker, "orders", "g", tls=True, **{"fetch.message.max.bytes": 8 << 20})
            == value
        )


def test_old_tls_plain_text_and_strangers_certificates_are_refused(
    root: Path, log: streamlog.Log
) -> None:
    with secured(root, **TLS) as broker:
        host, _, port = broker.address.rpartition(":")
        old = ssl.create_default_context(cafile=CA)
        with pytest.warns(DeprecationWarning, match="TLS"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection((host, int(port)), timeout=SECONDS) as raw,
            pytest.raises((ssl.SSLError, ConnectionError)),
            old.wrap_socket(raw, server_hostname=host),
        ):
            pass
        # No answer in plain text: whether by an end or by TLS's own alert.
        with Raw(broker) as plain:
            frame = request_frame(apis.API_VERSIONS, 0, request(apis.API_VERSIONS, 0))
            plain.socket.sendall(struct.pack(">i", len(frame)) + frame)
            assert len(plain.stream.read()) < 16
        with pytest.raises(confluent_kafka.KafkaException):
            by_confluent(broker, 1.5)
        # A client checks our certificate, too.
        with pytest.raises(confluent_kafka.KafkaException):
            by_confluent(broker, 1.5, tls=True, **{"ssl.ca.location": str(CERTS / "client.pem")})
        assert by_confluent(broker, tls=True) == {"orders"}


def test_a_handshake_that_stalls_is_ended_and_counted(root: Path, log: streamlog.Log) -> None:
    with secured(root, **TLS, login_seconds=0.5) as broker, Raw(broker) as raw:
        eventually(lambda: broker.broker.server.connections == 1)
        assert raw.ended()
        eventually(lambda: broker.broker.server.connections == 0)


def test_clients_are_known_by_their_certificates(root: Path, log: streamlog.Log) -> None:
    theirs = {
        "ssl.certificate.location": str(CERTS / "client.pem"),
        "ssl.key.location": str(CERTS / "client.key"),
    }
    with secured(root, sasl=False, **TLS, tls_client_ca=CA) as broker:
        assert by_confluent(broker, user=None, tls=True, **theirs) == {"orders"}
        peers = [connection.peer.principal for connection in broker.broker.server._open]
        assert all(peer == "User:CN=app,O=Example\\, Inc" for peer in peers)
        with pytest.raises(confluent_kafka.KafkaException):
            by_confluent(broker, 1.5, user=None, tls=True)


def test_a_name_in_a_certificate_cannot_pass_for_another() -> None:
    def subject(*names: tuple[str, str]) -> str | None:
        return tls.principal({"subject": tuple((name,) for name in names)})

    assert subject(("organizationName", "B"), ("commonName", "a")) == "User:CN=a,O=B"
    assert subject(("commonName", "a,O=B")) == "User:CN=a\\,O\\=B"
    assert subject(("commonName", " #x ")) == "User:CN=\\ #x\\ "
    assert tls.principal({}) is None
    assert tls.principal(None) is None


# Settings


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "", "example.org"])
def test_others_can_connect_only_if_they_log_in_over_tls_or_by_consent(host: str) -> None:
    some: list[dict[str, Any]] = [{}, dict(TLS), {"sasl": True}]
    for given in some:
        with pytest.raises(InvalidRequestError, match="insecure"):
            BrokerSettings(host=host, **given)
    BrokerSettings(host=host, sasl=True, **TLS)
    BrokerSettings(host=host, tls_client_ca=CA, **TLS)
    BrokerSettings(host=host, insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine_needs_nothing(host: str) -> None:
    assert BrokerSettings(host=host).loopback


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sasl": ("GSSAPI",)}, "GSSAPI"),
        ({"tls_cert": "x.pem"}, "go together"),
        ({"tls_client_ca": "x.pem"}, "needs TLS"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        BrokerSettings(**given)


def test_certificates_that_cannot_be_used_are_told_at_the_start(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    for given in (
        {"tls_cert": missing, "tls_key": missing},
        {"tls_cert": TLS["tls_cert"], "tls_key": str(CERTS / "client.key")},
        {**TLS, "tls_client_ca": missing},
    ):
        with pytest.raises(InvalidRequestError, match="cannot be used"):
            tls.server_context(BrokerSettings(**given))


# Credentials are nowhere


def test_credentials_are_in_no_log_no_repr_and_no_error(
    root: Path, log: streamlog.Log, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "hunter2-unforgettable"
    caplog.set_level(logging.DEBUG)
    known = users(log)
    user = known.add("carol", secret)
    with secured(root, failed_logins_burst=10_000) as broker:
        by_confluent(broker, user="carol", password=secret, mechanism="PLAIN")
        by_confluent(broker, user="carol", password=secret, mechanism="SCRAM-SHA-512")
        for token in (
            f"\0carol\0{secret}x",
            f"{secret}\0carol\0{secret}",
            f"\0carol\0{secret}\0",
            f"{secret}",
        ):
            with Raw(broker) as raw:
                raw.ask(apis.SASL_HANDSHAKE, 1, mechanism="PLAIN")
                answer = raw.ask(apis.SASL_AUTHENTICATE, 1, auth_bytes=token.encode())
                assert secret not in repr(answer)
    frame = request_frame(
        apis.SASL_AUTHENTICATE, 2, request(apis.SASL_AUTHENTICATE, 2, auth_bytes=secret.encode())
    )
    name = frame.index(b"tester")
    for damaged in (frame[:-4], frame[:name] + b"\xff\xfe" + frame[name + 2 :]):
        with pytest.raises(wire.MalformedRequestError) as caught:
            wire.parse_request(damaged)
        assert secret not in repr(caught.value)
        assert caught.value.__cause__ is None
    for verifier in user.verifiers:
        for held in (verifier.salt, verifier.stored_key, verifier.server_key):
            assert repr(held) not in repr(user)
            assert held.hex() not in caplog.text
    assert secret not in caplog.text
    assert secret not in repr(known.read())
    stored = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert secret.encode() not in stored
