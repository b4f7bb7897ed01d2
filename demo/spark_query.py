"""Reads a topic with SQL in Spark: native Delta, no copy, no streamlog code between files and query."""

import sys

import streamlog
from streamlog.spark import register_tables, session

spark = session("demo", "local[2]", {"spark.ui.showConsoleProgress": "false"})
spark.sparkContext.setLogLevel("OFF")
register_tables(spark, streamlog.connect(sys.argv[1]))
spark.sql(
    """
    SELECT CAST(key AS STRING) AS customer,
           sum(CAST(get_json_object(CAST(value AS STRING), '$.qty') AS INT)) AS qty,
           max(timestamp) AS last
    FROM orders GROUP BY key ORDER BY customer
    """
).show(truncate=False)
spark.stop()
