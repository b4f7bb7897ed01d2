"""`-X KEY=VALUE`: any setting of a consumer or a producer, as kcat and librdkafka take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field
from typing import Annotated, Any

import typer

from streamlog.cli.output import WrongUsageError
from streamlog.cli.session import key_values

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--setting",
        "-X",
        metavar="KEY=VALUE",
        help="Any other setting by its name in Python or in Kafka, such as "
        "session.timeout.ms=6000; may be repeated.",
    ),
]


def parse_settings(
    pairs: Sequence[str], fields: Sequence[Field[Any]], options: Mapping[str, str]
) -> dict[str, Any]:
    """Keyword arguments for a client; `options` are settings that have an option of their own.

    An unknown name and a value of the wrong kind pass through: the client says what is allowed.
    """
    kinds = {field.name: str(field.type) for field in fields}
    found: dict[str, Any] = {}
    for key, value in key_values(pairs, "-X").items():
        name = key.replace(".", "_").replace("-", "_")
        if name in options:
            raise WrongUsageError(f"-X {key}: use {options[name]} instead")
        found[name] = _typed(value, kinds.get(name, "str"))
    return found


def _typed(text: str, kind: str) -> object:
    if "bool" in kind:
        return {"true": True, "false": False}.get(text.lower(), text)
    for number, convert in (("int", int), ("float", float)):
        if number in kind:
            try:
                return convert(text)
            except ValueError:
                continue
    if kind == "Any" and "," in text:
        return [part.strip() for part in text.split(",")]
    return text
