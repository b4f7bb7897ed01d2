"""`streamlog acl …`: add, list and remove access rules."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streamlog import display
from streamlog.cli import output
from streamlog.cli.completion import complete_group, complete_topic
from streamlog.cli.output import WrongUsageError
from streamlog.cli.session import session_of

if TYPE_CHECKING:
    from streamlog.broker.acls import Acls, Rule
    from streamlog.client import Log

acl_app = typer.Typer(
    name="acl",
    help="Add, list and remove the rules that say what brokers' users may do.",
    no_args_is_help=True,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--operation",
        "-o",
        metavar="OPERATION",
        help="read, write, create, delete, alter, describe, alter_configs, describe_configs, "
        "cluster_action, idempotent_write or all; repeatable.",
    ),
]
TopicNames = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC",
        help="A topic, or '*'; repeatable.",
        autocompletion=complete_topic,
    ),
]
GroupNames = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        "-g",
        metavar="GROUP",
        help="A group, or '*'; repeatable.",
        autocompletion=complete_group,
    ),
]
TheCluster = Annotated[bool, typer.Option("--cluster", help="The cluster as a whole.")]
Prefix = Annotated[
    bool, typer.Option("--prefix", help="The names are beginnings: all that begin so are meant.")
]
Deny = Annotated[bool, typer.Option("--deny", help="Deny; a denial wins over all that allows.")]

_ADD_EPILOG = (
    "Examples: add alice -o read -t orders -g billing · add app -o write -t sales- --prefix · "
    "add '*' -o describe -t '*' · add mallory -o all -t orders --deny · add ops -o all --cluster"
)


@acl_app.command(epilog=_ADD_EPILOG)
def add(
    context: typer.Context,
    *,
    user: Annotated[str, typer.Argument(metavar="USER", help="The user, or '*' for all.")],
    operation: Operations = None,
    topic: TopicNames = None,
    group: GroupNames = None,
    cluster: TheCluster = False,
    prefix: Prefix = False,
    deny: Deny = False,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Only from this IP address.")
    ] = "*",
    as_json: Json = False,
) -> None:
    """Add rules: a user may, or with --deny may not, do something. Brokers heed them within seconds."""
    session = session_of(context, as_json)
    if not operation:
        raise WrongUsageError(
            "say what the user may do: --operation read (or write, describe, all, …)"
        )
    if not (topic or group or cluster):
        raise WrongUsageError("say to what: --topic NAME, --group NAME or --cluster")
    if prefix and cluster:
        raise WrongUsageError("--prefix is for topics and groups; give --cluster by itself")
    from streamlog.broker.acls import ALLOW, CLUSTER, DENY, LITERAL, PREFIX, Rule, principal_of

    resources = [
        *(("topic", name) for name in topic or []),
        *(("group", name) for name in group or []),
        *([("cluster", CLUSTER)] if cluster else []),
    ]
    rules = [
        Rule(
            principal=principal_of(user),
            kind=kind,
            name=name,
            operation=what,
            pattern=PREFIX if prefix else LITERAL,
            permission=DENY if deny else ALLOW,
            host=host,
        )
        for kind, name in resources
        for what in dict.fromkeys(operation)
    ]
    with session.open(create=True) as log:
        acls = _acls(log)
        first = not acls.read().in_force
        added = acls.add(rules)
        unknown = _is_unknown(log, user)
    if session.as_json:
        output.show_json({"added": [_json(rule) for rule in added]})
        return
    output.show([display.rules_grid(added)], None, as_json=False)
    if len(added) < len(rules):
        output.note(f"{len(rules) - len(added)} of {len(rules)} rules were there already")
    if unknown:
        output.note(f"there is no user {user} yet: streamlog user add {user}")
    if first:
        output.note("rules are in force from now on: users may do only what a rule allows")


@acl_app.command(name="list")
def list_rules(
    context: typer.Context,
    user: Annotated[
        str | None, typer.Option("--user", "-u", metavar="USER", help="Only of this user.")
    ] = None,
    topic: TopicNames = None,
    group: GroupNames = None,
    cluster: TheCluster = False,
    as_json: Json = False,
) -> None:
    """List the rules; of a topic or group, those that concern it, by prefix or '*' too."""
    session = session_of(context, as_json)
    from streamlog.broker.acls import principal_of

    with session.open() as log:
        rules = _acls(log).read()
    wanted = [
        *(("topic", name) for name in topic or []),
        *(("group", name) for name in group or []),
        *([("cluster", "")] if cluster else []),
    ]

    def concerns(rule: Rule, kind: str, name: str) -> bool:
        return rule.kind == kind and (kind == "cluster" or rule.concerns(kind, name))

    found = [
        rule
        for rule in rules.all
        if (user is None or rule.principal == principal_of(user))
        and (not wanted or any(concerns(rule, kind, name) for kind, name in wanted))
    ]
    if not rules.in_force and not session.as_json and sys.stdout.isatty():
        output.note("no rule was ever added: who can log in may do everything")
        return
    output.show(
        [display.rules_grid(found)], [_json(rule) for rule in found], as_json=session.as_json
    )


@acl_app.command()
def remove(
    context: typer.Context,
    user: Annotated[str, typer.Argument(metavar="USER", help="The user, or '*'.")],
    operation: Operations = None,
    topic: TopicNames = None,
    group: GroupNames = None,
    cluster: TheCluster = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a user's rules: all, or those for the operations and resources given, as `list` has them."""
    session = session_of(context, as_json)
    from streamlog.broker.acls import CLUSTER, principal_of

    principal = principal_of(user)
    wanted = {
        *(("topic", name) for name in topic or []),
        *(("group", name) for name in group or []),
        *([("cluster", CLUSTER)] if cluster else []),
    }

    def chosen(rule: Rule) -> bool:
        return (
            rule.principal == principal
            and (not operation or rule.operation in operation)
            and (not wanted or (rule.kind, rule.name) in wanted)
        )

    with session.open() as log:
        acls = _acls(log)
        found = [rule for rule in acls.read().all if chosen(rule)]
        if not found:
            raise output.BadInputError(
                f"no rule of {principal} is like that; streamlog acl list --user shows which there are"
            )
        if not yes:
            if not sys.stdin.isatty():
                raise WrongUsageError(
                    f"{len(found)} rules would go, and there is no terminal to ask at: add --yes"
                )
            output.show([display.rules_grid(found)], None, as_json=False)
            if not typer.confirm("Remove these rules?", err=True):
                raise typer.Abort
        removed = acls.remove(chosen)
    if session.as_json:
        output.show_json({"removed": [_json(rule) for rule in removed]})
    else:
        count = f"{len(removed)} rule{'' if len(removed) == 1 else 's'}"
        sys.stdout.write(f"removed {count} of {principal}\n")


def _acls(log: Log) -> Acls:
    from streamlog.broker.acls import Acls
    from streamlog.clock import Runtime

    return Acls(log.admin(), Runtime())


def _is_unknown(log: Log, user: str) -> bool:
    """Whether a rule is for a name that nobody can log in with; certificates' names are not kept here."""
    from streamlog.broker.users import Users
    from streamlog.clock import Runtime

    name = user.removeprefix("User:")
    return name != "*" and "=" not in name and name not in Users(log.admin(), Runtime()).read()


def _json(rule: Rule) -> dict[str, object]:
    return {
        "principal": rule.principal,
        "permission": rule.permission,
        "operation": rule.operation,
        "kind": rule.kind,
        "pattern": rule.pattern,
        "name": rule.name,
        "host": rule.host,
    }
