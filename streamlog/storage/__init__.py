"""Storage: the only layer that does I/O; errors are translated here."""
