"""Who may do what: the gate of a broker.

K1  Without a login (SASL, or clients' certificates) there is nobody to tell apart: all may do everything.
K2  Where a login is needed, a connection may only ask for versions and log in until it has done so.
K3  A connection whose user is deleted, or has a new password, since it logged in may do nothing more.
K4  Users and rules are those of the root as of a few seconds ago. While the store does not answer, those
    last seen go on counting; a broker that never saw them does not start.
K5  While the root never had a rule, who logs in may do everything but manage users and rules, which is
    left to super users (and to the command line, which needs the storage itself).

All but `refresh` runs on the event loop and never waits for storage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from streamlog.broker import apis, scram
from streamlog.broker.acls import CLUSTER, Acls, Rules, principal_of
from streamlog.broker.call import ANONYMOUS, Call, Peer
from streamlog.broker.limits import Buckets
from streamlog.broker.scram import AuthenticationError, Verifier
from streamlog.broker.settings import BrokerSettings
from streamlog.broker.users import User, Users
from streamlog.clock import Runtime
from streamlog.errors import StreamlogError
from streamlog.log.topics import Topics

_log = logging.getLogger(__name__)

Run = Callable[..., Awaitable[Any]]

_BEFORE_LOGIN = frozenset({apis.API_VERSIONS, apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE})
_MAX_DECISIONS = 20_000
# Threads that try passwords (milliseconds of processor time each), and how many of them a host may keep busy.
_HASH_THREADS = 2
_MAX_HOSTS = 10_000
# Nothing that is asked before a login is long.
_MAX_BEFORE_LOGIN = 64 << 10


class NotAdmittedError(StreamlogError):
    """A request that the connection may not make now; it is ended without an answer."""

    kafka_code = 34


class Security:
    """The gate of one broker."""

    def __init__(self, settings: BrokerSettings, topics: Topics, runtime: Runtime) -> None:
        self._settings = settings
        self.mechanisms = settings.mechanisms
        # K1.
        self.enabled = bool(self.mechanisms) or settings.tls_client_ca is not None
        self.users = Users(topics, runtime)
        self.acls = Acls(topics, runtime)
        self._runtime = runtime
        self._super = frozenset(principal_of(name) for name in settings.super_users)
        self._known: Mapping[str, User] = {}
        self._rules = Rules()
        self._decisions: dict[tuple[str, str, str, str, str], bool] = {}
        self._failures = Buckets(settings.failed_logins_per_second, settings.failed_logins_burst)
        self._hashing = ThreadPoolExecutor(_HASH_THREADS, "streamlog-login")
        self._turns: dict[str, asyncio.Lock] = {}
        self._run: Run | None = None
        self._refreshing: asyncio.Task[None] | None = None

    # users and rules

    async def start(self, run: Run) -> None:
        """Reads users and rules, and keeps an eye on them from then on; `run` may wait for storage."""
        self._run = run
        if self.enabled:
            await self.refresh()
            self._refreshing = asyncio.create_task(self._keep_fresh())
        elif not self._settings.loopback:
            _log.warning(
                "insecure: everybody who can reach %s may do everything", self._settings.host
            )

    async def stop(self) -> None:
        """Looks no more."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await self._refreshing
        self._hashing.shutdown(wait=False, cancel_futures=True)

    async def refresh(self) -> None:
        """Looks at users and rules now."""
        assert self._run is not None
        self._known = await self._run(self.users.read)
        rules = await self._run(self.acls.read)
        if rules is not self._rules:
            self._rules = rules
            self._decisions = {}

    async def _keep_fresh(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(self._settings.security_refresh_seconds)
            try:
                await self.refresh()
                failing = False
            except Exception as error:  # noqa: BLE001 - K4: whatever it is, the gate stays as it was
                if not failing:
                    _log.warning(
                        "users and rules are not refreshed, the last known count: %s", error
                    )
                failing = True

    # requests

    def admit(self, call: Call) -> None:
        """Raises unless the connection may make requests of this kind now (K2, K3)."""
        if not self.enabled:
            return
        peer = call.peer
        if peer.principal == ANONYMOUS:
            if call.api not in _BEFORE_LOGIN:
                raise NotAdmittedError(f"API {call.api} was asked for before a login")
        elif self.mechanisms:
            user = self._known.get(peer.principal.removeprefix("User:"))
            if user is None or user.credential != peer.notes.get("credential"):
                raise NotAdmittedError(
                    f"{peer.principal} was deleted, or has a new password, since it logged in"
                )

    def max_request_bytes(self, peer: Peer) -> int:
        """How long a request of this connection may be now."""
        most = self._settings.max_request_bytes
        return most if self.is_known(peer) else min(most, _MAX_BEFORE_LOGIN)

    def is_known(self, peer: Peer) -> bool:
        """Whether the connection has logged in, or need not."""
        return not self.enabled or peer.principal != ANONYMOUS

    def allows(self, call: Call, operation: str, kind: str, name: str) -> bool:
        """Whether the caller may do `operation` ("read", "write", "create", "delete", "alter", "describe",
        "alter_configs", "describe_configs", "cluster_action", "idempotent_write") on a resource of
        `kind` ("topic", "group", "cluster"). The cluster's name does not matter."""
        if not self.enabled:
            return True
        peer = call.peer
        if peer.principal in self._super:
            return True
        rules = self._rules
        if not rules.in_force:
            return peer.principal != ANONYMOUS and (operation, kind) != ("alter", "cluster")
        key = (peer.principal, peer.host, operation, kind, name)
        decision = self._decisions.get(key)
        if decision is None:
            if kind == "cluster":
                name = CLUSTER
            decision = rules.allow(peer.principal, peer.host, operation, kind, name)
            if len(self._decisions) >= _MAX_DECISIONS:
                self._decisions.clear()
            self._decisions[key] = decision
        return decision

    # logins

    def find(self, mechanism: str, name: str) -> tuple[Verifier, str]:
        """The verifier of a user and its credential, or one that nobody has the password of, and none."""
        user = self._known.get(name)
        found = None if user is None else user.verifier(mechanism)
        if user is None or found is None:
            return scram.fake_verifier(mechanism, name, self.users.secret), ""
        return found, user.credential

    def nonce(self) -> str:
        """The server's part of what makes a login unlike any other; nobody can guess it."""
        return self._runtime.ids.new() + self._runtime.ids.new()

    def hear(self, host: str) -> None:
        """Raises if a host had too many failed logins of late."""
        if self._failures.left(host, self._runtime.clock.monotonic()) < 1:
            raise AuthenticationError("too many failed logins; try again later")

    async def check_password(self, host: str, name: str, password: str) -> str:
        """The credential that this is the password of. One at a time a host: a flood waits for itself."""
        user = self._known.get(name)
        mechanisms = user.mechanisms if user is not None else scram.SCRAM_MECHANISMS
        strongest = next(m for m in scram.SCRAM_MECHANISMS if m in mechanisms)
        verifier, credential = self.find(strongest, name)
        async with self._turn(host):
            self.hear(host)
            loop = asyncio.get_running_loop()
            right = await loop.run_in_executor(self._hashing, verifier.matches, password)
        return credential if right else ""

    def logged_in(self, peer: Peer, name: str, credential: str) -> None:
        """From here on the connection is this user's; refuses if there is no credential."""
        if not credential:
            raise AuthenticationError("wrong user or password")
        peer.principal = principal_of(name)
        peer.notes["credential"] = credential

    async def failed(self, peer: Peer, name: str, reason: str, started: float) -> None:
        """Counts a failed login, and returns as long after its start as after any other."""
        self._failures.take(peer.host, self._runtime.clock.monotonic())
        _log.warning("login of %.80r from %s failed: %s", name, peer.host, reason)
        waited = asyncio.get_running_loop().time() - started
        await asyncio.sleep(max(0.0, self._settings.login_delay_seconds - waited))

    def _turn(self, host: str) -> asyncio.Lock:
        if len(self._turns) >= _MAX_HOSTS:
            self._turns = {h: turn for h, turn in self._turns.items() if turn.locked()}
        return self._turns.setdefault(host, asyncio.Lock())
