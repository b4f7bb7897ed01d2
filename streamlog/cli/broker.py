"""`streamlog broker`: serves the topics of a root to Kafka's clients."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from streamlog.cli.output import WrongUsageError
from streamlog.cli.session import key_values, session_of
from streamlog.errors import InvalidRequestError

_NEEDED = ("kio", "crc32c", "cramjam", "prometheus_client")


def broker(
    context: typer.Context,
    *,
    root: Annotated[
        str | None,
        typer.Option(metavar="PATH|URL", help="The root, as before the command.", hidden=True),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to listen (127.0.0.1:9092); port 0 takes a free one.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="What clients are told to connect to, if it is another."
        ),
    ] = None,
    rack: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The zone of this broker; clients in it prefer it."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve /metrics and /healthz there."),
    ] = None,
    maintain: Annotated[
        bool, typer.Option("--maintain", help="Maintain the root while this broker is controller.")
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow an address beyond loopback without TLS and SASL."),
    ] = False,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings in TOML, one a line.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--setting",
            "-X",
            metavar="NAME=VALUE",
            help="Any other setting, such as num_partitions=4; may be repeated.",
        ),
    ] = None,
    log_format: Annotated[
        str, typer.Option(metavar="plain|json", help="How events are logged to stderr.")
    ] = "plain",
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
    ] = "info",
) -> None:
    """Serve the topics of the root to Kafka's clients; start as many as you like, anywhere.

    Settings may also stand in a file (--config) or in the environment (STREAMLOG_BROKER_<NAME>).
    SIGTERM and Ctrl-C drain and end it, a second one ends it at once.
    """
    session = session_of(context, as_json=False)
    session.root = root or session.root
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise InvalidRequestError(
            f"brokers need more packages ({', '.join(missing)}); install them with "
            "pip install 'streamlog[broker]'"
        )
    from streamlog.broker import logs
    from streamlog.broker.options import load_settings
    from streamlog.broker.process import serve

    if log_format not in ("plain", "json"):
        raise WrongUsageError(f"--log-format {log_format!r} is not valid; give plain or json")
    if log_level not in logs.LEVELS:
        raise WrongUsageError(
            f"--log-level {log_level!r} is not valid; give one of {', '.join(logs.LEVELS)}"
        )
    named = {"listen": listen, "advertise": advertise, "rack": rack, "http": http}
    flags: dict[str, object] = dict(key_values(setting or [], "-X"))
    flags |= {name: value for name, value in named.items() if value is not None}
    flags |= {name: True for name, on in (("maintain", maintain), ("insecure", insecure)) if on}
    try:
        settings = load_settings(config, os.environ, flags)
    except InvalidRequestError as error:
        raise WrongUsageError(str(error)) from error
    with session.open() as log:
        logs.set_up(log_format, log_level)
        serve(log, settings)
