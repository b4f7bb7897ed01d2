"""streamlog for Spark: `format("streamlog")` as source and sink, topics as tables.

    from streamlog.spark import session, register
    spark = session()                 # a local session with Delta, or register(spark) on one you have

Importing this package loads pyspark; nothing else of streamlog does.
"""

from streamlog.spark.datasource import StreamlogDataSource
from streamlog.spark.session import register, session
from streamlog.spark.tables import groups_df, lag_df, register_tables, topic_df, topics_df

__all__ = [
    "StreamlogDataSource",
    "groups_df",
    "lag_df",
    "register",
    "register_tables",
    "session",
    "topic_df",
    "topics_df",
]
