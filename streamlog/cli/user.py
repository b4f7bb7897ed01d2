"""`streamlog user …`: add, list, passwd, delete. A password is typed unseen or piped in, no argument."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streamlog import display
from streamlog.cli import output
from streamlog.cli.output import BadInputError, WrongUsageError
from streamlog.cli.session import session_of

if TYPE_CHECKING:
    from streamlog.broker.users import User, Users
    from streamlog.client import Log

user_app = typer.Typer(
    name="user",
    help="Add, list and delete the users who may log in to brokers.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FromStdin = Annotated[
    bool,
    typer.Option("--password-stdin", help="Read the password from stdin: its first line."),
]


@user_app.command()
def add(
    context: typer.Context, name: Name, password_stdin: FromStdin = False, as_json: Json = False
) -> None:
    """Add a user; the password is asked for, and kept only as SCRAM verifiers."""
    session = session_of(context, as_json)
    _need_password_source(password_stdin)
    # A root may be made for its users before it has a topic.
    with session.open(create=True) as log:
        users = _users(log)
        if name in users.read():
            # Better told before a password is typed than after.
            raise BadInputError(
                f"user {name!r} exists already; streamlog user passwd changes its password"
            )
        user = users.add(name, _password(name, password_stdin))
    output.done(f"added user {user.name}", _json(user), as_json=session.as_json)


@user_app.command()
def passwd(
    context: typer.Context, name: Name, password_stdin: FromStdin = False, as_json: Json = False
) -> None:
    """Change a user's password; connections that logged in with the old one end within seconds."""
    session = session_of(context, as_json)
    _need_password_source(password_stdin)
    with session.open() as log:
        users = _known(log, name)
        user = users.set_password(name, _password(name, password_stdin))
    output.done(f"changed the password of user {user.name}", _json(user), as_json=session.as_json)


@user_app.command(name="list")
def list_users(
    context: typer.Context,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print names only, one a line.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the users: how they can log in, and since when."""
    session = session_of(context, as_json)
    with session.open() as log:
        users = list(_users(log).read().values())
    if quiet and not session.as_json:
        sys.stdout.write("".join(f"{user.name}\n" for user in users))
        return
    if not users and not session.as_json and sys.stdout.isatty():
        output.note("no users yet: streamlog user add NAME makes one")
        return
    output.show(
        [display.users_grid(users)], [_json(user) for user in users], as_json=session.as_json
    )


@user_app.command()
def delete(
    context: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a user; its connections end within seconds. Its access rules stay."""
    session = session_of(context, as_json)
    with session.open() as log:
        users = _known(log, name)
        if not yes:
            if not sys.stdin.isatty():
                raise WrongUsageError(
                    f"deleting user {name} ends its connections, and there is no terminal to ask at: "
                    "add --yes to do it"
                )
            if not typer.confirm(f"Delete user {name}?", err=True):
                raise typer.Abort
        users.delete(name)
    output.done(f"deleted user {name}", {"name": name, "deleted": True}, as_json=session.as_json)


def _users(log: Log) -> Users:
    from streamlog.broker.users import Users
    from streamlog.clock import Runtime

    return Users(log.admin(), Runtime())


def _known(log: Log, name: str) -> Users:
    """The users, one of which must be this one: a wrong name is told before a question."""
    from streamlog.broker.users import not_found

    users = _users(log)
    if name not in users.read():
        raise not_found(name)
    return users


def _need_password_source(password_stdin: bool) -> None:
    if not password_stdin and not sys.stdin.isatty():
        raise WrongUsageError(
            "there is no terminal to ask for the password at: pipe it in and add --password-stdin"
        )


def _password(name: str, from_stdin: bool) -> str:
    if not from_stdin:
        text: str = typer.prompt(
            f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True
        )
        return text
    line = sys.stdin.buffer.readline()
    try:
        password = line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadInputError("the password on stdin is not UTF-8") from None
    if not password:
        raise BadInputError("there is no password on stdin: its first line is empty")
    return password


def _json(user: User) -> dict[str, object]:
    return {
        "name": user.name,
        "mechanisms": ["PLAIN", *user.mechanisms],
        "created_at": user.created_at.isoformat(),
        "changed_at": user.changed_at.isoformat(),
    }
