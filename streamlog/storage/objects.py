"""What the log asks of a storage: named bytes, and one conditional put.

Everything above this layer speaks `Objects`; whether bytes lie on a disk, in memory or in a bucket
shows only in `local` and `supports_delta`.

Invariants every implementation keeps:
1. Paths are relative to the root, "/"-separated; no component is empty, "." or "..".
2. `put` and `put_if_absent` are atomic: a reader sees all of the bytes or none. `put_new` is not:
   its name is known to nobody before a commit mentions it.
3. `put_if_absent` lets one caller win, and never retries behind the caller's back (design, rule 3):
   True is won; False is "exists" (S3 may say so with nothing there); an error leaves it open.
4. File names that begin with "." (unfinished writes, check sums of other engines) are not listed.
5. Errors are streamlog's own and hold no credentials.

All methods may be called from several threads at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from streamlog.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a listing. `modified` is in epoch seconds by the store's clock."""

    path: str
    size: int
    modified: float
    etag: str | None


class Objects(Protocol):
    """A root with named objects below it."""

    @property
    def uri(self) -> str:
        """The root as the deltalake library takes it ("/abs/path", "s3://bucket/prefix")."""

    @property
    def storage_options(self) -> dict[str, str]:
        """The storage options as the deltalake library takes them."""

    @property
    def local(self) -> bool:
        """True on a file system: a poll costs microseconds and may come every millisecond."""

    @property
    def supports_delta(self) -> bool:
        """False where the deltalake library cannot open the root (memory)."""

    def get(self, path: str) -> bytes | None:
        """The object's bytes, None if there is none."""

    def open(self, path: str, size: int | None = None) -> pa.NativeFile | None:
        """For random access, None if there is none; `size`, if known, may save a request."""

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write or replace atomically; not made durable."""

    def put_new(self, path: str, data: bytes | pa.Buffer, *, durable: bool) -> None:
        """Write under a name that nobody else uses or reads yet; trying again may overwrite."""

    def put_if_absent(self, path: str, data: bytes, *, durable: bool) -> bool:
        """Write unless there is such an object: True won, False exists (invariant 3)."""

    def names(self, directory: str) -> list[str]:
        """The file names directly in `directory`, in no promised order; [] if it is absent."""

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """All objects below the directory `prefix` ("" is the root), in no promised order.

        With `start_after`, only those whose full path sorts after it.
        """

    def head(self, path: str) -> ObjectInfo | None:
        """Size, time and etag; None if there is no such object."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; one that is absent is fine."""

    def delete_tree(self, prefix: str) -> None:
        """Delete everything below the directory `prefix`; absent is fine."""

    def sync_all(self) -> None:
        """Make everything written so far under the root durable, whoever wrote it."""

    def store_time(self) -> float:
        """Epoch seconds by the store's clock: the time of a probe object just written."""


def check_path(path: str) -> None:
    """Refuse a path that is absolute, or has an empty, "." or ".." component (invariant 1)."""
    # A plausible path passes by a few substring searches: this runs on every tail poll.
    if path and path[0] != "/" and "//" not in path and "./" not in path:
        if path[-1] not in "/." and "\0" not in path:
            return
        if path[-1] == "." and "\0" not in path:
            last = path.rpartition("/")[2]
            if last not in (".", ".."):
                return
    elif path and "\0" not in path and all(p not in ("", ".", "..") for p in path.split("/")):
        return
    raise InvalidRequestError(
        f"the object path {path!r} is not allowed: give a path relative to the root, "
        'separated by "/", without empty, "." or ".." components'
    )
