"""The decoder against damaged requests of every API and version, for a bounded time.

`fuzz/decode.py` does the same for as long as one likes, led by coverage.
"""

from __future__ import annotations

import resource
import time
from random import Random

from kio.index import load_request_schema

from streamlog.broker import wire
from tests.broker.messages import EVERY, request_frame, sample

SEED = 20_261_118
ROUNDS = 25
# Counts and lengths that claim thousands of millions, in all of Kafka's forms, and numbers that never end.
EXTREMES = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x7f\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\x80" * 10,
    b"\x00" * 4,
    b"\x7f" * 8,
)


def damaged(frame: bytes, rng: Random) -> bytes:
    """The API and the version stay, so that the decoder is reached."""
    head, body = frame[:4], bytearray(frame[4:])
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(6):
            case 0 if at < len(body):
                body[at] ^= 1 << rng.randrange(8)
            case 1:
                extreme = rng.choice(EXTREMES)
                body[at : at + len(extreme)] = extreme
            case 2:
                del body[at:]
            case 3:
                body[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                body[at:at] = body[at : at + rng.randrange(1, 40)]
            case _:
                body[at:at] = rng.choice(EXTREMES)
    return head + bytes(body)


def test_damaged_requests_are_refused_at_once_and_cost_no_memory() -> None:
    rng = Random(SEED)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    refused = 0
    for api, version in EVERY:
        schema = load_request_schema(api, version)
        frame = request_frame(api, version, sample(schema, rng, full=True))
        for _ in range(ROUNDS):
            try:
                wire.parse_request(damaged(frame, rng))
            except (wire.MalformedRequestError, wire.UnsupportedVersionError):
                refused += 1
    tried = len(EVERY) * ROUNDS
    assert tried * 0.2 < refused < tried
    # Processor time, not the clock: a loaded machine is no fault of the decoder's. 0.2 ms each is usual.
    assert time.process_time() - started < 60
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 << 10, f"{grown} KiB more"
