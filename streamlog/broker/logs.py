"""What a broker logs: a line an event on stderr, for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")
# What every record has; anything else was given as `extra` and belongs to the event.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class PlainLines(logging.Formatter):
    """`2026-11-18T12:00:00.123Z INFO cluster: message`."""

    def format(self, record: logging.LogRecord) -> str:
        """One event; a traceback follows on lines of its own."""
        name = record.name.removeprefix("streamlog.").removeprefix("broker.")
        text = f"{_moment(record)} {record.levelname} {name}: {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class JsonLines(logging.Formatter):
    """One JSON object a line, whatever the message holds."""

    def format(self, record: logging.LogRecord) -> str:
        """One event."""
        body: dict[str, object] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        body |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        return json.dumps(body, ensure_ascii=False, default=str)


def set_up(form: str, level: str, stream: TextIO | None = None) -> None:
    """All that this process logs goes to `stream` from here on, and nowhere twice."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    own = logging.getLogger("streamlog")
    for other in list(own.handlers):
        own.removeHandler(other)
    root = logging.getLogger()
    for other in list(root.handlers):
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    own.setLevel(level.upper())


def _moment(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03d}Z"
