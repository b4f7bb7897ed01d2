"""The users of a root: a small Delta table, `__users`, with a row a user.

U1  Of a password only SCRAM verifiers are kept (salt, iterations, stored key, server key), one a mechanism.
U2  `credential` is new whenever a password is: a connection that logged in with the former one is told
    apart, and ended.
U3  The table's note holds a secret from which salts for unknown names are made, so that all brokers answer
    alike whether or not a user exists.

Former versions go after an hour, once the table is checkpointed: old verifiers are nobody's history.
Safe to use from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from streamlog import paths
from streamlog.broker import scram
from streamlog.broker.saslprep import saslprep
from streamlog.broker.scram import Verifier
from streamlog.clock import Runtime
from streamlog.errors import InvalidRequestError
from streamlog.log.table import Content, Row, SmallTable
from streamlog.log.topics import Topics
from streamlog.model import to_datetime
from streamlog.schema import TIMESTAMP_TYPE

_MAX_NAME = 255
_HISTORY_SECONDS = 3_600.0
# `*` stands for everybody in rules, and nobody may pass for who did not log in.
_RESERVED = ("*", "ANONYMOUS")

_KINDS = {scram.SHA_256: "sha256", scram.SHA_512: "sha512"}
_SCHEMA = pa.schema(
    [
        pa.field("user", pa.string(), nullable=False),
        pa.field("credential", pa.string(), nullable=False),
        *(
            field
            for kind in _KINDS.values()
            for field in (
                pa.field(f"{kind}_salt", pa.binary()),
                pa.field(f"{kind}_iterations", pa.int32()),
                pa.field(f"{kind}_stored_key", pa.binary()),
                pa.field(f"{kind}_server_key", pa.binary()),
            )
        ),
        pa.field("created_at", TIMESTAMP_TYPE, nullable=False),
        pa.field("changed_at", TIMESTAMP_TYPE, nullable=False),
    ]
)


class UserNotFoundError(InvalidRequestError):
    """There is no such user."""

    kafka_code = 91


class UserExistsError(InvalidRequestError):
    """A user of this name exists already."""

    kafka_code = 92


@dataclass(frozen=True, slots=True)
class User:
    """Someone who may log in."""

    name: str
    credential: str
    verifiers: tuple[Verifier, ...]
    created_at: datetime
    changed_at: datetime

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that this user has a verifier for, by name."""
        return tuple(sorted(verifier.mechanism for verifier in self.verifiers))

    def verifier(self, mechanism: str) -> Verifier | None:
        """The verifier for a mechanism, if there is one."""
        return next((v for v in self.verifiers if v.mechanism == mechanism), None)


@dataclass(frozen=True, slots=True)
class Upsertion:
    """A verifier that a client made, to be kept."""

    name: str
    verifier: Verifier


@dataclass(frozen=True, slots=True)
class Deletion:
    """A verifier to be dropped; a user without any is gone."""

    name: str
    mechanism: str


class Users:
    """The users of one root."""

    def __init__(self, topics: Topics, runtime: Runtime) -> None:
        self._runtime = runtime
        self._table = SmallTable(
            topics.objects,
            paths.USERS_TABLE,
            _SCHEMA,
            runtime,
            topics.checkpointer,
            history=_HISTORY_SECONDS,
        )
        self._lock = threading.Lock()
        self._version = -2
        self._users: dict[str, User] = {}
        self._secret = b""

    def read(self) -> Mapping[str, User]:
        """The users by name, freshly looked up."""
        with self._lock:
            self._take(self._table.read())
            return self._users

    @property
    def known(self) -> Mapping[str, User]:
        """The users as of the last look."""
        return self._users

    @property
    def secret(self) -> bytes:
        """U3, as of the last look; empty before the first user."""
        return self._secret

    def add(self, name: str, password: str) -> User:
        """Makes a user."""
        name = check_name(name)
        made = self._credentials(name, password)

        def change(rows: dict[str, Row]) -> bool:
            known = rows.get(name)
            if known is not None:
                if known["credential"] == made["credential"]:
                    return False
                raise UserExistsError(
                    f"user {name!r} exists already; change its password, or choose another name"
                )
            rows[name] = made
            return True

        return self._update(change)[name]

    def set_password(self, name: str, password: str) -> User:
        """Changes a user's password."""
        name = check_name(name)
        made = self._credentials(name, password)

        def change(rows: dict[str, Row]) -> bool:
            if name not in rows:
                raise not_found(name)
            rows[name] = made | {"created_at": rows[name]["created_at"]}
            return True

        return self._update(change)[name]

    def delete(self, name: str) -> None:
        """Removes a user. Its rules stay: they count again for a new user of that name."""
        name = saslprep(name)
        if name not in self.read():
            raise not_found(name)

        def change(rows: dict[str, Row]) -> bool:
            return rows.pop(name, None) is not None

        self._update(change)

    def alter(self, changes: list[Upsertion | Deletion]) -> None:
        """Single verifiers, as Kafka's tools set them; all of `changes` or none."""
        at = to_datetime(self._runtime.clock.time_ms())
        credential = self._runtime.ids.new()

        def change(rows: dict[str, Row]) -> bool:
            if any(row["credential"] == credential for row in rows.values()):
                return False
            for item in changes:
                row = rows.get(item.name)
                if isinstance(item, Upsertion):
                    row = row or _empty_row(check_name(item.name), at)
                    new = row | _columns(item.verifier)
                elif row is None or row[f"{_KINDS[item.mechanism]}_stored_key"] is None:
                    raise not_found(item.name)
                else:
                    new = row | _no_columns(item.mechanism)
                new |= {"credential": credential, "changed_at": at}
                rows[item.name] = new
                if not _user(new).verifiers:
                    del rows[item.name]
            return True

        self._update(change)

    def _credentials(self, name: str, password: str) -> Row:
        at = to_datetime(self._runtime.clock.time_ms())
        row = _empty_row(name, at) | {"credential": self._runtime.ids.new()}
        for mechanism in _KINDS:
            # Ids are random UUIDs of the operating system's chance: 122 bits that nobody can guess.
            salt = bytes.fromhex(self._runtime.ids.new())
            row |= _columns(scram.verifier(mechanism, password, salt))
        return row

    def _update(self, change: Callable[[dict[str, Row]], bool]) -> Mapping[str, User]:
        secret = self._runtime.ids.new() + self._runtime.ids.new()

        def change_content(content: Content) -> Content | None:
            rows = {row["user"]: row for row in content.rows}
            if not change(rows):
                return None
            note = content.note or {"secret": secret}
            return Content(tuple(rows[name] for name in sorted(rows)), note)

        with self._lock:
            self._take(self._table.update(change_content))
            return self._users

    def _take(self, content: Content) -> None:
        if self._table.version == self._version:
            return
        self._users = {row["user"]: _user(row) for row in content.rows}
        self._secret = bytes.fromhex(content.note.get("secret", ""))
        self._version = self._table.version


def check_name(name: str) -> str:
    """The prepared form of a name that a user may have."""
    prepared = saslprep(name)
    if not prepared or len(prepared) > _MAX_NAME:
        raise InvalidRequestError(
            f"a user's name has 1 to {_MAX_NAME} characters, and this one {len(prepared)}"
        )
    if prepared in _RESERVED:
        raise InvalidRequestError(
            f"{prepared!r} stands for others than a user; choose another name"
        )
    return prepared


def not_found(name: str) -> UserNotFoundError:
    """The error for a user, or a verifier of one, that does not exist."""
    return UserNotFoundError(f"there is no user {name!r}; list the users to see which there are")


def _empty_row(name: str, at: datetime) -> Row:
    row: Row = {"user": name, "credential": "", "created_at": at, "changed_at": at}
    for mechanism in _KINDS:
        row |= _no_columns(mechanism)
    return row


def _columns(verifier: Verifier) -> Row:
    kind = _KINDS[verifier.mechanism]
    return {
        f"{kind}_salt": verifier.salt,
        f"{kind}_iterations": verifier.iterations,
        f"{kind}_stored_key": verifier.stored_key,
        f"{kind}_server_key": verifier.server_key,
    }


def _no_columns(mechanism: str) -> Row:
    kind = _KINDS[mechanism]
    parts = ("salt", "iterations", "stored_key", "server_key")
    return {f"{kind}_{part}": None for part in parts}


def _user(row: Row) -> User:
    return User(
        name=row["user"],
        credential=row["credential"],
        verifiers=tuple(
            Verifier(
                mechanism,
                row[f"{kind}_salt"],
                row[f"{kind}_iterations"],
                row[f"{kind}_stored_key"],
                row[f"{kind}_server_key"],
            )
            for mechanism, kind in _KINDS.items()
            if row[f"{kind}_stored_key"] is not None
        ),
        created_at=row["created_at"],
        changed_at=row["changed_at"],
    )
