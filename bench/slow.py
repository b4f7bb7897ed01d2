"""`python -m bench.slow …`: the command line over a storage whose commits take 100 ms, as a far one's may."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from streamlog import client
from streamlog.cli import main
from streamlog.clock import Runtime
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects

COMMIT_SECONDS = 0.1


class SlowObjects:
    """Any storage, with slow commits to topics."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def put_if_absent(self, path: str, data: bytes, *, durable: bool) -> bool:
        """Waits, then does it."""
        if path.startswith("topics/"):
            time.sleep(COMMIT_SECONDS)
        return self._objects.put_if_absent(path, data, durable=durable)


def _open(root: str, options: Mapping[str, object] | None, runtime: Runtime) -> Any:
    return SlowObjects(open_objects(root, options, runtime))


if __name__ == "__main__":
    client.open_objects = _open
    main()
