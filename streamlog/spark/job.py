"""The command line of the maintenance jobs in `jobs/`, for spark-submit and Databricks."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

from streamlog import display
from streamlog.client import Log, connect
from streamlog.clock import Runtime
from streamlog.compaction.plan import Action
from streamlog.compaction.round import Round
from streamlog.errors import InvalidRequestError, StreamlogError
from streamlog.spark.maintenance import SparkEngine


def parser(description: str) -> argparse.ArgumentParser:
    """Options that all jobs have."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--root", help="where the log is (default: STREAMLOG_ROOT)")
    options.add_argument(
        "--topic", action="append", default=[], help="a topic; all if none is named"
    )
    options.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of the object store",
    )
    options.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return options


def open_log(chosen: argparse.Namespace) -> Log:
    """The log that the options name."""
    pairs = {}
    for pair in chosen.storage_option:
        name, found, value = pair.partition("=")
        if not found:
            raise InvalidRequestError(f"--storage-option {pair!r} must have the form KEY=VALUE")
        pairs[name] = value
    return connect(chosen.root, storage_options=pairs or None, create=False)


def run(description: str, actions: Sequence[Action], arguments: Sequence[str]) -> int:
    """A job of some actions: prints what was done; 1 if a partition could not be maintained."""
    options = parser(description)
    options.add_argument("--dry-run", action="store_true", help="print the plan and do nothing")
    chosen = options.parse_args(arguments)
    try:
        with open_log(chosen) as log:
            maintainer = log.maintainer(None if chosen.dry_run else _engine(log))
            act = maintainer.plan if chosen.dry_run else maintainer.run
            found = act(chosen.topic, actions)
    except StreamlogError as error:
        return _refuse(error)
    if chosen.json:
        _say(json.dumps([asdict(item) for item in found]))
    elif found:
        title = "plan" if chosen.dry_run else "done"
        _say(display.text_table(display.outcomes_grid(found, title)).rstrip("\n"))
    else:
        _say("nothing is due")
    return int(any(item.status == "failed" for item in found))


def maintain(description: str, arguments: Sequence[str]) -> int:
    """All that is due, once or again and again under the root's lease."""
    options = parser(description)
    options.add_argument("--every", type=float, metavar="SECONDS", help="run again and again")
    chosen = options.parse_args(arguments)
    try:
        with open_log(chosen) as log:
            engine = _engine(log)
            if chosen.every is None:
                found = log.maintain(chosen.topic, engine=engine)
                _say(json.dumps(found.to_dict()) if chosen.json else str(found))
                _complain(found)
                return int(bool(found.failures))
            # Ended by a scheduler: the lease is given back on the way out.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            lease = log.lease(ttl=max(180.0, 3 * chosen.every))
            clock = Runtime().clock
            try:
                while True:
                    if lease.hold():
                        with lease.kept():
                            found = log.maintain(chosen.topic, engine=engine)
                        _say(json.dumps(found.numbers()) if chosen.json else str(found))
                        _complain(found)
                    clock.sleep(chosen.every)
            finally:
                lease.release()
    except StreamlogError as error:
        return _refuse(error)


def _engine(log: Log) -> SparkEngine:
    from pyspark.sql import SparkSession

    return SparkEngine(SparkSession.builder.appName("streamlog-maintenance").getOrCreate(), log)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _complain(found: Round) -> None:
    for message in found.failures:
        sys.stderr.write(f"error: {message}\n")


def _refuse(error: StreamlogError) -> int:
    sys.stderr.write(f"error: {error}\n")
    return 1
