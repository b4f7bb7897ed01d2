"""The program: global options, the commands, and what becomes of errors.

Exit codes: 0 done (a reader who closed the pipe early is done too), 1 an error, 2 a wrong command
line, 130 Ctrl-C. An error is one line on stderr; STREAMLOG_DEBUG=1 adds the traceback.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from streamlog.cli import output
from streamlog.cli.acl import acl_app
from streamlog.cli.broker import broker
from streamlog.cli.consume import consume
from streamlog.cli.doctor import doctor
from streamlog.cli.erase import erase
from streamlog.cli.group import group_app
from streamlog.cli.maintenance import compact, maintain, retention
from streamlog.cli.produce import produce
from streamlog.cli.session import Session, key_values
from streamlog.cli.topic import topic_app
from streamlog.cli.user import user_app
from streamlog.errors import StreamlogError

# Typer's own long options of the group below, which people tend to write after the command.
_GLOBAL_OPTIONS = frozenset({"--root", "--storage-option", "--version"})

app = typer.Typer(
    name="streamlog",
    help="Kafka's topics on Delta tables, without a server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Panels are for eyes; in a pipe help is plain text.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(topic_app, name="topic")
app.add_typer(group_app, name="group")
app.add_typer(user_app, name="user")
app.add_typer(acl_app, name="acl")
app.command(name="produce")(produce)
app.command(name="consume")(consume)
app.command(name="retention")(retention)
app.command(name="compact")(compact)
app.command(name="maintain")(maintain)
app.command(name="erase")(erase)
app.command(name="doctor")(doctor)
app.command(name="broker")(broker)


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from streamlog.version import read_version

    sys.stdout.write(f"streamlog {read_version()}\n")
    raise typer.Exit


@app.callback()
def streamlog(
    context: typer.Context,
    root: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|URL",
            envvar="STREAMLOG_ROOT",
            help="Where the log is: a directory, or s3://, gs://, az://, abfss://.",
        ),
    ] = None,
    storage_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of the object store; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Kafka's topics on Delta tables, without a server."""
    session: Session = context.obj
    session.root = root
    session.storage_options = key_values(storage_option or [], "--storage-option")
    session.as_json = as_json


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; never raises, never prints a traceback unasked."""
    session = Session()
    if not os.environ.get("STREAMLOG_DEBUG"):
        logging.getLogger("streamlog").addHandler(output.Warnings(logging.WARNING))
    try:
        code = _invoke(arguments, session)
        sys.stdout.flush()
    except BrokenPipeError:
        output.abandon_stdout()
        return output.OK
    except Exception as error:  # noqa: BLE001 - the outermost border: every error becomes one line
        return _report(error, as_json=session.as_json or "--json" in arguments)
    return code


def _invoke(arguments: Sequence[str], session: Session) -> int:
    try:
        code = app(args=list(arguments), prog_name="streamlog", standalone_mode=False, obj=session)
    except SystemExit as end:
        cause = end.__context__
        if isinstance(cause, OSError) and cause.errno == errno.EPIPE:
            # Typer turns a closed pipe into exit code 1.
            raise BrokenPipeError from cause
        # Shell completion ends this way.
        return end.code if isinstance(end.code, int) else output.OK
    return code if isinstance(code, int) else output.OK


def _report(error: Exception, *, as_json: bool) -> int:
    if os.environ.get("STREAMLOG_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, output.WrongUsageError):
        code, message = output.USAGE, str(error)
    elif isinstance(error, (StreamlogError, output.BadInputError)):
        code, message = output.FAILED, str(error)
    elif isinstance(error, typer.Abort):
        # Typer's prompt makes the same of Ctrl-C and of Ctrl-D.
        by_key = isinstance(error.__context__, KeyboardInterrupt)
        code = output.INTERRUPTED if by_key else output.FAILED
        message = "aborted, nothing was changed"
    elif isinstance(error, OSError) and error.filename is None:
        # Storage translates its own, and files that were named have a name: this is stdout's.
        output.abandon_stdout()
        code, message = output.FAILED, f"cannot write to stdout: {error.strerror or error}"
    elif type(error).__name__ == "NoArgsIsHelpError":
        output.note(str(error))
        return output.USAGE
    elif hasattr(error, "format_message"):
        # Typer's usage errors, whose classes are not public.
        code, message = output.USAGE, _usage_message(error)
    else:
        code = output.FAILED
        message = f"unexpected {type(error).__name__}: {error}"
        if not os.environ.get("STREAMLOG_DEBUG"):
            message += " (this is a bug; STREAMLOG_DEBUG=1 shows the traceback)"
    output.problem(error, message, as_json=as_json)
    return code


def _usage_message(error: Exception) -> str:
    format_message = getattr(error, "format_message", error.__str__)
    message = str(format_message())
    if getattr(error, "option_name", None) in _GLOBAL_OPTIONS:
        message += " here; it goes before the command, as in: streamlog --root ./data topic list"
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "streamlog")
    return f"{message}\nTry '{path} --help'."
