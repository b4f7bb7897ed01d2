"""The access rules of a root: a small Delta table, `__acls`, with a row a rule; and what they decide.

R1  A rule that denies wins over all that allow; what no rule allows is not allowed.
R2  A permission to read, write, delete or alter is one to describe, and a permission to alter_configs one
    to describe_configs (Kafka's implications). A denial implies nothing.
R3  Rules are in force from the first one on, and stay so when the last is removed: an empty table of rules
    allows nothing. A root that never had one is open to all who log in.

`Rules` is immutable, and decides; `Acls` is the table, safe to use from several threads.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.errors import InvalidRequestError
from streamlog.log.table import Content, SmallTable
from streamlog.log.topics import Topics

ALLOW = "allow"
DENY = "deny"
LITERAL = "literal"
PREFIX = "prefix"
ANY = "*"
EVERYBODY = "User:*"
# Kafka's name of the one resource of kind "cluster".
CLUSTER = "kafka-cluster"

KINDS = ("topic", "group", "cluster")
PATTERNS = (LITERAL, PREFIX)
_OPERATIONS: dict[str, tuple[str, ...]] = {
    "topic": (
        "all",
        "read",
        "write",
        "create",
        "delete",
        "alter",
        "describe",
        "alter_configs",
        "describe_configs",
    ),
    "group": ("all", "read", "delete", "describe", "alter_configs", "describe_configs"),
    "cluster": (
        "all",
        "create",
        "alter",
        "describe",
        "alter_configs",
        "describe_configs",
        "cluster_action",
        "idempotent_write",
    ),
}
OPERATIONS = tuple(dict.fromkeys(op for ops in _OPERATIONS.values() for op in ops))

# R2: what else permits an operation.
_IMPLIED_BY: dict[str, frozenset[str]] = {
    "describe": frozenset({"describe", "read", "write", "delete", "alter", "all"}),
    "describe_configs": frozenset({"describe_configs", "alter_configs", "all"}),
}

_MAX_NAME = 1_000
_FIELDS = ("principal", "permission", "operation", "kind", "pattern", "name", "host")
_SCHEMA = pa.schema([pa.field(name, pa.string(), nullable=False) for name in _FIELDS])


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Rule:
    """Who (`User:alice`, `User:*`) may, or may not, do what to what, from where."""

    principal: str
    kind: str
    name: str
    operation: str
    pattern: str = LITERAL
    permission: str = ALLOW
    host: str = ANY

    def __post_init__(self) -> None:
        if not self.principal.startswith("User:") or len(self.principal) <= len("User:"):
            raise InvalidRequestError(
                f"{self.principal[:80]!r} is no principal; write User:NAME, or User:* for everybody"
            )
        _one_of("kind of resource", self.kind, KINDS)
        _one_of("pattern", self.pattern, PATTERNS)
        _one_of("permission", self.permission, (ALLOW, DENY))
        _one_of(f"operation on a {self.kind}", self.operation, _OPERATIONS[self.kind])
        if not self.name or len(self.name) > _MAX_NAME or len(self.principal) > _MAX_NAME:
            raise InvalidRequestError(
                f"a name in a rule has 1 to {_MAX_NAME} characters, and this one {len(self.name)}"
            )
        if self.kind == "cluster" and (self.name, self.pattern) != (CLUSTER, LITERAL):
            raise InvalidRequestError(f"the cluster is named {CLUSTER!r}, literally")
        if self.pattern == PREFIX and self.name == ANY:
            raise InvalidRequestError("`*` means all names by itself; give it without a prefix")
        if self.host != ANY:
            _check_address(self.host)

    def concerns(self, kind: str, name: str) -> bool:
        """Whether a resource is one that the rule is about."""
        if kind != self.kind:
            return False
        if self.pattern == PREFIX:
            return name.startswith(self.name)
        return self.name in (name, ANY)

    def covers(self, other: Rule) -> bool:
        """Whether every resource of the other rule is one of this one."""
        if self.kind != other.kind:
            return False
        if self.pattern == PREFIX:
            return other.name != ANY and other.name.startswith(self.name)
        return self.name == ANY or (other.pattern == LITERAL and self.name == other.name)


class Rules:
    """The rules at one moment."""

    def __init__(self, rules: Iterable[Rule] = (), *, in_force: bool = False) -> None:
        """R3: `in_force` is false while a root never had a rule."""
        self.all = tuple(rules)
        self.in_force = in_force
        self._of: dict[str, list[Rule]] = {}
        for rule in self.all:
            self._of.setdefault(rule.principal, []).append(rule)

    def allow(self, principal: str, host: str, operation: str, kind: str, name: str) -> bool:
        """R1, R2. Kafka's two exceptions: who may create in the cluster may create any topic, and who may
        write to some topic may write idempotently."""
        if self._decide(principal, host, operation, kind, name):
            return True
        if operation == "create" and kind == "topic":
            return self._decide(principal, host, operation, "cluster", CLUSTER)
        if operation == "idempotent_write":
            return self._may_write_somewhere(principal, host)
        return False

    def _decide(self, principal: str, host: str, operation: str, kind: str, name: str) -> bool:
        enough = _IMPLIED_BY.get(operation) or (operation, "all")
        allowed = False
        for rule in self._for(principal, host):
            if not rule.concerns(kind, name):
                continue
            if rule.permission == DENY:
                if rule.operation in (operation, "all"):
                    return False
            elif rule.operation in enough:
                allowed = True
        return allowed

    def _may_write_somewhere(self, principal: str, host: str) -> bool:
        rules = [
            rule
            for rule in self._for(principal, host)
            if rule.kind == "topic" and rule.operation in ("write", "all")
        ]
        denials = [rule for rule in rules if rule.permission == DENY]
        return any(
            rule.permission == ALLOW and not any(denial.covers(rule) for denial in denials)
            for rule in rules
        )

    def _for(self, principal: str, host: str) -> list[Rule]:
        rules = [*self._of.get(principal, ()), *self._of.get(EVERYBODY, ())]
        return [rule for rule in rules if rule.host in (ANY, host)]


class Acls:
    """The rules of one root."""

    def __init__(self, topics: Topics, runtime: Runtime) -> None:
        self._table = SmallTable(
            topics.objects, paths.ACLS_TABLE, _SCHEMA, runtime, topics.checkpointer
        )
        self._lock = threading.Lock()
        self._version = -2
        self._rules = Rules()

    def read(self) -> Rules:
        """The rules, freshly looked up; the same object while nothing changed."""
        with self._lock:
            self._take(self._table.read())
            return self._rules

    def add(self, rules: Iterable[Rule]) -> list[Rule]:
        """Adds rules; returns those that were not there before."""
        wanted = list(dict.fromkeys(rules))
        added: list[Rule] = []

        def change(known: set[Rule]) -> set[Rule]:
            # A second run of a change that took effect already finds its rules there; they are new still.
            added.extend(rule for rule in wanted if rule not in known and rule not in added)
            return known | set(wanted)

        self._update(change)
        return added

    def remove(self, chosen: Callable[[Rule], bool]) -> list[Rule]:
        """Removes rules; returns them."""
        removed: list[Rule] = []

        def change(known: set[Rule]) -> set[Rule]:
            gone = {rule for rule in known if chosen(rule)}
            removed.extend(sorted(gone.difference(removed)))
            return known - gone

        self._update(change)
        return removed

    def _update(self, change: Callable[[set[Rule]], set[Rule]]) -> None:
        def change_content(content: Content) -> Content | None:
            known = {_rule(row) for row in content.rows}
            new = change(known)
            if new == known:
                return None
            return Content(tuple(_row(rule) for rule in sorted(new)))

        with self._lock:
            self._take(self._table.update(change_content))

    def _take(self, content: Content) -> None:
        if self._table.version != self._version:
            rules = sorted(_rule(row) for row in content.rows)
            self._rules = Rules(rules, in_force=self._table.version >= 0)
            self._version = self._table.version


def principal_of(name: str) -> str:
    """The principal of a user's name, or of one that is written as a principal already."""
    return name if name.startswith("User:") else f"User:{name}"


def _row(rule: Rule) -> dict[str, Any]:
    return {name: getattr(rule, name) for name in _FIELDS}


def _rule(row: dict[str, Any]) -> Rule:
    return Rule(**{name: row[name] for name in _FIELDS})


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidRequestError(f"{value[:80]!r} is no {what}; allowed are {', '.join(allowed)}")


def _check_address(host: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise InvalidRequestError(
            f"{host[:80]!r} is no host; write an IP address, or * for all"
        ) from None
