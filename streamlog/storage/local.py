"""Objects on a local file system, by plain system calls.

Not through obstore, which never fsyncs (design, rule 13) and costs more a call:

| microseconds, median of 3 rounds (range)  | here             | obstore LocalStore |
| ----------------------------------------- | ---------------- | ------------------ |
| `get`, nothing there (a tail poll)        | 2.8 (2.7 to 4.2) | 28 (28 to 52)      |
| `get` of 900 bytes                        | 6.3 (5.1 to 7.3) | 60 (49 to 66)      |
| `put_if_absent` of 900 bytes              | 51 (37 to 103)   | 70 (56 to 172)     |
| the same, durable                         | 553 (539 to 622) | not offered        |
| `put_new` of 10 kB                        | 32 (25 to 35)    | 93 (83 to 103)     |

(2 cores, ext4 on a virtual disk, Python 3.11, obstore 0.12.1; a round is the median of its calls.)

How a put lands:
- `put_if_absent` writes `.tmp-<id>` beside the target, [fsync], links it to the target (EEXIST:
  lost), unlinks the temporary name, [fsync of the directory]: durable before it is visible.
- `put` the same with `rename`, without fsync.
- `put_new` writes in place, [fsync, fsync of the directory].
[…] only if durable. A directory is made when a put misses it; the first durable put into a
directory also fsyncs those above it up to the root's parent, since whoever made them may not have.

A crash leaves at most a `.tmp-` file (in no listing) or an unfinished data file no commit names. An
error (disk full, …) leaves neither. The root is not made before the first write.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType

import pyarrow as pa

from streamlog.clock import Runtime
from streamlog.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    StorageFullError,
    StreamlogError,
    UnavailableError,
)
from streamlog.storage.objects import ObjectInfo, check_path

_READ = os.O_RDONLY | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_WRITE_EXCLUSIVE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MALFORMED = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}

_TREE_ATTEMPTS = 5


class LocalObjects:
    """`Objects` below a directory."""

    local = True
    supports_delta = True

    def __init__(self, root: str, runtime: Runtime) -> None:
        self.uri = os.path.abspath(os.path.expanduser(root))
        self.storage_options: dict[str, str] = {}
        self._base = self.uri if self.uri.endswith("/") else self.uri + "/"
        self._ids = runtime.ids
        self._tmp_prefix = runtime.ids.new()
        self._tmp_numbers = itertools.count()
        # Directories whose names, up to the root's, are known to be on disk.
        self._durable_directories: set[str] = set()

    def __repr__(self) -> str:
        return f"LocalObjects({self.uri!r})"

    # Reading

    def get(self, path: str) -> bytes | None:
        check_path(path)
        full = self._base + path
        try:
            fd = os.open(full, _READ)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _translated("read", full, error) from error
        try:
            size = os.fstat(fd).st_size
            data = os.read(fd, size)
            if len(data) == size:
                return data
            parts = [data]
            missing = size - len(data)
            while missing and (part := os.read(fd, missing)):
                parts.append(part)
                missing -= len(part)
            return b"".join(parts)
        except IsADirectoryError:
            return None
        except OSError as error:
            raise _translated("read", full, error) from error
        finally:
            os.close(fd)

    def open(self, path: str, size: int | None = None) -> pa.NativeFile | None:
        check_path(path)
        full = self._base + path
        try:
            if not (size or os.stat(full).st_size):
                return pa.BufferReader(b"")  # nothing to map
            return pa.memory_map(full)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _translated("open", full, error) from error

    def names(self, directory: str) -> list[str]:
        full = self._base + _directory(directory)
        try:
            with os.scandir(full) as entries:
                return [e.name for e in entries if e.name[0] != "." and not e.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _translated("list", full, error) from error

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        pending = [_directory(prefix)]
        while pending:
            directory = pending.pop()
            full = self._base + directory
            try:
                with os.scandir(full) as entries:
                    for entry in entries:
                        path = directory + entry.name
                        if entry.is_dir():
                            path += "/"
                            # All below begins with `path`, so `path` decides for all, unless
                            # `start_after` itself lies below.
                            if (
                                start_after is None
                                or path > start_after
                                or start_after.startswith(path)
                            ):
                                pending.append(path)
                        elif entry.name[0] != "." and (start_after is None or path > start_after):
                            with suppress(FileNotFoundError):  # deleted meanwhile
                                yield _info(path, entry.stat())
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise _translated("list", full, error) from error

    def head(self, path: str) -> ObjectInfo | None:
        check_path(path)
        full = self._base + path
        try:
            found = os.stat(full)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _translated("look up", full, error) from error
        return None if (found.st_mode & 0o170000) == 0o040000 else _info(path, found)

    # Writing

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        check_path(path)
        full = self._base + path
        with _Translating("write", full):
            temporary = self._write_temporary(full, data, durable=False)
            try:
                os.rename(temporary, full)
            except OSError:
                _discard(temporary)
                raise

    def put_new(self, path: str, data: bytes | pa.Buffer, *, durable: bool) -> None:
        check_path(path)
        full = self._base + path
        with _Translating("write", full):
            self._write(full, data, _WRITE, durable=durable)
            if durable:
                self._sync_directory(os.path.dirname(full))

    def put_if_absent(self, path: str, data: bytes, *, durable: bool) -> bool:
        check_path(path)
        full = self._base + path
        with _Translating("write", full):
            # A race that is lost already should not cost an fsync.
            if durable and os.path.lexists(full):
                return False
            temporary = self._write_temporary(full, data, durable=durable)
            try:
                os.link(temporary, full)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise InvalidRequestError(
                        f"the file system of {full} cannot make hard links ({error.strerror}), "
                        "which decide who wins a version; put the root on another file system"
                    ) from error
                raise
            finally:
                _discard(temporary)
            if durable:
                self._sync_directory(os.path.dirname(full))
            return True

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            check_path(path)
            full = self._base + path
            try:
                os.unlink(full)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise _translated("delete", full, error) from error

    def delete_tree(self, prefix: str) -> None:
        check_path(prefix)
        full = self._base + prefix
        for attempt in range(1, _TREE_ATTEMPTS + 1):
            try:
                shutil.rmtree(full)
            except FileNotFoundError:
                # The tree is gone, or somebody else deletes it too and was ahead at one file.
                if not os.path.lexists(full):
                    break
                if attempt == _TREE_ATTEMPTS:
                    raise UnavailableError(
                        f"cannot delete {full}: others keep changing it; try again later"
                    ) from None
            except NotADirectoryError:
                break
            except OSError as error:
                # A writer that has not noticed yet put a file into a directory being removed.
                if error.errno != errno.ENOTEMPTY or attempt == _TREE_ATTEMPTS:
                    raise _translated("delete", full, error) from error
            else:
                break
        below = full + "/"
        self._durable_directories = {
            d for d in self._durable_directories if d != full and not d.startswith(below)
        }

    # The store as a whole

    def sync_all(self) -> None:
        with _Translating("sync", self.uri):
            try:
                fd = os.open(self.uri, _DIRECTORY)
            except FileNotFoundError:
                return  # nothing was written yet
            try:
                if _SYNCFS is None:
                    os.sync()
                elif _SYNCFS(fd) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            finally:
                os.close(fd)

    def store_time(self) -> float:
        path = f"_probe/{self._ids.new()}"
        self.put_new(path, b"", durable=False)
        full = self._base + path
        with _Translating("look up", full):
            try:
                return os.stat(full).st_mtime
            finally:
                _discard(full)

    # Helpers

    def _write_temporary(self, full: str, data: bytes | pa.Buffer, *, durable: bool) -> str:
        # The process id tells forked children apart, which share the prefix and the count.
        name = f".tmp-{self._tmp_prefix}-{os.getpid()}-{next(self._tmp_numbers)}"
        temporary = full[: full.rindex("/") + 1] + name
        self._write(temporary, data, _WRITE_EXCLUSIVE, durable=durable)
        return temporary

    def _write(self, full: str, data: bytes | pa.Buffer, flags: int, *, durable: bool) -> None:
        try:
            fd = os.open(full, flags, 0o666)
        except FileNotFoundError:
            # Asking first would cost every put a system call; a remembered answer may be stale.
            directory = os.path.dirname(full)
            self._durable_directories.discard(directory)
            os.makedirs(directory, exist_ok=True)
            fd = os.open(full, flags, 0o666)
        try:
            written = os.write(fd, data)
            if written < len(data):
                rest = memoryview(data)[written:]
                while rest:
                    rest = rest[os.write(fd, rest) :]
            if durable:
                os.fsync(fd)
        except BaseException:
            _discard(full)
            raise
        finally:
            os.close(fd)

    def _sync_directory(self, directory: str) -> None:
        _fsync_directory(directory)
        if directory in self._durable_directories:
            return
        above = directory
        while above not in (self.uri, "/"):
            above = os.path.dirname(above)
            _fsync_directory(above)
        # The root's own name. A parent that is not ours to open was not ours to make it in.
        with suppress(PermissionError):
            _fsync_directory(os.path.dirname(self.uri))
        self._durable_directories.add(directory)


class _Translating:
    """An OSError of the block becomes streamlog's (no generator: those cost more)."""

    __slots__ = ("_full", "_verb")

    def __init__(self, verb: str, full: str) -> None:
        self._verb = verb
        self._full = full

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            raise _translated(self._verb, self._full, error) from error


def _translated(verb: str, full: str, error: OSError) -> StreamlogError:
    number = error.errno or 0
    what = f"cannot {verb} {full}: {error.strerror or error} (errno {number})"
    if number in _FULL:
        return StorageFullError(f"{what}; free some space or raise the quota, then try again")
    if number in _DENIED:
        return PermissionDeniedError(f"{what}; give this user the right to, or use another root")
    if number in _MALFORMED:
        return InvalidRequestError(f"{what}; the root must be a directory, and names not too long")
    return UnavailableError(f"{what}; try again later")


def _directory(path: str) -> str:
    """A directory's path with a slash at its end; the root is ""."""
    path = path.rstrip("/")
    if not path:
        return ""
    check_path(path)
    return path + "/"


def _info(path: str, found: os.stat_result) -> ObjectInfo:
    etag = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    return ObjectInfo(path, found.st_size, found.st_mtime, etag)


def _discard(full: str) -> None:
    """Remove what is of no use any more. Failing leaves a file no listing or commit names."""
    with suppress(OSError):
        os.unlink(full)


def _fsync_directory(directory: str) -> None:
    fd = os.open(directory, _DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# Linux alone has syncfs; elsewhere `os.sync` flushes every file system.
_SYNCFS = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
