"""SCRAM (RFC 5802, 7677): what is kept instead of a password, and the server's half of the exchange.

    SaltedPassword = PBKDF2(password, salt, iterations)
    StoredKey      = H(HMAC(SaltedPassword, "Client Key"))      what a client proves to know
    ServerKey      = HMAC(SaltedPassword, "Server Key")         what we prove to know

X1  Neither the password nor SaltedPassword is kept; whoever steals a verifier can search for the password
    (slowly), but not log in with it.
X2  A user that does not exist goes through the same steps, with a salt of its own that never changes.

Pure; chance comes from the caller. Nothing here shows a key in its repr.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from dataclasses import dataclass, field

from streamlog.broker.saslprep import saslprep
from streamlog.errors import InvalidRequestError, StreamlogError

PLAIN = "PLAIN"
SHA_256 = "SCRAM-SHA-256"
SHA_512 = "SCRAM-SHA-512"
# The stronger one first: it is the one that PLAIN is checked with.
SCRAM_MECHANISMS = (SHA_512, SHA_256)
MECHANISMS = (PLAIN, SHA_256, SHA_512)

# Of passwords that are set here. It is also the most that Kafka's own tools make.
ITERATIONS = 16_384
# Of verifiers that Kafka's tools make: their least and default, and their most.
MIN_ITERATIONS = 4_096
MAX_ITERATIONS = 16_384

_HASHES = {SHA_256: "sha256", SHA_512: "sha512"}
_MAX_MESSAGE = 4_096


class AuthenticationError(StreamlogError):
    """A login that failed. The message says no more than that: it goes to the client."""

    kafka_code = 58


@dataclass(frozen=True, slots=True)
class Verifier:
    """What is kept of one password for one mechanism."""

    mechanism: str
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def matches(self, password: str) -> bool:
        """Whether this is the password; takes some milliseconds of processor time, by design."""
        derived = from_salted(self.mechanism, self.salt, self.iterations, self._salted(password))
        return hmac.compare_digest(derived.stored_key, self.stored_key)

    def _salted(self, password: str) -> bytes:
        try:
            prepared = saslprep(password)
        except InvalidRequestError:
            # Nobody has such a password; it must not be refused any faster than a wrong one.
            prepared = "\0"
        return salted_password(self.mechanism, prepared, self.salt, self.iterations)


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """PBKDF2 of a prepared password."""
    return hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, iterations)


def from_salted(mechanism: str, salt: bytes, iterations: int, salted: bytes) -> Verifier:
    """The verifier of a password that was salted already (by Kafka's tools, on the client's side)."""
    name = _HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    return Verifier(
        mechanism,
        salt,
        iterations,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", name),
    )


def verifier(mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
    """What to keep of a password. `salt` has to be new, and unpredictable."""
    prepared = saslprep(password)
    if not prepared:
        raise InvalidRequestError("the password is empty; give one")
    return from_salted(
        mechanism, salt, iterations, salted_password(mechanism, prepared, salt, iterations)
    )


def fake_verifier(mechanism: str, name: str, secret: bytes) -> Verifier:
    """X2: for a user that does not exist; nobody knows a password for it, and its salt is always the same."""

    def bits(purpose: str, size: int) -> bytes:
        text = f"{purpose}\0{mechanism}\0{name}".encode(errors="replace")
        return hmac.digest(secret, text, "sha512")[:size]

    size = hashlib.new(_HASHES[mechanism]).digest_size
    return Verifier(
        mechanism, bits("salt", 16), ITERATIONS, bits("stored", size), bits("key", size)
    )


class ScramServer:
    """The server's half of one login: `first`, then `final`."""

    def __init__(self, mechanism: str, find: Callable[[str], Verifier], nonce: str) -> None:
        """`find` gives the verifier of a (prepared) name, a fake one if there is no such user."""
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce
        self._head = ""
        self._transcript = ""
        self._verifier: Verifier | None = None
        self.name = ""

    def first(self, message: bytes) -> bytes:
        """Answers the client's first message with salt and iterations."""
        text = _text(message)
        parts = text.split(",", 2)
        # Channel binding ("p=…") is not offered; "y" and "n" say that the client does not use it.
        if len(parts) != 3 or parts[0] not in ("n", "y"):
            raise AuthenticationError("not a first message of SCRAM, or with channel binding")
        flag, authorized, bare = parts
        self._head = f"{flag},{authorized},"
        fields = bare.split(",")
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
            raise AuthenticationError("not a first message of SCRAM")
        name, nonce = _unescaped(fields[0][2:]), fields[1][2:]
        if not name or not nonce or not nonce.isascii() or not nonce.isprintable():
            raise AuthenticationError("a first message of SCRAM without a name or a nonce")
        if authorized and _unescaped(authorized.removeprefix("a=")) != name:
            raise AuthenticationError("acting for another user is not offered")
        if any(extension.startswith(("m=", "tokenauth=")) for extension in fields[2:]):
            raise AuthenticationError("extensions of SCRAM are not offered")
        try:
            self.name = saslprep(name)
        except InvalidRequestError:
            # Nobody has such a name: it goes the way of any other unknown one.
            self.name = name
        self._verifier = found = self._find(self.name)
        self._nonce = nonce + self._nonce
        answer = f"r={self._nonce},s={b64encode(found.salt).decode()},i={found.iterations}"
        self._transcript = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """Checks the client's proof and answers with our own."""
        assert self._verifier is not None
        text = _text(message)
        without_proof, found, proof_text = text.rpartition(",p=")
        fields = without_proof.split(",")
        try:
            proof = b64decode(proof_text, validate=True)
            head = b64decode(fields[0].removeprefix("c="), validate=True)
        except (Base64Error, ValueError):
            raise AuthenticationError("not a final message of SCRAM") from None
        name = _HASHES[self._mechanism]
        if (
            not found
            or len(fields) < 2
            or not fields[0].startswith("c=")
            or head != self._head.encode()
            or fields[1] != f"r={self._nonce}"
            or len(proof) != hashlib.new(name).digest_size
        ):
            raise AuthenticationError("not a final message of SCRAM, or not of this login")
        transcript = f"{self._transcript},{without_proof}".encode()
        signature = hmac.digest(self._verifier.stored_key, transcript, name)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(name, client_key).digest()
        if not hmac.compare_digest(stored_key, self._verifier.stored_key):
            raise AuthenticationError("wrong user or password")
        ours = hmac.digest(self._verifier.server_key, transcript, name)
        return b"v=" + b64encode(ours)


def parse_plain(message: bytes) -> tuple[str, str]:
    """Name and password of a PLAIN message (RFC 4616), the name prepared."""
    parts = _text(message).split("\0")
    if len(parts) != 3:
        raise AuthenticationError("not a message of PLAIN")
    authorized, name, password = parts
    if not name or not password:
        raise AuthenticationError("a message of PLAIN without a name or a password")
    if authorized and authorized != name:
        raise AuthenticationError("acting for another user is not offered")
    try:
        return saslprep(name), password
    except InvalidRequestError:
        return name, password


def _text(message: bytes) -> str:
    if len(message) > _MAX_MESSAGE:
        raise AuthenticationError("a message of a login is too long")
    try:
        return message.decode()
    except UnicodeDecodeError:
        # Not chained: its text would hold the message.
        raise AuthenticationError("a message of a login is not UTF-8") from None


def _unescaped(name: str) -> str:
    """A name as SCRAM writes it: `=2C` is a comma, `=3D` an equals sign."""
    if name.replace("=2C", "").replace("=3D", "").count("="):
        raise AuthenticationError("a name in a message of SCRAM is not escaped")
    return name.replace("=2C", ",").replace("=3D", "=")
