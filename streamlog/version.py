"""The version of the installed package; pyproject.toml is the one place that states it."""

from __future__ import annotations


def read_version() -> str:
    """The installed version, or "0+source" when run from a tree that was never installed."""
    # Imported late: importlib.metadata costs more than the rest of `import streamlog`'s own code.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("streamlog")
    except PackageNotFoundError:
        return "0+source"
