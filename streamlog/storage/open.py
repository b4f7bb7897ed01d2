"""From a root as people write it to its `Objects`.

`memory://NAME` is one store a name and process; a path or `file://` is the file system; `s3://`,
`gs://`, `az://`, `abfss://` … go through obstore. Storage options carry the deltalake library's
names, so that one mapping serves both libraries; obstore wants them in three places, and panics
(not an `Exception`) on an HTTP client option among the others: `_split` sorts them. The
environment (`AWS_*`, …) counts where an option is not given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import MemoryStore, from_url

from streamlog.clock import Runtime
from streamlog.errors import InvalidRequestError
from streamlog.storage.local import LocalObjects
from streamlog.storage.objects import Objects
from streamlog.storage.remote import RemoteObjects, describe

# What the option names of a scheme may begin with.
_PREFIXES = {
    "s3": "aws_",
    "s3a": "aws_",
    "gs": "google_",
    "az": "azure_",
    "azure": "azure_",
    "adl": "azure_",
    "abfs": "azure_",
    "abfss": "azure_",
}

_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)

# Settings of the deltalake library alone; obstore would refuse them.
_DELTA_ONLY = ("delta_", "backoff_config", "retry_timeout", "s3_", "allow_unsafe_rename", "dynamo_")

# obstore's own limits (10 retries, 3 minutes) outlast a producer's delivery timeout.
_MAX_RETRIES = 5
_RETRY_TIMEOUT = timedelta(seconds=30)

_memory: dict[str, MemoryStore] = {}
_memory_lock = Lock()


def open_objects(
    root: str, storage_options: Mapping[str, object] | None, runtime: Runtime
) -> Objects:
    """The objects under `root`; nothing is read or written yet."""
    if not root:
        raise InvalidRequestError(f"the root is empty; {_ALLOWED}")
    options = {name: _text(value) for name, value in (storage_options or {}).items()}
    scheme, separator, rest = root.partition("://")
    if not separator:
        return LocalObjects(root, runtime)
    scheme = scheme.lower()
    if scheme == "file":
        parts = urlsplit(root)
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise InvalidRequestError(
                f"the root {root!r} names another host or no path; write file:///absolute/path"
            )
        return LocalObjects(unquote(parts.path), runtime)
    if scheme == "memory":
        name = rest.strip("/")
        with _memory_lock:
            store = _memory.setdefault(name, MemoryStore())
        return RemoteObjects(f"memory://{name}", store, store, runtime, supports_delta=False)
    if scheme not in _PREFIXES:
        raise InvalidRequestError(f"the root {root!r} has an unknown scheme {scheme!r}; {_ALLOWED}")
    uri = f"{scheme}://{rest.rstrip('/')}"
    if not rest.strip("/"):
        raise InvalidRequestError(f"the root {root!r} names no bucket; {_ALLOWED}")
    return _remote(uri, _PREFIXES[scheme], options, runtime)


_ALLOWED = (
    "give a local path, file:///path, memory://name, or a bucket as "
    "s3://bucket/prefix, gs://bucket/prefix or abfss://container@account.dfs.core.windows.net/prefix"
)


def _remote(uri: str, prefix: str, options: dict[str, str], runtime: Runtime) -> RemoteObjects:
    config, client, max_retries = _split(prefix, options)

    def connect(retries: int) -> Any:
        # Typed by store kind in obstore's stubs; here the kind is known at run time only.
        untyped: Any = from_url
        retry = {"max_retries": retries, "retry_timeout": _RETRY_TIMEOUT}
        return untyped(uri, config=config, client_options=client or None, retry_config=retry)

    try:
        return RemoteObjects(
            uri, connect(max_retries), connect(0), runtime, storage_options=options
        )
    except (BaseError, OSError, ValueError, TypeError) as error:
        raise InvalidRequestError(
            f"cannot use the root {uri}: {describe(error, options)}; "
            "check the address and the names and values of the storage options"
        ) from None


def _split(prefix: str, options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], int]:
    """Storage options as obstore's (store config, client options, number of retries)."""
    config: dict[str, str] = {}
    client: dict[str, str] = {}
    max_retries = _MAX_RETRIES
    # Client options given to obstore hide those of the environment, so they are joined here.
    for bare in _CLIENT_OPTIONS:
        value = os.environ.get((prefix + bare).upper())
        if value:
            client[bare] = value
    for name, value in options.items():
        lower = name.lower()
        bare = lower.removeprefix(prefix)
        if bare in _CLIENT_OPTIONS:
            client[bare] = value
        elif bare == "max_retries":
            if not value.isdigit():
                raise InvalidRequestError(
                    f"the storage option {name} is {value!r}; give a whole number, 0 or more"
                )
            max_retries = int(value)
        elif not bare.startswith(_DELTA_ONLY):
            config[lower] = value
    return config, client, max_retries


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
