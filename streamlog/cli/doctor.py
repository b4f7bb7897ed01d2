"""`streamlog doctor`: how a root is, and what to run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from streamlog import display
from streamlog.cli import output
from streamlog.cli.bar import bar
from streamlog.cli.completion import complete_topic
from streamlog.cli.session import session_of


def doctor(
    context: typer.Context,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...",
            help="Topics; all if none is named.",
            autocompletion=complete_topic,
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Put back versions that another engine replaced, remove checkpoints that cannot be read. "
            "Stop all clients of the log first.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Examine the log: files, versions, orphans, retention, groups, and the store's promises.

    Exit code 1 if anything is an error.
    """
    session = session_of(context, as_json)
    with session.open() as log:
        repaired = log.doctor().repair(topics or []) if repair else []
        with bar("examining", quiet=session.as_json) as advance:
            found = log.doctor().examine(topics or [], advance)
        found = repaired + found
        if not topics:
            from streamlog.compaction.doctor import Finding

            idle = log.expire_groups(dry_run=True)
            if idle:
                names = ", ".join(idle)
                found.append(
                    Finding(
                        "warning", "groups", f"idle for a week: {names}", "streamlog group expire"
                    )
                )
    output.show(
        [display.findings_grid(found)], [asdict(item) for item in found], as_json=session.as_json
    )
    raise typer.Exit(output.FAILED if any(i.severity == "error" for i in found) else output.OK)
