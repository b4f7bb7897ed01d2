"""The partition log: commits, tailing, reading, topics."""
