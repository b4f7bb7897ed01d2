"""`streamlog consume`: records of topics to stdout."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from streamlog.cli.completion import complete_group, complete_topic
from streamlog.cli.formats import DEFAULT_FORMAT, Render, compile_format, json_renderer
from streamlog.cli.offsets import Origin, StartAt, parse_start
from streamlog.cli.output import WrongUsageError
from streamlog.cli.printer import (
    Ending,
    Stop,
    end_of_partitions,
    end_of_share,
    print_records,
)
from streamlog.cli.session import session_of
from streamlog.cli.settings import Settings, parse_settings
from streamlog.errors import GroupActiveError, GroupNotFoundError, OutOfRangeError
from streamlog.model import TopicPartition

if TYPE_CHECKING:
    from streamlog.client import Log
    from streamlog.consumer import Consumer
    from streamlog.consumer.settings import ConsumerSettings

# Settings of a consumer that have an option of their own here.
_OPTIONS = {
    "group_id": "--group",
    "auto_offset_reset": "--from-beginning or --offset",
    "max_poll_records": "--max-poll-records",
    "consumer_timeout_ms": "--exit-at-end",
}


def consume(
    context: typer.Context,
    *,
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC", help="Topics.", autocompletion=complete_topic),
    ],
    pattern: Annotated[
        bool,
        typer.Option("--pattern", help="TOPIC is a regular expression; topics made later join in."),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-G",
            metavar="NAME",
            help="Share the partitions with all that consume for this group, and commit what was "
            "printed. With --partition: the group's offsets, without sharing.",
            autocompletion=complete_group,
        ),
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="The same as --offset earliest; with --group, where it has no offsets yet.",
        ),
    ] = False,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="WHERE",
            help="Where to begin: N, -N (the last N of each partition), earliest, latest, "
            "@TIME (milliseconds since 1970 or ISO 8601, UTC unless it says otherwise). "
            "Default: latest; with --exit-at-end: earliest.",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="P", help="Only this partition; repeatable."),
    ] = None,
    max_messages: Annotated[
        int | None,
        typer.Option("--max-messages", "-c", metavar="N", min=1, help="End after N records."),
    ] = None,
    exit_at_end: Annotated[
        bool,
        typer.Option("--exit-at-end", "-e", help="End at what is the end when the command starts."),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for more records (the default).")
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="TEXT",
            help="kcat's tokens: %t topic, %p partition, %o offset, %k key, %s value, "
            "%T timestamp (ms), %h headers, %K and %S length of key and value; \\n \\t as in C. "
            f"Default: {DEFAULT_FORMAT}",
        ),
    ] = None,
    null: Annotated[
        bool, typer.Option("--null", "-Z", help="Print a null key or value as NULL.")
    ] = False,
    max_poll_records: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many records are fetched at a time.")
    ] = 500,
    setting: Settings = None,
    as_json: Annotated[
        bool, typer.Option("--json", "-J", help="Print one JSON object a record.")
    ] = False,
) -> None:
    """Print records of topics as they come, until Ctrl-C.

    With --group, several of these commands share the topic's partitions, each record goes to one of
    them, and a later run goes on where the group stopped.
    """
    session = session_of(context, as_json)
    if follow and exit_at_end:
        raise WrongUsageError("--follow and --exit-at-end exclude each other")
    if pattern and partition:
        raise WrongUsageError("--pattern reads all partitions: leave out --partition")
    if session.as_json and format is not None:
        raise WrongUsageError("--json and --format exclude each other")
    start = _start(offset, from_beginning=from_beginning, exit_at_end=exit_at_end)
    if group is not None and start.origin not in (Origin.EARLIEST, Origin.LATEST):
        raise WrongUsageError(
            f"--group {group} begins at its committed offsets, --offset {offset} elsewhere: leave out "
            f"one of them, or move the group with: streamlog group reset {group} --to …"
        )
    render = _template(format or DEFAULT_FORMAT, null=b"NULL" if null else b"")
    names = list(dict.fromkeys(topics))

    with session.open() as log:
        settings = _settings(setting or [], start, max_poll_records, group)
        if session.as_json:
            render = json_renderer(_timestamp_types(log))
        standalone = group is not None and bool(partition)
        if group is not None and partition and settings.enable_auto_commit:
            _refuse_active(log, group)
        # Around the consumer: a signal must not interrupt it while it leaves its group.
        stop = None if group is None else Stop()
        given = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
        with stop or nullcontext(), log.consumer(**given) as consumer:
            if stop is not None:
                stop.wakes(consumer)
            _attach(consumer, names, pattern=pattern, partitions=partition)
            _seek(consumer, start)
            ended: Ending | None = None
            if exit_at_end and (group is None or standalone):
                ended = end_of_partitions(consumer)
            elif exit_at_end and group is not None:
                ended = end_of_share(consumer, log, group, _partitions(log, names, pattern=pattern))
            print_records(
                consumer,
                render,
                ended=ended,
                max_messages=max_messages,
                max_poll_records=max_poll_records,
                stop=stop,
            )
    if stop is not None and stop.number:
        raise typer.Exit(stop.code)


def _settings(
    pairs: Sequence[str], start: StartAt, max_poll_records: int, group: str | None
) -> ConsumerSettings:
    # Here and not above: a consumer loads pyarrow, which `--help` has no use for.
    from streamlog.consumer.settings import ConsumerSettings

    given = parse_settings(pairs, dataclasses.fields(ConsumerSettings), _OPTIONS)
    reset = "latest" if start.origin is Origin.LATEST else "earliest"
    own = {"auto_offset_reset": reset, "max_poll_records": max_poll_records, "group_id": group}
    return ConsumerSettings.from_kwargs(given | own)


def _refuse_active(log: Log, group: str) -> None:
    """Commits from outside of a group with members are refused: better now than in five seconds."""
    try:
        members = log.group(group).summary().members
    except GroupNotFoundError:
        return
    if members:
        raise GroupActiveError(
            f"group {group!r} has members at work ({members}), so only they commit its offsets: leave out "
            "--partition to join them, stop them first, or use another group"
        )


def _partitions(log: Log, names: Sequence[str], *, pattern: bool) -> list[TopicPartition]:
    if pattern:
        joined = re.compile(_alternatives(names))
        infos = [info for info in log.topics() if joined.fullmatch(info.name)]
    else:
        infos = [log.topic(name) for name in names]
    return [TopicPartition(info.name, p) for info in infos for p in range(info.partitions)]


def _alternatives(names: Sequence[str]) -> str:
    return "|".join(f"(?:{name})" for name in names)


def _attach(
    consumer: Consumer, names: Sequence[str], *, pattern: bool, partitions: Sequence[int] | None
) -> None:
    if pattern:
        joined = _alternatives(names)
        try:
            re.compile(joined)
        except re.error as error:
            raise WrongUsageError(
                f"{' '.join(names)!r} is no regular expression: {error}"
            ) from None
        consumer.subscribe(pattern=joined)
    elif partitions:
        numbers = list(dict.fromkeys(partitions))
        consumer.assign([TopicPartition(name, number) for name in names for number in numbers])
    else:
        consumer.subscribe(names)


def _seek(consumer: Consumer, start: StartAt) -> None:
    """Go to where `--offset` says; earliest and latest are the consumer's own reset."""
    if start.origin in (Origin.EARLIEST, Origin.LATEST):
        return
    if start.origin is Origin.TIME:
        consumer.seek_to_time(start.number)
        return
    assignment = sorted(consumer.assignment())
    begins = consumer.beginning_offsets(assignment)
    ends = consumer.end_offsets(assignment)
    for tp in assignment:
        if start.origin is Origin.FROM_END:
            consumer.seek(tp, max(begins[tp], ends[tp] - start.number))
        elif begins[tp] <= start.number <= ends[tp]:
            consumer.seek(tp, start.number)
        else:
            raise OutOfRangeError(
                f"offset {start.number} is not in {tp}, which goes from {begins[tp]} to "
                f"{ends[tp]}; give one of these, -N, earliest or latest, or another --partition"
            )


def _start(text: str | None, *, from_beginning: bool, exit_at_end: bool) -> StartAt:
    if text is not None:
        if from_beginning:
            raise WrongUsageError("--from-beginning and --offset exclude each other")
        try:
            return parse_start(text)
        except ValueError as error:
            raise WrongUsageError(f"--offset: {error}") from None
    # Beginning at the end and ending there would print nothing, which nobody asks for.
    early = from_beginning or exit_at_end
    return StartAt(origin=Origin.EARLIEST if early else Origin.LATEST)


def _template(text: str, *, null: bytes) -> Render:
    try:
        return compile_format(text, null=null)
    except ValueError as error:
        raise WrongUsageError(f"--format: {error}") from None


def _timestamp_types(log: Log) -> Callable[[str], str]:
    known: dict[str, str] = {}

    def of(topic: str) -> str:
        kind = known.get(topic)
        if kind is None:
            config = log.topic(topic).config
            kind = "logappend" if config.message_timestamp_type == "LogAppendTime" else "create"
            known[topic] = kind
        return kind

    return of
