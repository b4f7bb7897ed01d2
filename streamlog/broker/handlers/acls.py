"""Access rules, read and changed by Kafka's admin clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamlog.broker import apis
from streamlog.broker.acls import ALLOW, ANY, DENY, LITERAL, PREFIX, Rule
from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.kafka_errors import Code, KafkaError, code_of
from streamlog.errors import StreamlogError

_KINDS = {"topic": 2, "group": 3, "cluster": 4}
_PATTERNS = {LITERAL: 3, PREFIX: 4}
_OPERATIONS = {
    "all": 2,
    "read": 3,
    "write": 4,
    "create": 5,
    "delete": 6,
    "alter": 7,
    "describe": 8,
    "cluster_action": 9,
    "describe_configs": 10,
    "alter_configs": 11,
    "idempotent_write": 12,
}
_PERMISSIONS = {DENY: 2, ALLOW: 3}

_KIND_OF = {number: word for word, number in _KINDS.items()}
_PATTERN_OF = {number: word for word, number in _PATTERNS.items()}
_OPERATION_OF = {number: word for word, number in _OPERATIONS.items()}
_PERMISSION_OF = {number: word for word, number in _PERMISSIONS.items()}

# In filters.
_ANY = 1
_MATCH = 2


async def describe_acls(call: Call) -> Response:
    """The rules that a filter takes, by resource."""
    check_may(call, "describe")
    chosen = _filter(call.body)
    acls = call.broker.security.acls
    found: dict[tuple[str, str, str], list[Rule]] = {}
    for rule in (await call.broker.run(acls.read)).all:
        if chosen(rule):
            found.setdefault((rule.kind, rule.pattern, rule.name), []).append(rule)
    return {
        "resources": [
            {
                "resource_type": _KINDS[kind],
                "resource_name": name,
                "pattern_type": _PATTERNS[pattern],
                "acls": [_who(rule) for rule in rules],
            }
            for (kind, pattern, name), rules in found.items()
        ]
    }


async def create_acls(call: Call) -> Response:
    """Adds rules; each is answered for itself."""
    results: list[dict[str, Any]] = []
    wanted: list[Rule] = []
    try:
        check_may(call, "alter")
    except KafkaError as error:
        return {"results": [_failure(error) for _ in call.body.creations]}
    for creation in call.body.creations:
        try:
            wanted.append(_created(creation))
            results.append({})
        except StreamlogError as error:
            results.append(_failure(error))
    security = call.broker.security
    if wanted:
        try:
            await call.broker.run(security.acls.add, wanted)
            await security.refresh()
        except StreamlogError as error:
            results = [result or _failure(error) for result in results]
    return {"results": results}


async def delete_acls(call: Call) -> Response:
    """Removes the rules that filters take; each filter is answered with what it removed."""
    try:
        check_may(call, "alter")
    except KafkaError as error:
        return {"filter_results": [_failure(error) for _ in call.body.filters]}
    security = call.broker.security
    results: list[dict[str, Any]] = []
    for wanted in call.body.filters:
        try:
            removed = await call.broker.run(security.acls.remove, _filter(wanted))
        except StreamlogError as error:
            results.append(_failure(error))
            continue
        results.append(
            {
                "matching_acls": [
                    {
                        "resource_type": _KINDS[rule.kind],
                        "resource_name": rule.name,
                        "pattern_type": _PATTERNS[rule.pattern],
                    }
                    | _who(rule)
                    for rule in removed
                ]
            }
        )
    await security.refresh()
    return {"filter_results": results}


def check_may(call: Call, operation: str) -> None:
    """Users and rules are the cluster's; where nobody logs in they are not to be had at all."""
    security = call.broker.security
    if not security.enabled:
        raise KafkaError(
            Code.SECURITY_DISABLED,
            "clients of this broker do not log in: it has no users and no rules",
        )
    if not security.allows(call, operation, "cluster", ""):
        raise KafkaError(Code.CLUSTER_AUTHORIZATION_FAILED)


def _created(creation: Any) -> Rule:
    """What a creation says; words that no rule has are refused."""

    def word(words: dict[int, str], number: int, what: str) -> str:
        if number not in words:
            allowed = ", ".join(words.values())
            raise KafkaError(
                Code.INVALID_REQUEST, f"{what} {number} is not offered; allowed are {allowed}"
            )
        return words[number]

    return Rule(
        principal=creation.principal,
        kind=word(_KIND_OF, creation.resource_type, "resource type"),
        name=creation.resource_name,
        pattern=word(_PATTERN_OF, creation.resource_pattern_type, "pattern type"),
        operation=word(_OPERATION_OF, creation.operation, "operation"),
        permission=word(_PERMISSION_OF, creation.permission_type, "permission type"),
        host=creation.host,
    )


def _filter(wanted: Any) -> Callable[[Rule], bool]:
    """Which rules a filter takes: null, and the number for "any", take all."""
    pattern = wanted.pattern_type_filter
    name = wanted.resource_name_filter
    if pattern not in (_ANY, _MATCH, *_PATTERN_OF):
        raise KafkaError(Code.INVALID_REQUEST, f"pattern type {pattern} of a filter is unknown")

    def named(rule: Rule) -> bool:
        if pattern in _PATTERN_OF and rule.pattern != _PATTERN_OF[pattern]:
            return False
        if name is None:
            return True
        if pattern == _MATCH:
            return rule.concerns(rule.kind, name) or (name == ANY and rule.name == ANY)
        return bool(rule.name == name)

    def chosen(rule: Rule) -> bool:
        return (
            wanted.resource_type_filter in (_ANY, _KINDS[rule.kind])
            and wanted.operation in (_ANY, _OPERATIONS[rule.operation])
            and wanted.permission_type in (_ANY, _PERMISSIONS[rule.permission])
            and wanted.principal_filter in (None, rule.principal)
            and wanted.host_filter in (None, rule.host)
            and named(rule)
        )

    return chosen


def _who(rule: Rule) -> dict[str, Any]:
    return {
        "principal": rule.principal,
        "host": rule.host,
        "operation": _OPERATIONS[rule.operation],
        "permission_type": _PERMISSIONS[rule.permission],
    }


def _failure(error: StreamlogError) -> dict[str, Any]:
    return {"error_code": code_of(error), "error_message": str(error)}


HANDLERS: dict[int, Handler] = {
    apis.DESCRIBE_ACLS: describe_acls,
    apis.CREATE_ACLS: create_acls,
    apis.DELETE_ACLS: delete_acls,
}
