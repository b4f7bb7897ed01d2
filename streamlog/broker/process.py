"""A broker as a process of its own: from the first signal of life to the last.

X1  "listening on HOST:PORT (node N)" is written once requests are served; port 0 is told as the real one.
X2  SIGTERM or SIGINT drains: the broker leaves the others' view, takes no new requests and answers what is
    under way, within `drain_seconds`; the exit code is 0. A second signal ends it at once: nothing that was
    acknowledged is lost, for all that counts is in the root.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys

from streamlog.broker import heap
from streamlog.broker.broker import Broker
from streamlog.broker.listening import cannot_listen
from streamlog.broker.settings import BrokerSettings
from streamlog.client import Log
from streamlog.errors import FencedError

_log = logging.getLogger(__name__)

# A broker makes large numbers of short-lived objects and few cycles: young collections are rare, full ones
# rarer. With the defaults (700, 10, 10) a busy broker spends much of its time looking for cycles in records.
_GC_THRESHOLDS = (50_000, 20, 100)
_TRIM_SECONDS = 60.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(log: Log, settings: BrokerSettings) -> None:
    """Runs a broker until a signal ends it; blocks."""
    heap.few_arenas()
    asyncio.run(_serve(log, settings))


async def _serve(log: Log, settings: BrokerSettings) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            _log.warning("%s again: ending at once", number.name)
            os._exit(128 + number)
        _log.info("%s: draining", number.name)
        stopping.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    broker = Broker(log, settings)
    try:
        try:
            await broker.start()
        except OSError as error:
            raise cannot_listen(error, settings.host, settings.port, "--listen") from error
        _settle()
        me = broker.cluster.me
        where = f"[{settings.host}]" if ":" in settings.host else settings.host
        sys.stdout.write(f"listening on {where}:{broker.server.port} (node {me.node_id})\n")
        sys.stdout.flush()
        _log.info("node %d serves %s", me.node_id, log.root)
        tidying = asyncio.create_task(_tidy())
        await _first(stopping, broker.cluster.lost)
        tidying.cancel()
    finally:
        await broker.stop()
    _log.info("node %d has ended", broker.cluster.me.node_id)
    if broker.cluster.lost.is_set():
        raise FencedError(
            f"another broker took node_id {broker.cluster.me.node_id}, so this one ended; give each broker "
            "its own node_id, or none at all"
        )


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


async def _tidy() -> None:
    """Keeps the heap small, for as long as the broker runs."""
    while True:
        await asyncio.sleep(_TRIM_SECONDS)
        await asyncio.get_running_loop().run_in_executor(None, heap.trim)


def _settle() -> None:
    """What lives now lives until the end: it is never looked at again by the garbage collector."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
