"""What the global options say: which log, and how to print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamlog.cli.output import WrongUsageError

if TYPE_CHECKING:
    import typer

    from streamlog.client import Log


@dataclass(slots=True, kw_only=True)
class Session:
    """One run of the program. `as_json` is True if `--json` stood before or after the command."""

    root: str | None = None
    storage_options: dict[str, str] = field(default_factory=dict)
    as_json: bool = False

    def open(self, *, create: bool = False) -> Log:
        """The log at `--root`. Only making a topic makes a root: a typing error should not."""
        if not self.root:
            raise WrongUsageError(
                "no root given: put --root PATH_OR_URL before the command "
                "(streamlog --root ./data topic list) or set STREAMLOG_ROOT"
            )
        # Here and not above: the client loads pyarrow, which `--help` has no use for.
        from streamlog.client import connect

        return connect(self.root, storage_options=self.storage_options or None, create=create)


def session_of(context: typer.Context, as_json: bool) -> Session:
    """The run's session; `--json` may stand after the command as well."""
    session: Session = context.obj
    session.as_json = session.as_json or as_json
    return session


def key_values(pairs: Sequence[str], option: str) -> dict[str, str]:
    """The mapping of repeated KEY=VALUE options; the last of a key counts.

    >>> key_values(["a=1", "b=x=y"], "--config")
    {'a': '1', 'b': 'x=y'}
    """
    mapping: dict[str, str] = {}
    for pair in pairs:
        key, found, value = pair.partition("=")
        if not found or not key.strip():
            raise WrongUsageError(f"{option} {pair!r} must have the form KEY=VALUE")
        mapping[key.strip()] = value.strip()
    return mapping
