"""Maintenance on a cluster: Spark reads, compares keys and writes files; the driver only commits.

Nothing but the names and statistics of files comes to the driver. Tasks reach the storage by streamlog's
own road, with the storage options of the log, so no setting of Hadoop is needed. A task that Spark runs
twice writes two files, of which one is committed; the other is an orphan.

Example:

    log = streamlog.connect(root)
    log.maintainer(SparkEngine(spark, log)).run()
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from streamlog.clock import Runtime
from streamlog.compaction import rewrite
from streamlog.compaction.engine import KeyJob
from streamlog.compaction.rewrite import Failure, Job, Rewritten
from streamlog.log.files import FileMissingError
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamlog.client import Log

Work = Callable[[Objects, int], Iterator[pa.RecordBatch]]


class SparkEngine:
    """Runs on the executors of a session, classic or Connect."""

    def __init__(self, spark: SparkSession, log: Log) -> None:
        self._spark = spark
        self._root = log.root
        self._options = log.storage_options

    def merge(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Rewritten | Failure]]:
        """A task a job."""

        def work(objects: Objects, index: int) -> Iterator[pa.RecordBatch]:
            yield _packed(index, rewrite.try_merge(objects, Runtime().ids, jobs[index]))

        frame = self._spark.range(0, len(jobs), 1, len(jobs)).mapInArrow(
            _each(self._root, self._options, work), "number LONG, result BINARY"
        )
        for row in frame.collect():
            yield row.number, pickle.loads(row.result)

    def compact(self, job: KeyJob) -> list[Rewritten]:
        """One shuffle by key finds each key's last record; another brings the survivors to their files."""
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

        root, options, jobs, rule = self._root, self._options, job.jobs, job.rule

        def keys(objects: Objects, index: int) -> Iterator[pa.RecordBatch]:
            part = jobs[index]
            for rows in rewrite.last_offsets(objects, part.table, part.files, rule.start):
                group = pa.array(np.full(rows.num_rows, index, np.int64))
                yield from rows.append_column("number", group).to_batches()

        def thin(survivors: pa.Table) -> pa.Table:
            index = int(survivors["number"][0].as_py())
            offsets = np.sort(survivors["offset"].to_numpy())
            objects = open_objects(root, options, Runtime())
            try:
                result: Rewritten | Failure = rewrite.thin(
                    objects, Runtime().ids, jobs[index], offsets, rule
                )
            except FileMissingError as error:
                result = Failure(str(error), missing=True)
            return pa.Table.from_batches([_packed(index, result)])

        groups = self._spark.range(0, len(jobs), 1, len(jobs))
        last = (
            groups.mapInArrow(_each(root, options, keys), "key BINARY, offset LONG, number LONG")
            .groupBy("key")
            .agg(F.max("offset").alias("offset"), F.max_by("number", "offset").alias("number"))
            .select("number", "offset")
        )
        # A group whose records all go has no survivor; it must be looked at all the same.
        marks = groups.select(F.col("id").alias("number"), F.lit(-1).cast("long").alias("offset"))
        found = (
            last.unionByName(marks)
            .groupBy("number")
            .applyInArrow(thin, "number LONG, result BINARY")
        )
        results = [pickle.loads(row.result) for row in found.collect()]
        for result in results:
            if isinstance(result, Failure):
                raise FileMissingError(result.why)
        return [result for result in results if isinstance(result, Rewritten)]


def _packed(index: int, result: Rewritten | Failure) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([index], pa.int64()), pa.array([pickle.dumps(result)], pa.binary())],
        names=["number", "result"],
    )


def _each(
    root: str, options: Mapping[str, str], work: Work
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """In a task: the work for each number that the task was given."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        objects = open_objects(root, options, Runtime())
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from work(objects, index)

    return run
