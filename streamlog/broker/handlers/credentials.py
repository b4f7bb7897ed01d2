"""Users' SCRAM credentials, described and altered by Kafka's admin clients (`kafka-configs`).

The client salts the password itself; what it sends is as good as the password, so such a connection wants
TLS. It is turned into a verifier at once.
"""

from __future__ import annotations

from typing import Any

from streamlog.broker import apis, scram
from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.handlers.acls import check_may
from streamlog.broker.kafka_errors import Code, KafkaError, code_of
from streamlog.broker.users import Deletion, Upsertion, User, check_name
from streamlog.errors import StreamlogError

_NUMBERS = {scram.SHA_256: 1, scram.SHA_512: 2}
_MECHANISMS = {number: mechanism for mechanism, number in _NUMBERS.items()}


async def describe_user_scram_credentials(call: Call) -> Response:
    """Which mechanisms users have a password for."""
    check_may(call, "describe")
    users = await call.broker.run(call.broker.security.users.read)
    if not call.body.users:
        return {"results": [_described(user) for user in users.values()]}
    results: list[dict[str, Any]] = []
    asked = [entry.name for entry in call.body.users]
    for name in dict.fromkeys(asked):
        if asked.count(name) > 1:
            results.append(_result(name, Code.DUPLICATE_RESOURCE, "the user is asked for twice"))
        elif name in users:
            results.append(_described(users[name]))
        else:
            results.append(_result(name, Code.RESOURCE_NOT_FOUND, "there is no such user"))
    return {"results": results}


async def alter_user_scram_credentials(call: Call) -> Response:
    """Sets and drops single credentials; a user's changes happen all or not at all."""
    wanted: dict[str, list[Any]] = {}
    for entry in (*call.body.deletions, *call.body.upsertions):
        wanted.setdefault(entry.name, []).append(entry)
    security = call.broker.security
    results = []
    for name, entries in wanted.items():
        try:
            check_may(call, "alter")
            changes = [_change(entry) for entry in entries]
            await call.broker.run(security.users.alter, changes)
            results.append(_result(name, Code.NONE, None))
        except StreamlogError as error:
            results.append(_result(name, code_of(error), str(error)))
    if security.enabled:
        await security.refresh()
    return {"results": results}


def _change(entry: Any) -> Upsertion | Deletion:
    mechanism = _MECHANISMS.get(entry.mechanism)
    if mechanism is None:
        raise KafkaError(
            Code.UNSUPPORTED_SASL_MECHANISM, f"SCRAM mechanism {entry.mechanism} is unknown"
        )
    salted = getattr(entry, "salted_password", None)
    if salted is None:
        return Deletion(entry.name, mechanism)
    if not scram.MIN_ITERATIONS <= entry.iterations <= scram.MAX_ITERATIONS:
        raise KafkaError(
            Code.UNACCEPTABLE_CREDENTIAL,
            f"{entry.iterations} iterations are not allowed; give {scram.MIN_ITERATIONS} to "
            f"{scram.MAX_ITERATIONS}",
        )
    if not entry.salt or not salted:
        raise KafkaError(Code.UNACCEPTABLE_CREDENTIAL, "the salt, or the password, is empty")
    try:
        name = check_name(entry.name)
    except StreamlogError as error:
        raise KafkaError(Code.UNACCEPTABLE_CREDENTIAL, str(error)) from error
    return Upsertion(name, scram.from_salted(mechanism, entry.salt, entry.iterations, salted))


def _described(user: User) -> dict[str, Any]:
    infos = [
        {"mechanism": _NUMBERS[v.mechanism], "iterations": v.iterations} for v in user.verifiers
    ]
    return {"user": user.name, "credential_infos": infos}


def _result(name: str, code: int, message: str | None) -> dict[str, Any]:
    return {"user": name, "error_code": code, "error_message": message}


HANDLERS: dict[int, Handler] = {
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials,
    apis.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
}
