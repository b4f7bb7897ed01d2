"""SASL: the handshake and the exchange of credentials.

A failed login is answered late, always after the same time and with the same words, and its connection
ends. Messages of the exchange are in no log and in no error.
"""

from __future__ import annotations

import asyncio

from streamlog.broker import apis, scram
from streamlog.broker.call import ANONYMOUS, Call, Handler, Response
from streamlog.broker.kafka_errors import Code
from streamlog.broker.scram import AuthenticationError, ScramServer, Verifier
from streamlog.broker.security import Security

_REFUSED = "Authentication failed: wrong user or password, or too many failed logins of this host"


class PlainLogin:
    """PLAIN: one message."""

    def __init__(self, security: Security, host: str) -> None:
        self._security = security
        self._host = host
        self.name = ""
        self.credential = ""
        self.done = False

    async def step(self, message: bytes) -> bytes:
        """Takes the client's message; `credential` stays empty if its password is wrong."""
        self.name, password = scram.parse_plain(message)
        self.credential = await self._security.check_password(self._host, self.name, password)
        self.done = True
        return b""


class ScramLogin:
    """SCRAM: two messages."""

    def __init__(self, security: Security, mechanism: str) -> None:
        self._security = security
        self._mechanism = mechanism
        self._server = ScramServer(mechanism, self._find, security.nonce())
        self.credential = ""
        self.done = False

    @property
    def name(self) -> str:
        """Who the client says it is."""
        return self._server.name

    async def step(self, message: bytes) -> bytes:
        """Takes the client's next message; raises if it does not prove the password."""
        if not self._server.name:
            return self._server.first(message)
        answer = self._server.final(message)
        self.done = True
        return answer

    def _find(self, name: str) -> Verifier:
        verifier, self.credential = self._security.find(self._mechanism, name)
        return verifier


async def sasl_handshake(call: Call) -> Response:
    """The client chooses a mechanism."""
    security, peer = call.broker.security, call.peer
    mechanism = call.body.mechanism
    code = Code.NONE
    if not security.mechanisms or peer.principal != ANONYMOUS or peer.sasl is not None:
        code = Code.ILLEGAL_SASL_STATE
    elif mechanism not in security.mechanisms:
        code = Code.UNSUPPORTED_SASL_MECHANISM
    elif call.version == 0:
        # After version 0 a client sends bare tokens, which no request can be told from: since Kafka 1.0
        # clients know better.
        code = Code.UNSUPPORTED_VERSION
    elif mechanism == scram.PLAIN:
        peer.sasl = PlainLogin(security, peer.host)
    else:
        peer.sasl = ScramLogin(security, mechanism)
    if code is not Code.NONE:
        peer.notes["close"] = True
    return {"error_code": code, "mechanisms": security.mechanisms}


async def sasl_authenticate(call: Call) -> Response:
    """One message of the exchange."""
    security, peer = call.broker.security, call.peer
    # Taken out until this message is dealt with: of two at a time the second has no login to go on with.
    login, peer.sasl = peer.sasl, None
    if login is None:
        peer.notes["close"] = True
        return {
            "error_code": Code.ILLEGAL_SASL_STATE,
            "error_message": "SaslHandshake comes first",
        }
    started = asyncio.get_running_loop().time()
    try:
        security.hear(peer.host)
        answer = await login.step(call.body.auth_bytes)
        if login.done:
            security.logged_in(peer, login.name, login.credential)
        else:
            peer.sasl = login
    except AuthenticationError as error:
        await security.failed(peer, login.name, str(error), started)
        peer.notes["close"] = True
        return {"error_code": Code.SASL_AUTHENTICATION_FAILED, "error_message": _REFUSED}
    return {"auth_bytes": answer}


HANDLERS: dict[int, Handler] = {
    apis.SASL_HANDSHAKE: sasl_handshake,
    apis.SASL_AUTHENTICATE: sasl_authenticate,
}
