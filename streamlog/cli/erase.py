"""`streamlog erase`: a key's records leave the log and its storage."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from streamlog.cli import output
from streamlog.cli.bar import bar
from streamlog.cli.completion import complete_topic
from streamlog.cli.output import WrongUsageError
from streamlog.cli.session import session_of

_SHOWN = 10


def erase(
    context: typer.Context,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic)
    ],
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", metavar="KEY", help="May be repeated.")
    ] = None,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge",
            help="Delete the replaced files now, not an hour later; queries of other engines that run on "
            "an older version may fail.",
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Erase nothing; tell which files hold the key.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Erase all records of a key, for a legal request; then look whether any file still holds it.

    Exit code 1 while one does: the files that were replaced go with `streamlog maintain` an hour later.
    """
    session = session_of(context, as_json)
    if not key:
        raise WrongUsageError("no key given: say which with --key KEY")
    with session.open() as log:
        eraser = log.eraser(topic, key)
        partitions = log.topic(topic).partitions
        files = records = 0
        if check:
            left = [path for number in range(partitions) for path in eraser.holding(number)]
        else:
            _ask(topic, key, yes)
            with bar("erasing", quiet=session.as_json) as advance:
                found = eraser.run(purge=purge, progress=advance)
            files = sum(item.files for item in found)
            records = sum(item.records for item in found)
            left = [path for item in found for path in item.left]
        left += eraser.staged()
    data = {"topic": topic, "records": records, "files": files, "left": left}
    lines = [] if check else [f"erased {records} records of {topic}, in {files} files"]
    if left:
        lines.append(f"{len(left)} files on storage still hold the key:")
        lines += [f"  {path}" for path in left[:_SHOWN]]
        if len(left) > _SHOWN:
            lines.append(f"  and {len(left) - _SHOWN} more (--json lists all)")
        if not check:
            lines.append(
                "no reader of the log sees them; `streamlog maintain` deletes them from an hour on. Then "
                f"prove it: streamlog erase {topic} --check …"
            )
    else:
        lines.append("no file on storage holds the key")
    output.done("\n".join(lines), data, as_json=session.as_json)
    raise typer.Exit(output.FAILED if left else output.OK)


def _ask(topic: str, keys: list[str], yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise WrongUsageError(
            f"erasing {', '.join(keys)} from {topic} cannot be undone, and there is no terminal to ask at: "
            "add --yes to do it"
        )
    if not typer.confirm(f"Erase all records of {', '.join(keys)} from {topic}?", err=True):
        raise typer.Abort
