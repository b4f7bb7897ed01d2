"""SCRAM, SASLprep and the table of users, without a network."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

import streamlog
from streamlog.broker import scram
from streamlog.broker.limits import Buckets
from streamlog.broker.saslprep import saslprep
from streamlog.broker.scram import AuthenticationError, ScramServer, Verifier
from streamlog.broker.users import UserExistsError, UserNotFoundError
from streamlog.errors import InvalidRequestError
from tests.broker.secured import users

# RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def server(seen: list[str] | None = None) -> ScramServer:
    kept = scram.verifier(scram.SHA_256, "pencil", SALT, 4096)

    def find(name: str) -> Verifier:
        if seen is not None:
            seen.append(name)
        return kept

    return ScramServer(scram.SHA_256, find, SERVER_NONCE)


def test_the_example_of_the_rfc() -> None:
    login = server()
    assert login.first(CLIENT_FIRST) == SERVER_FIRST
    assert login.final(CLIENT_FINAL) == SERVER_FINAL
    assert login.name == "user"


@pytest.mark.parametrize(
    "final",
    [
        CLIENT_FINAL.replace(b"p=dH", b"p=eH"),
        CLIENT_FINAL.replace(b"biws", b"eSws"),
        CLIENT_FINAL.replace(b"r=rO", b"r=xO"),
        CLIENT_FINAL.partition(b",p=")[0],
        CLIENT_FINAL[:-8],
        b"c=biws,p=",
        b"",
        b"p=!!",
    ],
)
def test_a_proof_that_is_none_is_refused(final: bytes) -> None:
    login = server()
    login.first(CLIENT_FIRST)
    with pytest.raises(AuthenticationError):
        login.final(final)


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=user,r=",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,,r=abc,n=user",
        b"n=user,r=abc",
    ],
)
def test_a_first_message_that_is_not_offered_is_refused(first: bytes) -> None:
    with pytest.raises(AuthenticationError):
        server().first(first)


def test_names_are_unescaped_and_prepared() -> None:
    seen: list[str] = []
    server(seen).first(b"n,a=a=2Cb=3D,n=a=2Cb=3D,r=abc")
    server(seen).first("n,,n=\u2168,r=abc".encode())
    assert seen == ["a,b=", "IX"]


def test_an_unknown_user_has_a_salt_that_never_changes_and_no_password() -> None:
    secret = b"of the root"
    once, again = (scram.fake_verifier(scram.SHA_512, "nobody", secret) for _ in range(2))
    assert once == again
    assert len(once.salt) == 16
    assert once.iterations == scram.ITERATIONS
    assert len(once.stored_key) == 64
    assert once.salt != scram.fake_verifier(scram.SHA_512, "nobody2", secret).salt
    assert once.salt != scram.fake_verifier(scram.SHA_512, "nobody", b"another").salt
    assert not once.matches("")


@pytest.mark.parametrize("mechanism", scram.SCRAM_MECHANISMS)
def test_a_password_matches_its_verifier_only(mechanism: str) -> None:
    kept = scram.verifier(mechanism, "grün\u00a0IX", b"salt")
    assert kept.matches("grün \u2168")
    assert not kept.matches("grun IX")
    assert not kept.matches("\x07")


def test_saslprep_as_in_its_rfc() -> None:
    assert saslprep("I\u00adX") == "IX"
    assert saslprep("USER") == "USER"
    assert saslprep("\u00aa") == "a"
    for wrong in ("\u0007", "\u0627\u0031", "a\x00b", "\ue000", "\U0001f600"):
        with pytest.raises(InvalidRequestError) as caught:
            saslprep(wrong)
        assert wrong not in str(caught.value)


# The table


@pytest.fixture
def log(tmp_path: Path) -> streamlog.Log:
    return streamlog.connect(tmp_path / "root")


def test_users_are_kept_with_verifiers_of_both_hashes(log: streamlog.Log) -> None:
    made = users(log).add("alice", "one")
    assert made.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    kept = users(log).read()["alice"]
    assert kept == made
    assert all(v.matches("one") and v.iterations >= 8192 for v in kept.verifiers)
    assert kept.verifiers[0].salt != kept.verifiers[1].salt

    changed = users(log).set_password("alice", "two")
    assert changed.created_at == made.created_at
    assert changed.credential != made.credential
    assert all(v.matches("two") and not v.matches("one") for v in changed.verifiers)

    first = users(log)
    first.read()
    users(log).add("bob", "three")
    secret = first.secret
    first.read()
    assert len(secret) == 32
    assert first.secret == secret
    users(log).delete("alice")
    assert set(first.read()) == {"bob"}


def test_users_that_make_no_sense_are_refused(log: streamlog.Log) -> None:
    known = users(log)
    known.add("alice", "one")
    with pytest.raises(UserExistsError):
        users(log).add("alice", "two")
    with pytest.raises(UserNotFoundError):
        known.set_password("bob", "x")
    with pytest.raises(UserNotFoundError):
        known.delete("bob")
    for name in ("", "*", "ANONYMOUS", "x" * 256, "a\nb"):
        with pytest.raises(InvalidRequestError):
            known.add(name, "x")
    for password in ("", "\x00"):
        with pytest.raises(InvalidRequestError):
            known.add("carol", password)


# Limits


def test_a_bucket_fills_at_its_rate_and_hosts_do_not_share() -> None:
    buckets = Buckets(rate=2, burst=3)
    assert [buckets.take("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert buckets.take("b", 0.0)
    assert not buckets.take("a", 0.4)
    assert buckets.take("a", 0.5)
    assert buckets.left("a", 1000.0) == 3


def test_very_many_hosts_take_bounded_memory_and_the_worst_are_remembered() -> None:
    buckets = Buckets(rate=0.001, burst=3)
    for _ in range(3):
        assert buckets.take("worst", 0.0)
    for number in range(30_000):
        buckets.take(f"host {number}", 0.0)
    assert len(buckets._hosts) <= 10_000
    assert not buckets.take("worst", 1.0)
