"""`streamlog produce`: records from stdin or a file into a topic."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from streamlog.cli import inputs, output
from streamlog.cli.completion import complete_topic
from streamlog.cli.formats import unescape
from streamlog.cli.lines import LineTooLongError, read_all, read_lines
from streamlog.cli.output import BadInputError, WrongUsageError
from streamlog.cli.progress import Progress
from streamlog.cli.session import session_of
from streamlog.cli.settings import Settings, parse_settings
from streamlog.clock import SystemClock

if TYPE_CHECKING:
    from streamlog.cli.feed import Feed, Pacer
    from streamlog.cli.session import Session

T = TypeVar("T")
Read = Callable[[int], bytes]

# A JSON line may be longer than its record: "\u0001" has six bytes for one, base64 four for three.
_JSON_GROWTH = 6
_JSON_FRAME = 65_536

# Settings of a producer that have an option of their own here.
_OPTIONS = {
    "acks": "--acks",
    "compression": "--compression",
    "linger_ms": "--linger-ms",
    "partitioner": "--partition or a key",
    "producer_id": "--producer-id",
}


class Format(StrEnum):
    """What the input is made of."""

    LINES = "lines"
    JSON = "json"
    RAW = "raw"


class Acks(StrEnum):
    """When a record counts as sent."""

    NONE = "0"
    COMMITTED = "1"
    ALL = "all"


class Compression(StrEnum):
    """How record data is compressed."""

    NONE = "none"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def produce(
    context: typer.Context,
    *,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic)
    ],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Input; stdin if absent or '-'.")
    ] = None,
    format: Annotated[
        Format,
        typer.Option(
            "--format",
            "-f",
            help="lines: a record a line; json: an object a line with key, value, headers, "
            "partition, timestamp; raw: all of the input is one record.",
        ),
    ] = Format.LINES,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="Lines are KEY TEXT VALUE; \\t is a tab."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="TEXT", help="Key of every record.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="Header of every record; repeatable."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="P", help="Write to this partition only."),
    ] = None,
    acks: Annotated[
        Acks,
        typer.Option(help="0: do not wait; 1: committed and visible; all: durable as well."),
    ] = Acks.ALL,
    compression: Annotated[
        Compression | None,
        typer.Option("--compression", "-z", help="Instead of the topic's compression.type."),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N[/s]", help="At most so many records a second.")
    ] = None,
    producer_id: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Stable identity; a later holder fences this one."),
    ] = None,
    linger_ms: Annotated[
        float | None,
        typer.Option(metavar="MS", min=0, help="How long a record may wait for company."),
    ] = None,
    setting: Settings = None,
    null: Annotated[
        bool, typer.Option("--null", "-Z", help="Send an empty value as null (a tombstone).")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write records from stdin or a file to a topic.

    A line that cannot be sent ends the command; records before it stay, the error says how many.
    """
    session = session_of(context, as_json)
    separator = _separator(key_separator, format, key)
    headers = [_checked(inputs.parse_header, text, "--header") for text in header or []]
    fixed_key = None if key is None else key.encode("utf-8", "surrogateescape")
    settings: dict[str, Any] = {"acks": acks.value}
    if compression is not None:
        settings["compression"] = compression.value
    if producer_id is not None:
        settings["producer_id"] = producer_id
    if linger_ms is not None:
        settings["linger_ms"] = linger_ms
    if acks is not Acks.NONE and not os.environ.get("STREAMLOG_DEBUG"):
        # What became of a record is told by its acknowledgement; once is enough.
        logging.getLogger("streamlog.producer").setLevel(logging.CRITICAL)
    clock = SystemClock()
    pace = None if rate is None else _checked(_rate, rate, "--rate")

    with _input(file) as descriptor, session.open() as log:
        from streamlog.cli.feed import Feed, Pacer
        from streamlog.producer.settings import ProducerSettings

        fields = dataclasses.fields(ProducerSettings)
        settings |= parse_settings(setting or [], fields, _OPTIONS)
        read = _reader(descriptor)
        limit = int(log.topic(topic).config.max_message_bytes)
        if os.isatty(descriptor) and sys.stderr.isatty() and not quiet:
            output.note("a record a line; Ctrl-D ends")
        started = clock.monotonic()
        interrupted = False
        with log.producer(**settings) as producer:
            pacer: Pacer | None = None if pace is None else Pacer(pace, clock)
            feed = Feed(producer, topic, headers=headers, partition=partition, pacer=pacer)
            try:
                with Progress(descriptor, quiet=quiet) as progress:
                    if format is Format.RAW:
                        _send_raw(feed, read, limit, fixed_key, empty_is_null=null)
                    elif format is Format.JSON:
                        parser = inputs.json_parser(key=fixed_key)
                        most = limit * _JSON_GROWTH + _JSON_FRAME
                        _send_lines(feed, read, most, parser, progress, limit)
                    else:
                        parser = inputs.line_parser(
                            key=fixed_key, separator=separator, empty_is_null=null
                        )
                        most = limit + len(separator or b"")
                        _send_lines(feed, read, most, parser, progress, limit)
                feed.finish()
            except KeyboardInterrupt:
                # What was read is still sent, so that the summary is the truth.
                interrupted = True
                feed.finish()
    seconds = clock.monotonic() - started
    if not quiet:
        _summary(session, feed, seconds, acks)
    if interrupted:
        raise typer.Exit(output.INTERRUPTED)


def _send_lines(
    feed: Feed,
    read: Read,
    longest: int,
    parser: inputs.Parser,
    progress: Progress,
    limit: int,
) -> None:
    number = taken = 0
    try:
        for lines in read_lines(read, longest):
            for line in lines:
                number += 1
                taken += len(line) + 1
                try:
                    record = parser(line)
                except ValueError as error:
                    feed.refuse(number, str(error))
                if record is not None:
                    feed.send(number, record)
                # At a given rate one chunk may take minutes.
                if feed.paced:
                    progress.update(bytes_read=taken, records=number)
            feed.settle()
            progress.update(bytes_read=taken, records=number)
    except LineTooLongError as error:
        feed.refuse(
            error.number,
            f"longer than {longest} bytes, and the topic takes records up to "
            f"max.message.bytes={limit}; raise it with: topic alter TOPIC --config "
            "max.message.bytes=N",
        )


def _send_raw(
    feed: Feed, read: Read, limit: int, key: bytes | None, *, empty_is_null: bool
) -> None:
    value = read_all(read, limit)
    if value is None:
        raise BadInputError(
            f"the input is longer than {limit} bytes, the topic's max.message.bytes; raise it with "
            "topic alter TOPIC --config max.message.bytes=N, or send lines (--format lines)"
        )
    feed.send(1, inputs.Outgoing(key, None if empty_is_null and not value else value))


def _summary(session: Session, feed: Feed, seconds: float, acks: Acks) -> None:
    rate = feed.acknowledged / seconds if seconds > 0 else 0.0
    if session.as_json:
        output.show_json(
            {"records": feed.acknowledged, "bytes": feed.bytes, "seconds": round(seconds, 3)}
        )
        return
    noun = "record" if feed.acknowledged == 1 else "records"
    unsure = ", unconfirmed (acks=0)" if acks is Acks.NONE else ""
    output.note(
        f"{feed.acknowledged} {noun}, {feed.bytes} bytes in {seconds:.2f} s "
        f"({rate:.0f} records/s){unsure}"
    )


def _reader(descriptor: int) -> Read:
    """Reads what there is, at most so many bytes; waits only if there is nothing."""

    def read(count: int) -> bytes:
        try:
            return os.read(descriptor, count)
        except OSError as error:
            raise BadInputError(f"cannot read the input: {error.strerror}") from error

    return read


@contextmanager
def _input(file: Path | None) -> Iterator[int]:
    if file is None or str(file) == "-":
        yield sys.stdin.fileno()
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError as error:
        raise BadInputError(f"cannot read {file}: {error.strerror}") from None
    try:
        if file.is_dir():
            raise BadInputError(f"cannot read {file}: it is a directory")
        yield descriptor
    finally:
        os.close(descriptor)


def _separator(text: str | None, format: Format, key: str | None) -> bytes | None:
    if text is None:
        return None
    if format is not Format.LINES:
        raise WrongUsageError(f"--key-separator goes with --format lines, not {format.value}")
    if key is not None:
        raise WrongUsageError("--key and --key-separator exclude each other")
    separator = _checked(unescape, text, "--key-separator")
    if not separator or b"\n" in separator:
        raise WrongUsageError("--key-separator must not be empty nor hold a newline")
    return separator


def _rate(text: str) -> float:
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise ValueError(f"{text!r} is no rate: give records a second above 0, such as 500/s")
    return rate


def _checked(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise WrongUsageError(f"{option}: {error}") from None
