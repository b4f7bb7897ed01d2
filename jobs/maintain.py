"""Retention, compaction and cleaning of a whole root, on Spark; once, or on a schedule.

spark-submit jobs/maintain.py --root s3://bucket/log
"""

import sys

from streamlog.spark.job import maintain

if __name__ == "__main__":
    code = maintain(__doc__, sys.argv[1:])
    # Databricks takes any exit for a failure, also that with 0.
    if code:
        sys.exit(code)
