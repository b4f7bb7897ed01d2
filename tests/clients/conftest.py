"""One broker for the tests of a file, in this process, and a note of all that clients asked it for.

With `STREAMLOG_SEEN` set to a file, the APIs and versions that each client used are written there as a
table: that of docs/brokers-clients.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streamlog
from streamlog.broker import apis, records, server
from streamlog.broker.call import Call
from tests.broker.harness import RunningBroker, running_broker

NAMES = {value: name for name, value in vars(apis).items() if isinstance(value, int)}


class Noted:
    """What reached the broker: codecs of batches, and versions by client and API."""

    def __init__(self) -> None:
        self.codecs: set[int] = set()
        self.versions: dict[str, dict[int, set[int]]] = {}

    def call(self, call: Call) -> None:
        client = call.peer.client_software or call.client_id
        self.versions.setdefault(client, {}).setdefault(call.api, set()).add(call.version)

    def lines(self) -> list[str]:
        return [
            f"{client}\t{NAMES[api]}\t{','.join(map(str, sorted(versions)))}"
            for client, found in sorted(self.versions.items())
            for api, versions in sorted(found.items())
        ]


@pytest.fixture(scope="session")
def noted() -> Iterator[Noted]:
    noted = Noted()
    decompress, handlers = records.decompress, server.HANDLERS

    def noting(codec: int, data: Any, limit: int) -> Any:
        noted.codecs.add(codec)
        return decompress(codec, data, limit)

    def wrapped(handler: Any) -> Any:
        def handle(call: Call) -> Any:
            noted.call(call)
            return handler(call)

        return handle

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "decompress", noting)
        patch.setattr(server, "HANDLERS", {api: wrapped(each) for api, each in handlers.items()})
        yield noted
    if target := os.environ.get("STREAMLOG_SEEN"):
        Path(target).write_text("".join(f"{line}\n" for line in noted.lines()))


@pytest.fixture(scope="module")
def broker(noted: Noted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    root = tmp_path_factory.mktemp("clients") / "root"
    with running_broker(root, num_partitions=3) as broker:
        yield broker


@pytest.fixture(scope="module")
def log(broker: RunningBroker) -> Iterator[streamlog.Log]:
    """The same root, without the broker."""
    with streamlog.connect(broker.broker.log.root) as log:
        yield log
