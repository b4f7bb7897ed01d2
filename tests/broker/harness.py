"""Brokers for tests: in this process, each with an event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import streamlog
from streamlog.broker.broker import Broker
from streamlog.broker.settings import BrokerSettings


class RunningBroker:
    """A broker at work; `address` is what clients take for `bootstrap.servers`."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self.loop = loop

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.broker.server.port}"


@contextmanager
def running_broker(root: Path | str, **settings: Any) -> Iterator[RunningBroker]:
    """A broker over `root` on a free port of loopback, until the block ends."""
    log = streamlog.connect(root)
    broker = Broker(log, BrokerSettings(**{"port": 0, **settings}))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="test-broker", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(broker.start(), loop).result(30)
        yield RunningBroker(broker, loop)
    finally:
        asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
        log.close()
