"""Merges small files into segments, and compacts compacted topics by key, on Spark.

spark-submit jobs/compact.py --root s3://bucket/log
"""

import sys

from streamlog.spark.job import run

if __name__ == "__main__":
    code = run(__doc__, ("compact", "merge"), sys.argv[1:])
    # Databricks takes any exit for a failure, also that with 0.
    if code:
        sys.exit(code)
