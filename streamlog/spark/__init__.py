"""streamlog for Spark: `format("streamlog")` as source and sink, topics as tables.

    from streamlog.spark import session, register
    spark = session()                 # a local session with Delta, or register(spark) on one you have

Using this package loads pyspark; nothing else of streamlog does. Names are loaded at their first use: every
query starts a Python of its own, which needs a few of them and waits for all it imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamlog.spark.datasource import StreamlogDataSource
    from streamlog.spark.sessions import register, session
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

_LATE = {
    "StreamlogDataSource": "datasource",
    "groups_df": "tables",
    "lag_df": "tables",
    "register": "sessions",
    "register_tables": "tables",
    "session": "sessions",
    "topic_df": "tables",
    "topics_df": "tables",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module 'streamlog.spark' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"streamlog.spark.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
