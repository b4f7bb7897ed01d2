"""Where the heavy part of maintenance runs: here, in this process, or by Spark on a cluster.

An engine reads and writes files; it never commits. `LocalEngine` needs memory for the distinct keys of one
partition (about 100 bytes a key) and is enough for what one machine produces; Spark's shuffles.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from streamlog.clock import Runtime
from streamlog.compaction import rewrite
from streamlog.compaction.plan import clusters, total_bytes
from streamlog.compaction.rewrite import Failure, Job, Rewritten, Thinning
from streamlog.log.commit import Segment
from streamlog.storage.objects import Objects

# Over a network most of the time is waiting. On a disk it is work, and a core is left for who appends.
_WORKERS = 4
_LOCAL_WORKERS = max(1, min(_WORKERS, (os.cpu_count() or 2) - 1))
# Accumulated keys are merged when there are so many beyond those that are distinct.
_SLACK_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class KeyJob:
    """The pass over one partition of a compacted topic: groups of files, side by side."""

    jobs: tuple[Job, ...]
    rule: Thinning


class Engine(Protocol):
    """Does the work of plans."""

    def merge(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Rewritten | Failure]]:
        """Results as they come, each with the index of its job."""

    def compact(self, job: KeyJob) -> list[Rewritten]:
        """Keeps the last record of each key over all files of a partition."""


def key_jobs(
    table: str, files: Sequence[Segment], compression: str, segment_bytes: int
) -> tuple[Job, ...]:
    """A partition's files in groups of about the segment size; files that overlap stay together."""
    groups: list[list[Segment]] = []
    size = 0
    for part in clusters(files):
        if not groups or size >= segment_bytes:
            groups.append([])
            size = 0
        groups[-1] += part
        size += total_bytes(part)
    return tuple(Job(table, tuple(group), compression, segment_bytes) for group in groups)


class LocalEngine:
    """In this process, on a few threads (Arrow leaves Python's lock while it decodes and encodes)."""

    def __init__(self, objects: Objects, runtime: Runtime, workers: int | None = None) -> None:
        self._objects = objects
        self._runtime = runtime
        self._workers = workers or (_LOCAL_WORKERS if objects.local else _WORKERS)

    def merge(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Rewritten | Failure]]:
        """Results as they come."""
        with ThreadPoolExecutor(self._workers, "streamlog-merge") as pool:
            pending = {
                pool.submit(rewrite.try_merge, self._objects, self._runtime.ids, job): index
                for index, job in enumerate(jobs)
            }
            for future in as_completed(pending):
                yield pending[future], future.result()

    def compact(self, job: KeyJob) -> list[Rewritten]:
        """First all keys, then the files a few at a time."""
        survivors = self._survivors(job)
        with ThreadPoolExecutor(self._workers, "streamlog-compact") as pool:
            return list(
                pool.map(
                    lambda part: rewrite.thin(
                        self._objects, self._runtime.ids, part, survivors, job.rule
                    ),
                    job.jobs,
                )
            )

    def _survivors(self, job: KeyJob) -> rewrite.Offsets:
        parts: list[pa.Table] = []
        rows = distinct = 0
        for part in job.jobs:
            found = rewrite.last_offsets(self._objects, part.table, part.files, job.rule.start)
            for keys in found:
                parts.append(keys)
                rows += keys.num_rows
                if rows > 2 * distinct + _SLACK_ROWS:
                    parts = [rewrite.newest(pa.concat_tables(parts))]
                    rows = distinct = parts[0].num_rows
        if not parts:
            return np.empty(0, np.int64)
        offsets = rewrite.newest(pa.concat_tables(parts))["offset"].to_numpy()
        return np.sort(offsets)
