"""Fuzzes the decoder of requests, led by coverage: `pip install atheris`, then `python fuzz/decode.py`.

Takes libFuzzer's arguments, such as -max_total_time=60. Anything but the two errors of `wire` is a finding,
as are a second for one request and 512 MiB of memory.
"""

from __future__ import annotations

import struct
import sys

import atheris

with atheris.instrument_imports(include=["streamlog.broker"]):
    from streamlog.broker import wire
    from streamlog.broker.apis import APIS

EVERY = [(api, v) for api, s in sorted(APIS.items()) for v in range(s.first, s.last + 1)]


def one_input(data: bytes) -> None:
    """The first byte chooses an API and a version, the rest is the request."""
    if not data:
        return
    api, version = EVERY[data[0] % len(EVERY)]
    try:
        wire.parse_request(struct.pack(">hhi", api, version, 1) + data[1:])
    except (wire.MalformedRequestError, wire.UnsupportedVersionError):
        pass


if __name__ == "__main__":
    atheris.Setup([*sys.argv, "-timeout=1", "-rss_limit_mb=512", "-max_len=4096"], one_input)
    atheris.Fuzz()
