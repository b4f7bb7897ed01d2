"""`streamlog group …`: list, describe, members, reset, delete, expire."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from streamlog import display
from streamlog.cli import output, watch
from streamlog.cli.completion import complete_group, complete_topic
from streamlog.cli.durations import parse_duration
from streamlog.cli.inputs import parse_time
from streamlog.cli.offsets import Origin, parse_start
from streamlog.cli.output import WrongUsageError
from streamlog.cli.session import session_of
from streamlog.cli.watch import View, Watch, WatchCommand
from streamlog.model import TopicPartition, to_datetime

if TYPE_CHECKING:
    from streamlog.consumer.group.admin import GroupDescription, GroupMember, GroupSummary, Move

group_app = typer.Typer(
    name="group",
    help="List, describe, reset, delete and expire consumer groups.",
    no_args_is_help=True,
)

Name = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group.", autocompletion=complete_group)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Even if members are at work: they are fenced, and join again."),
]

_RESET_EPILOG = (
    "Examples: reset billing --to earliest · reset billing --to latest --topic orders · "
    "reset billing --to 42 --topic orders --partition 0 · "
    "reset billing --to 2026-11-18T05:00Z (records from then on) · "
    "reset billing --as-of 2026-11-18T05:00Z (where the group was then) · add --dry-run to see first."
)


@group_app.command(name="list", cls=WatchCommand)
def list_groups(
    context: typer.Context,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print names only, one a line.")
    ] = False,
    again: Watch = None,
    as_json: Json = False,
) -> None:
    """List the groups: state, members, generation."""
    session = session_of(context, as_json)
    seconds = watch.interval(again)
    with session.open() as log:
        if quiet and not session.as_json:
            if seconds is not None:
                raise WrongUsageError("--quiet and --watch exclude each other")
            sys.stdout.write("".join(f"{group.name}\n" for group in log.groups()))
            return

        def look() -> View:
            groups = log.groups()
            return [display.groups_grid(groups)], [_summary(group) for group in groups]

        if seconds is None and not session.as_json and sys.stdout.isatty() and not log.groups():
            output.note("no groups yet: streamlog consume TOPIC --group NAME makes one")
            return
        watch.show(look, seconds, as_json=session.as_json)


@group_app.command(cls=WatchCommand)
def describe(
    context: typer.Context, name: Name, again: Watch = None, as_json: Json = False
) -> None:
    """Show a group: its state, and a row a partition with what is committed, the end and the lag."""
    session = session_of(context, as_json)
    seconds = watch.interval(again)
    with session.open() as log:
        group = log.group(name)

        def look() -> View:
            found = group.describe()
            return [display.group_grid(found), display.lag_grid(found)], _description(found)

        watch.show(look, seconds, as_json=session.as_json)


@group_app.command()
def members(context: typer.Context, name: Name, as_json: Json = False) -> None:
    """Show who is in a group: host, last heartbeat, and the partitions each member owns."""
    session = session_of(context, as_json)
    with session.open() as log:
        found = log.group(name).describe()
    if not found.members and not session.as_json and sys.stdout.isatty():
        output.note(f"group {name} has no members")
        return
    output.show(
        [display.members_grid(found)],
        [_member(member) for member in found.members],
        as_json=session.as_json,
    )


@group_app.command(epilog=_RESET_EPILOG)
def reset(
    context: typer.Context,
    name: Name,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, an offset, or a time (ISO 8601, UTC unless it says otherwise, "
            "or @ and milliseconds since 1970): the first record at or after it.",
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="TIME",
            help="Back to what the group itself had committed at a time.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Only this topic; repeatable. Default: all that the group has offsets of.",
            autocompletion=complete_topic,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition",
            "-p",
            metavar="P",
            help="Only this partition of the topics named; repeatable.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show the plan and change nothing.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Put a group elsewhere: prints, partition by partition, from where to where."""
    session = session_of(context, as_json)
    if (to is None) == (as_of is None):
        raise WrongUsageError(
            "give either --to earliest|latest|OFFSET|TIME, or --as-of TIME "
            "(where the group was at that time)"
        )
    if partition and not topic:
        raise WrongUsageError("--partition needs --topic: say whose partitions")
    chosen = [
        TopicPartition(t, p)
        for t in dict.fromkeys(topic or [])
        for p in dict.fromkeys(partition or [])
    ]
    where = None if to is None else _where(to)
    moment = None if as_of is None else _time(as_of, "--as-of")
    with session.open() as log:
        group = log.group(name)
        plan = group.reset(
            where,
            as_of=moment,
            topics=None if chosen else topic,
            partitions=chosen or None,
            dry_run=dry_run,
            # A dry run changes nothing, so nobody need be stopped for it.
            force=force or dry_run,
        )
        at_work = dry_run and not force and group.summary().members > 0
    output.show(
        [display.moves_grid(plan)],
        {"group": name, "dry_run": dry_run, "moves": [_move(move) for move in plan]},
        as_json=session.as_json,
    )
    count = f"{len(plan)} partition{'' if len(plan) == 1 else 's'}"
    if session.as_json:
        return
    if dry_run:
        advice = "; it has members: stop them first, or add --force" if at_work else ""
        output.note(f"dry run: nothing was changed of group {name}{advice}")
    else:
        output.note(f"reset group {name}: {count}")


@group_app.command()
def delete(
    context: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Delete a group and its committed offsets."""
    session = session_of(context, as_json)
    with session.open() as log:
        # A wrong name should be told before the question, not after.
        group = log.group(name)
        if not yes:
            if not sys.stdin.isatty():
                raise WrongUsageError(
                    f"deleting group {name} forgets its offsets, and there is no terminal to ask at: "
                    "add --yes to do it"
                )
            if not typer.confirm(f"Delete group {name} and its committed offsets?", err=True):
                raise typer.Abort
        group.delete(force=force)
    output.done(f"deleted group {name}", {"name": name, "deleted": True}, as_json=session.as_json)


@group_app.command()
def expire(
    context: typer.Context,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="DURATION", help="Such as 7d, 12h, 30m: since the last commit."
        ),
    ] = "7d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show which, and delete nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete groups that have no members and committed nothing for long."""
    session = session_of(context, as_json)
    try:
        retention_ms = parse_duration(older_than)
    except ValueError as error:
        raise WrongUsageError(f"--older-than: {error}") from None
    with session.open() as log:
        names = log.expire_groups(retention_ms, dry_run=dry_run)
    if session.as_json:
        output.show_json({"groups": names, "dry_run": dry_run})
        return
    verb = "would delete" if dry_run else "deleted"
    sys.stdout.write("".join(f"{verb} group {name}\n" for name in names))
    if not names:
        output.note(f"no group is without members and silent for {older_than}")


# What the options mean


def _where(text: str) -> str | int | datetime:
    if text.startswith("as-of"):
        raise WrongUsageError("--to as-of: write --as-of TIME")
    if text[:1] == "@" or _is_iso(text):
        return _time(text, "--to")
    try:
        start = parse_start(text)
    except ValueError:
        raise WrongUsageError(
            f"--to: {text!r} is no place: give earliest, latest, an offset, or a time such as "
            "2026-01-31T12:00:00Z or @1769860800000"
        ) from None
    if start.origin is Origin.FROM_END:
        raise WrongUsageError(f"--to: offset {text} is below 0")
    return start.number if start.origin is Origin.ABSOLUTE else start.origin.value


def _is_iso(text: str) -> bool:
    """Whether it begins as a date does; a bare number is an offset, not a year."""
    return len(text) >= 8 and text[:4].isdigit() and "-" in text[4:8]


def _time(text: str, option: str) -> datetime:
    try:
        return to_datetime(parse_time(text.removeprefix("@")))
    except ValueError as error:
        raise WrongUsageError(f"{option}: {error}") from None


# As JSON


def _summary(group: GroupSummary) -> dict[str, object]:
    return {
        "name": group.name,
        "state": group.state,
        "members": group.members,
        "generation": group.generation,
    }


def _description(group: GroupDescription) -> dict[str, object]:
    return {
        "name": group.name,
        "state": group.state,
        "generation": group.generation,
        "strategy": group.strategy or None,
        "lag": group.lag,
        "members": [_member(member) for member in group.members],
        "partitions": [
            {
                "topic": part.topic,
                "partition": part.partition,
                "committed": part.committed,
                "end": part.end,
                "lag": part.lag,
                "owner": part.owner,
                "committed_at": _iso(part.committed_at),
                "metadata": part.metadata,
            }
            for part in group.partitions
        ],
    }


def _member(member: GroupMember) -> dict[str, object]:
    return {
        "id": member.id,
        "instance": member.instance,
        "client_id": member.client_id,
        "host": member.host,
        "joined_at": _iso(member.joined_at),
        "last_heartbeat": _iso(member.last_heartbeat),
        "topics": list(member.topics),
        "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in member.partitions],
    }


def _move(move: Move) -> dict[str, object]:
    return {
        "topic": move.topic,
        "partition": move.partition,
        "from": move.before,
        "to": move.after,
    }


def _iso(when: datetime | None) -> str | None:
    return None if when is None else when.isoformat()
