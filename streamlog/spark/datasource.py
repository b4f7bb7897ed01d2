"""`format("streamlog")`: what Spark asks for by name, handed to the source or the sink.

Errors of streamlog are raised as they are; Spark shows their message in its own. The sink is imported when
one is asked for: a query that only reads need not wait for it.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from streamlog.errors import InvalidRequestError
from streamlog.spark import source
from streamlog.spark.options import sink_options, source_options


class StreamlogDataSource(DataSource):
    """Topics of streamlog as a source and a sink of Spark, with the columns of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        return "streamlog"

    def schema(self) -> StructType:
        with_headers = str(self.options.get("includeHeaders", "false")).strip().lower() == "true"
        return source.spark_schema(headers=with_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        return source.BatchReader(source_options(self._options(), streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check(schema)
        return source.StreamReader(source_options(self._options(), streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from streamlog.spark import sink

        sink.refuse_overwrite(overwrite)
        return sink.BatchWriter(sink_options(self._options()), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from streamlog.spark import sink

        # Output mode "complete" sets `overwrite`; as in Spark's Kafka sink, its rows are appended.
        return sink.StreamWriter(sink_options(self._options()), schema)

    def _check(self, schema: StructType) -> None:
        wanted = self.schema()
        if [(f.name, f.dataType) for f in schema] != [(f.name, f.dataType) for f in wanted]:
            raise InvalidRequestError(
                f"the columns of format('streamlog') are given: {wanted.simpleString()}; leave .schema() "
                "out, and set includeHeaders=true for headers"
            )

    def _options(self) -> dict[str, Any]:
        return dict(self.options)
