"""Reads a topic's partition tables without streamlog: with deltalake, then SQL in DuckDB."""

import sys
from pathlib import Path

import duckdb
from deltalake import DeltaTable

topic = Path(sys.argv[1])
for folder in sorted(path.parent for path in topic.glob("*/_delta_log")):
    table = DeltaTable(folder)
    records = table.to_pyarrow_table()
    print(f"partition {folder.name}: Delta version {table.version()}, {len(records)} records")
    if len(records):
        duckdb.sql(
            """
            SELECT "offset", decode(key) AS key, decode(value) AS value
            FROM records ORDER BY "offset"
            """
        ).show()
