"""Removes records that are past their topics' retention.

spark-submit jobs/retention.py --root s3://bucket/log
"""

import sys

from streamlog.spark.job import run

if __name__ == "__main__":
    code = run(__doc__, ("retain",), sys.argv[1:])
    # Databricks takes any exit for a failure, also that with 0.
    if code:
        sys.exit(code)
