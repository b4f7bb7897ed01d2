"""`streamlog retention`, `compact`, `maintain`: the work that keeps a log small and fast.

They run in this process, without a JVM; for more than a machine can do, `jobs/` has the same on Spark.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamlog import display
from streamlog.cli import output
from streamlog.cli.bar import bar
from streamlog.cli.completion import complete_topic
from streamlog.cli.durations import parse_duration
from streamlog.cli.output import WrongUsageError
from streamlog.cli.session import Session, session_of
from streamlog.model import to_datetime

if TYPE_CHECKING:
    from types import FrameType

    from streamlog.client import Log
    from streamlog.compaction.maintainer import Outcome
    from streamlog.compaction.plan import Action
    from streamlog.compaction.round import Round

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC]...", help="Topics; all if none is named.", autocompletion=complete_topic
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def retention(
    context: typer.Context, topics: Names = None, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Remove records that are past retention.ms or retention.bytes."""
    _run(context, topics, ("retain",), "retention", dry_run=dry_run, as_json=as_json)


def compact(
    context: typer.Context, topics: Names = None, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Merge small files into segments, and compact compacted topics by key."""
    _run(context, topics, ("compact", "merge"), "compaction", dry_run=dry_run, as_json=as_json)


def maintain(
    context: typer.Context,
    topics: Names = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Run again and again, such as every 1m."),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write metrics there, in Prometheus' text format."),
    ] = None,
    group_retention: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Delete groups that did nothing for so long."),
    ] = "7d",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Do all that is due: retention, compaction, checkpoints, vacuum, old groups, deleted topics.

    With --every only one loop a root is at work; others stand by and take over when it ends.
    """
    session = session_of(context, as_json)
    try:
        idle_ms = parse_duration(group_retention)
        pause = None if every is None else parse_duration(every) / 1000
    except ValueError as error:
        raise WrongUsageError(str(error)) from None
    if dry_run:
        if pause is not None:
            raise WrongUsageError("--dry-run and --every do not go together")
        _run(context, topics, None, "maintenance", dry_run=True, as_json=as_json)
        return
    names = topics or []
    with session.open() as log:
        for name in names:
            log.topic(name)
        if pause is None:
            code = _report(session, _round(log, names, idle_ms, metrics, quiet=session.as_json))
            raise typer.Exit(code)
        _loop(session, log, names, idle_ms, metrics, pause)


def _run(
    context: typer.Context,
    topics: list[str] | None,
    actions: tuple[Action, ...] | None,
    title: str,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    from streamlog.compaction.maintainer import ALL

    session = session_of(context, as_json)
    with session.open() as log:
        maintainer = log.maintainer()
        if dry_run:
            found = maintainer.plan(topics or [], actions or ALL)
        else:
            with bar(title, quiet=session.as_json) as advance:
                found = maintainer.run(topics or [], actions or ALL, advance)
    plan = "plan of " if dry_run else ""
    if not found and not session.as_json:
        output.note(f"{plan}{title}: nothing is due")
    else:
        rows = [asdict(item) for item in found]
        output.show([display.outcomes_grid(found, plan + title)], rows, as_json=session.as_json)
    raise typer.Exit(output.FAILED if _failed(found) else output.OK)


def _round(
    log: Log, names: Sequence[str], idle_ms: int, metrics: Path | None, *, quiet: bool
) -> Round:
    with bar("maintenance", quiet=quiet) as advance:
        found = log.maintain(names, group_retention_ms=idle_ms, progress=advance)
    if metrics is not None:
        _write_metrics(metrics, found)
    return found


def _report(session: Session, found: Round) -> int:
    if session.as_json:
        output.show_json(found.to_dict())
    else:
        if found.outcomes:
            output.show([display.outcomes_grid(found.outcomes, "maintenance")], [], as_json=False)
        sys.stdout.write(f"{found}\n")
        for message in found.failures:
            output.note(f"error: {message}")
    return output.FAILED if found.failures else output.OK


def _loop(
    session: Session,
    log: Log,
    names: Sequence[str],
    idle_ms: int,
    metrics: Path | None,
    pause: float,
) -> None:
    stop = threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    lease = log.lease(ttl=max(180.0, 3 * pause))
    waiting = False
    try:
        while not stop.is_set():
            seconds = 0.0
            if lease.hold():
                waiting = False
                with lease.kept():
                    found = _round(log, names, idle_ms, metrics, quiet=True)
                seconds = found.seconds
                if session.as_json:
                    output.show_json(found.numbers())
                else:
                    sys.stdout.write(f"{display.moment(to_datetime(found.ended_ms))} {found}\n")
                for message in found.failures:
                    output.note(f"error: {message}")
                sys.stdout.flush()
            elif not waiting:
                waiting = True
                output.note(f"{lease.holder} maintains this root; standing by")
            stop.wait(max(0.0, pause - seconds))
    finally:
        lease.release()


def _write_metrics(path: Path, found: Round) -> None:
    # Replaced as a whole: a scraper never sees half of it.
    fresh = path.with_name(path.name + ".tmp")
    try:
        fresh.write_text(found.to_prometheus())
        fresh.replace(path)
    except OSError as error:
        raise WrongUsageError(f"--metrics {path}: {error.strerror}") from error


def _failed(found: Sequence[Outcome]) -> bool:
    return any(item.status == "failed" for item in found)
