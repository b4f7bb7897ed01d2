"""`streamlog topic …`: create, list, describe, alter, delete, truncate."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streamlog import display
from streamlog.cli import output
from streamlog.cli.completion import complete_topic
from streamlog.cli.output import WrongUsageError
from streamlog.cli.session import key_values, session_of

if TYPE_CHECKING:
    from streamlog.log.topics import TopicDescription, TopicInfo

topic_app = typer.Typer(
    name="topic",
    help="Create, list, describe, alter, delete and truncate topics.",
    no_args_is_help=True,
)

Name = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic)
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="KEY=VALUE",
        help="Setting by Kafka's name, such as retention.ms=86400000; may be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@topic_app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="Letters, digits, '.', '_', '-'.")],
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", metavar="N", help="How many partitions.")
    ] = 1,
    config: Config = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do nothing if there is such a topic.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a topic."""
    session = session_of(context, as_json)
    settings = key_values(config or [], "--config")
    with session.open(create=True) as log:
        info = log.create_topic(
            name, partitions=partitions, config=settings, if_not_exists=if_not_exists
        )
    # With --if-not-exists it may have been there before, with other partitions: say what is.
    verb = "topic" if if_not_exists else "created topic"
    message = f"{verb} {info.name} with {_plural(info.partitions, 'partition')}"
    output.done(message, _info(info), as_json=session.as_json)


@topic_app.command(name="list")
def list_topics(
    context: typer.Context,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print names only, one a line.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the topics."""
    session = session_of(context, as_json)
    with session.open() as log:
        topics = sorted(log.topics(), key=lambda info: info.name)
    if quiet and not session.as_json:
        sys.stdout.write("".join(f"{info.name}\n" for info in topics))
        return
    if not topics and not session.as_json and sys.stdout.isatty():
        output.note("no topics yet: streamlog topic create NAME makes one")
        return
    output.show(
        [display.topics_grid(topics)],
        [_info(info) for info in topics],
        as_json=session.as_json,
    )


@topic_app.command()
def describe(context: typer.Context, name: Name, as_json: Json = False) -> None:
    """Show a topic: its partitions with their offsets, records, bytes and files, and its config."""
    session = session_of(context, as_json)
    with session.open() as log:
        description = log.describe(name)
    output.show(
        display.description_grids(description), _description(description), as_json=session.as_json
    )


@topic_app.command()
def alter(
    context: typer.Context,
    name: Name,
    config: Config = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Setting to put back to its default; may be repeated."),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", metavar="N", help="New total; it can only grow."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change a topic's settings, or add partitions."""
    session = session_of(context, as_json)
    changes: dict[str, object | None] = dict(key_values(config or [], "--config"))
    for key in delete_config or []:
        if key in changes:
            raise WrongUsageError(f"{key} is both set by --config and removed by --delete-config")
        changes[key] = None
    if not changes and partitions is None:
        raise WrongUsageError(
            "nothing to alter: give --config KEY=VALUE, --delete-config KEY or --partitions N"
        )
    with session.open() as log:
        info = log.topic(name)
        # Settings first: they are the more likely to be refused, and then nothing has changed.
        if changes:
            info = log.alter_topic(name, changes)
        if partitions is not None:
            info = log.add_partitions(name, partitions)
    overrides = ", ".join(f"{key}={value}" for key, value in sorted(info.config.to_dict().items()))
    message = f"altered topic {name}: {_plural(info.partitions, 'partition')}"
    output.done(
        f"{message}, config {overrides or 'all default'}", _info(info), as_json=session.as_json
    )


@topic_app.command()
def delete(
    context: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a topic and all its records."""
    session = session_of(context, as_json)
    with session.open() as log:
        # A wrong name should be told before the question, not after.
        log.topic(name)
        if not yes:
            if not sys.stdin.isatty():
                raise WrongUsageError(
                    f"deleting topic {name} cannot be undone, and there is no terminal to ask at: "
                    "add --yes to do it"
                )
            if not typer.confirm(f"Delete topic {name} and all its records?", err=True):
                raise typer.Abort
        log.delete_topic(name)
    output.done(f"deleted topic {name}", {"name": name, "deleted": True}, as_json=session.as_json)


@topic_app.command()
def truncate(
    context: typer.Context,
    name: Name,
    partition: Annotated[
        int, typer.Option("--partition", "-p", metavar="P", help="The partition.")
    ],
    before: Annotated[
        int,
        typer.Option("--before", metavar="OFFSET", help="Remove all records below this offset."),
    ],
    as_json: Json = False,
) -> None:
    """Remove the oldest records of a partition."""
    session = session_of(context, as_json)
    with session.open() as log:
        start = log.truncate(name, partition, before)
    output.done(
        f"{name}-{partition} now starts at offset {start}",
        {"topic": name, "partition": partition, "start": start},
        as_json=session.as_json,
    )


def _info(info: TopicInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "id": info.id,
        "partitions": info.partitions,
        "config": info.config.to_dict(),
        "created_at": info.created_at.isoformat(),
    }


def _description(description: TopicDescription) -> dict[str, object]:
    names = ("partition", "start", "end", "records", "bytes", "files", "version")
    partitions = [{name: getattr(part, name) for name in names} for part in description.partitions]
    totals = {
        name: sum(getattr(part, name) for part in description.partitions)
        for name in ("records", "bytes", "files")
    }
    body = _info(description.info)
    return (
        body
        | totals
        | {
            "effective_config": description.info.config.effective(),
            "partition_details": partitions,
        }
    )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
