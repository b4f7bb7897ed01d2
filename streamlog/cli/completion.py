"""Names of topics and groups for the shell's Tab key."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from streamlog.client import Log


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Names of topics that begin with what was typed; none if the log cannot be asked."""
    return _complete(context, incomplete, lambda log: (info.name for info in log.topics()))


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Names of consumer groups that begin with what was typed; none if the log cannot be asked."""
    return _complete(context, incomplete, lambda log: (group.name for group in log.groups()))


def _complete(
    context: typer.Context, incomplete: str, names: Callable[[Log], Iterable[str]]
) -> list[str]:
    """While the shell completes, the options before the command are parsed, but no callback ran."""
    options = context.find_root().params
    root = options.get("root") or os.environ.get("STREAMLOG_ROOT")
    if not root:
        return []
    from streamlog.client import connect

    given = options.get("storage_option") or []
    storage_options = dict(pair.split("=", 1) for pair in given if "=" in pair)
    try:
        with connect(root, storage_options=storage_options or None, create=False) as log:
            return [name for name in names(log) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a Tab key is not the place to hear what is wrong
        return []
