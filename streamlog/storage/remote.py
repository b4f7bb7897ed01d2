"""Objects in a bucket (S3, GCS, Azure) or in memory, through obstore.

Two stores of one place: `store` retries by itself, `strict` never does. Conditional puts go through
`strict`: a hidden retry of a put that had worked would report its own success as "exists" (design,
rule 3).

Object stores acknowledge only what is durable, so `durable` and `sync_all` mean nothing here.
Messages are made from obstore's first line, without query strings, response bodies and the values
of secret options; obstore's own exception is not chained, for the same reason.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence

import obstore
import pyarrow as pa
from obstore import exceptions
from obstore.store import ObjectStore

from streamlog.clock import Runtime
from streamlog.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    StorageFullError,
    StreamlogError,
    UnavailableError,
)
from streamlog.storage.objects import ObjectInfo, check_path

# What obstore raises: its own root, and built-ins (absent, refused, malformed, unsupported).
_ERRORS = (exceptions.BaseError, OSError, ValueError, RuntimeError)

# Up to here one GET beats the round trips of random access.
_WHOLE_BYTES = 8 * 1024 * 1024
_DELETE_CHUNK = 1000

_SECRET_NAME = re.compile(r"key|secret|token|password|sas|credential|account_json", re.IGNORECASE)
_FULL = re.compile(r"\b507\b|StorageFull|QuotaExceeded")
_QUERY = re.compile(r"\?[^\s\"'<>]+")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE_CHARS = 300
# Shorter values are words like "true" or "eu"; blanking them would garble the message.
_SECRET_CHARS = 6


class RemoteObjects:
    """`Objects` behind obstore."""

    local = False

    def __init__(
        self,
        uri: str,
        store: ObjectStore,
        strict: ObjectStore,
        runtime: Runtime,
        *,
        storage_options: Mapping[str, str] | None = None,
        supports_delta: bool = True,
    ) -> None:
        self.uri = uri
        self.storage_options = dict(storage_options or {})
        self.supports_delta = supports_delta
        self._store = store
        self._strict = strict
        self._ids = runtime.ids

    def __repr__(self) -> str:
        return f"RemoteObjects({self.uri!r})"

    # Reading

    def get(self, path: str) -> bytes | None:
        check_path(path)
        try:
            return obstore.get(self._store, path).bytes().to_bytes()
        except FileNotFoundError:
            return None
        except _ERRORS as error:
            raise self._translated("read", path, error) from None

    def open(self, path: str, size: int | None = None) -> pa.NativeFile | None:
        check_path(path)
        try:
            if size is None or size <= _WHOLE_BYTES:
                result = obstore.get(self._store, path)
                if result.meta["size"] <= _WHOLE_BYTES:
                    return pa.BufferReader(pa.py_buffer(result.bytes()))
            # Without `size`, so that obstore asks: an absent object shows here, not in a read.
            reader = obstore.open_reader(self._store, path)
        except FileNotFoundError:
            return None
        except _ERRORS as error:
            raise self._translated("open", path, error) from None
        return pa.PythonFile(_Reader(self, path, reader), mode="r")

    def names(self, directory: str) -> list[str]:
        prefix = _directory(directory)
        try:
            found = obstore.list_with_delimiter(self._store, prefix)["objects"]
        except FileNotFoundError:
            return []
        except _ERRORS as error:
            raise self._translated("list", directory, error) from None
        return [meta["path"].rpartition("/")[2] for meta in found if _visible(meta["path"])]

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        directory = _directory(prefix)
        try:
            for chunk in obstore.list(
                self._store, directory, offset=start_after, chunk_size=_DELETE_CHUNK
            ):
                for meta in chunk:
                    # obstore takes "a/b/" for "a/b", so the bound is checked once more.
                    if _visible(meta["path"]) and (
                        start_after is None or meta["path"] > start_after
                    ):
                        yield _info(meta)
        except FileNotFoundError:
            return
        except _ERRORS as error:
            raise self._translated("list", prefix, error) from None

    def head(self, path: str) -> ObjectInfo | None:
        check_path(path)
        try:
            return _info(obstore.head(self._store, path))
        except FileNotFoundError:
            return None
        except _ERRORS as error:
            raise self._translated("look up", path, error) from None

    # Writing

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        check_path(path)
        try:
            obstore.put(self._store, path, memoryview(data).cast("B"))
        except _ERRORS as error:
            raise self._translated("write", path, error) from None

    def put_new(
        self,
        path: str,
        data: bytes | pa.Buffer,
        *,
        durable: bool,  # noqa: ARG002  (always durable)
    ) -> None:
        self.put(path, data)

    def put_if_absent(
        self,
        path: str,
        data: bytes,
        *,
        durable: bool,  # noqa: ARG002  (always durable)
    ) -> bool:
        check_path(path)
        try:
            obstore.put(self._strict, path, data, mode="create")
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return False
        except _ERRORS as error:
            raise self._translated("write", path, error) from None
        return True

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            check_path(path)
        for at in range(0, len(paths), _DELETE_CHUNK):
            chunk = list(paths[at : at + _DELETE_CHUNK])
            try:
                obstore.delete(self._store, chunk)
            except FileNotFoundError:
                # Some stores stop at an absent object; the others of the chunk still have to go.
                self._delete_singly(chunk)
            except _ERRORS as error:
                raise self._translated("delete", chunk[0], error) from None

    def delete_tree(self, prefix: str) -> None:
        check_path(prefix)
        try:
            listed = obstore.list(self._store, prefix, chunk_size=_DELETE_CHUNK).collect()
        except FileNotFoundError:
            return
        except _ERRORS as error:
            raise self._translated("list", prefix, error) from None
        self.delete([meta["path"] for meta in listed])

    # The store as a whole

    def sync_all(self) -> None:
        return None

    def store_time(self) -> float:
        path = f"_probe/{self._ids.new()}"
        self.put(path, b"")
        found = self.head(path)
        self.delete([path])
        if found is None:
            raise UnavailableError(
                f"the probe {path} under {self.uri} vanished at once, so the store's time is "
                "unknown; exclude _probe/ from clean-up rules, then try again"
            )
        return found.modified

    # Helpers

    def _delete_singly(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                continue
            except _ERRORS as error:
                raise self._translated("delete", path, error) from None

    def _translated(self, verb: str, path: str, error: Exception) -> StreamlogError:
        reason = describe(error, self.storage_options)
        what = f"cannot {verb} {path} under {self.uri}: {reason}"
        if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)):
            return PermissionDeniedError(f"{what}; check the credentials and their rights")
        if isinstance(error, PermissionError):
            return PermissionDeniedError(f"{what}; check the credentials and their rights")
        if isinstance(error, (exceptions.NotSupportedError, NotImplementedError)):
            return InvalidRequestError(f"{what}; this store cannot do it, use another one")
        if _FULL.search(str(error)):
            return StorageFullError(f"{what}; free some space or raise the quota, then try again")
        return UnavailableError(f"{what}; try again later")


class _Reader(io.RawIOBase):
    """obstore's reader with streamlog's errors; Arrow passes them on to the caller."""

    def __init__(self, objects: RemoteObjects, path: str, reader: obstore.ReadableFile) -> None:
        self._objects = objects
        self._path = path
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._reader.size

    def tell(self) -> int:
        return self._reader.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._reader.seek(offset, whence)

    def read(self, size: int | None = -1, /) -> bytes:
        try:
            if size is None or size < 0:
                return self._reader.readall().to_bytes()
            return self._reader.read(size).to_bytes()
        except _ERRORS as error:
            raise self._objects._translated("read", self._path, error) from None


def describe(error: BaseException, storage_options: Mapping[str, str]) -> str:
    """One line of an obstore error, without anything secret."""
    text = str(error)
    code = _CODE.search(text)
    line = text.partition("\n")[0].partition("<")[0].strip()
    line = _QUERY.sub("?…", line)
    for name, value in (*storage_options.items(), *os.environ.items()):
        if len(value) >= _SECRET_CHARS and value in line and _SECRET_NAME.search(name):
            line = line.replace(value, "…")
    if len(line) > _MESSAGE_CHARS:
        line = line[:_MESSAGE_CHARS] + "…"
    return f"{line} ({code[1]})" if code else line or type(error).__name__


def _directory(path: str) -> str | None:
    path = path.rstrip("/")
    if not path:
        return None
    check_path(path)
    return path


def _visible(path: str) -> bool:
    return path[path.rfind("/") + 1 :][:1] != "."


def _info(meta: obstore.ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp(), meta["e_tag"])
