"""Maintenance of topics: small files into segments, retention, the last record a key, erasure, cleaning."""
