"""One contract, two storages: everything in `TestObjects` holds on a disk and in memory."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamlog.clock import Runtime
from streamlog.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    StorageFullError,
    UnavailableError,
)
from streamlog.storage import open as open_module
from streamlog.storage.local import LocalObjects
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects
from streamlog.storage.remote import RemoteObjects, describe
from tests.fakes import fake_runtime


@pytest.fixture(params=["local", "memory"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    root = str(tmp_path / "root") if request.param == "local" else f"memory://{tmp_path}"
    return open_objects(root, None, Runtime())


@pytest.fixture
def disk(tmp_path: Path) -> LocalObjects:
    return LocalObjects(str(tmp_path / "root"), fake_runtime())


def paths(objects: Objects, prefix: str = "", start_after: str | None = None) -> list[str]:
    return sorted(info.path for info in objects.list(prefix, start_after))


def files_below(directory: str) -> list[str]:
    return sorted(name for _, _, names in os.walk(directory) for name in names)


class TestObjects:
    def test_an_empty_root_has_nothing(self, objects: Objects) -> None:
        assert objects.get("a/b") is None
        assert objects.open("a/b") is None
        assert objects.head("a/b") is None
        assert objects.names("a") == []
        assert paths(objects) == []
        objects.delete(["a/b"])
        objects.delete_tree("a")
        objects.sync_all()

    @pytest.mark.parametrize("data", [b"", b"one", os.urandom(3_000_000)])
    def test_what_is_put_is_got(self, objects: Objects, data: bytes) -> None:
        objects.put("d/put", data)
        objects.put_new("d/new", data, durable=False)
        objects.put_new("d/durable", pa.py_buffer(data), durable=True)
        objects.put("d/buffer", pa.py_buffer(data))
        assert objects.put_if_absent("d/absent", data, durable=True)
        for name in ("put", "new", "durable", "buffer", "absent"):
            assert objects.get(f"d/{name}") == data
            opened = objects.open(f"d/{name}")
            assert opened is not None
            assert opened.read() == data

    def test_put_replaces_and_changes_the_etag(self, objects: Objects) -> None:
        objects.put("m", b"1")
        before = objects.head("m")
        objects.put("m", b"2")
        after = objects.head("m")
        assert before is not None
        assert after is not None
        assert before.etag != after.etag
        assert objects.get("m") == b"2"

    @pytest.mark.parametrize("durable", [False, True])
    def test_put_if_absent_keeps_the_first(self, objects: Objects, durable: bool) -> None:
        assert objects.put_if_absent("log/1", b"first", durable=durable)
        assert not objects.put_if_absent("log/1", b"second", durable=durable)
        assert objects.get("log/1") == b"first"
        assert objects.names("log") == ["1"]

    @pytest.mark.parametrize("durable", [False, True])
    def test_racing_writers_have_one_winner_a_name(self, objects: Objects, durable: bool) -> None:
        writers, rounds = 4, 25
        barrier = threading.Barrier(writers)
        won: list[tuple[int, bytes]] = []

        def race(writer: int) -> None:
            for number in range(rounds):
                barrier.wait()
                data = b"%d" % writer
                if objects.put_if_absent(f"log/{number}", data, durable=durable):
                    won.append((number, data))

        threads = [threading.Thread(target=race, args=(writer,)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(number for number, _ in won) == list(range(rounds))
        assert all(objects.get(f"log/{number}") == data for number, data in won)
        assert len(objects.names("log")) == rounds

    def test_listing_is_recursive_below_a_directory(self, objects: Objects) -> None:
        for path in ("a/1", "a/b/2", "a/b/c/3", "ab/4", "5"):
            objects.put(path, path.encode())
        assert paths(objects) == ["5", "a/1", "a/b/2", "a/b/c/3", "ab/4"]
        assert paths(objects, "a") == paths(objects, "a/") == ["a/1", "a/b/2", "a/b/c/3"]
        assert paths(objects, "a/1") == []
        assert {info.size for info in objects.list("ab")} == {4}

    @pytest.mark.parametrize(
        "start_after", ["a", "a/", "a/1", "a/b", "a/b/", "a/b/2", "a/b0", "a/c", "a0", "zz"]
    )
    def test_listing_after_a_path_is_exclusive(self, objects: Objects, start_after: str) -> None:
        every = ["a/1", "a/b/2", "a/b/c/3", "a/b-/x", "ab/4", "z"]
        for path in every:
            objects.put(path, b"")
        expected = sorted(path for path in every if path > start_after)
        assert paths(objects, "", start_after) == expected

    def test_names_are_those_of_one_directory(self, objects: Objects) -> None:
        for path in ("a/1", "a/2", "a/b/3", "4"):
            objects.put(path, b"")
        assert sorted(objects.names("a")) == ["1", "2"]
        assert objects.names("") == ["4"]

    def test_hidden_files_are_in_no_listing(self, objects: Objects) -> None:
        objects.put("a/.x.crc", b"")
        objects.put(".dots/in.a.topic/0", b"")
        assert paths(objects) == [".dots/in.a.topic/0"]
        assert objects.names("a") == []

    def test_deleting_takes_what_is_named_and_ignores_what_is_absent(
        self, objects: Objects
    ) -> None:
        for path in ("a/1", "a/2", "a/3"):
            objects.put(path, b"")
        objects.delete(["a/0", "a/1", "a/3", "b/c"])
        objects.delete([])
        assert paths(objects) == ["a/2"]

    def test_deleting_a_tree_leaves_its_neighbours(self, objects: Objects) -> None:
        for path in ("a/1", "a/b/2", "a/.hidden", "ab/3"):
            objects.put(path, b"")
        objects.delete_tree("a")
        assert paths(objects) == ["ab/3"]
        assert objects.get("a/.hidden") is None
        assert objects.put_if_absent("a/b/2", b"again", durable=True)

    @pytest.mark.parametrize(
        "path", ["", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/..", ".", "./a", "a/.", "a\0b"]
    )
    def test_a_path_outside_the_rules_is_refused(self, objects: Objects, path: str) -> None:
        attempts: list[Callable[[], object]] = [
            lambda: objects.get(path),
            lambda: objects.open(path),
            lambda: objects.head(path),
            lambda: objects.put(path, b""),
            lambda: objects.put_new(path, b"", durable=False),
            lambda: objects.put_if_absent(path, b"", durable=False),
            lambda: objects.delete([path]),
            lambda: objects.delete_tree(path),
        ]
        for attempt in attempts:
            with pytest.raises(InvalidRequestError, match="relative to the root"):
                attempt()

    @pytest.mark.parametrize("path", ["a.", "a./b", "..a", "...", "a/b..c/d", "a/.b"])
    def test_dots_inside_names_are_fine(self, objects: Objects, path: str) -> None:
        objects.put(path, b"1")
        assert objects.get(path) == b"1"

    def test_the_store_tells_its_time_and_keeps_no_probe(self, objects: Objects) -> None:
        assert abs(objects.store_time() - time.time()) < 5
        assert paths(objects) == []

    def test_times_of_objects_are_the_stores(self, objects: Objects) -> None:
        before = objects.store_time()
        objects.put("a", b"")
        info = objects.head("a")
        assert info is not None
        assert before <= info.modified <= objects.store_time()
        assert list(objects.list("")) == [info]

    @pytest.mark.parametrize("rows", [10, 2_000_000])
    def test_parquet_is_read_in_place(self, objects: Objects, rows: int) -> None:
        table = pa.table({"n": pa.array(range(rows), pa.int64())})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="none", use_dictionary=False)
        objects.put_new("t.parquet", sink.getvalue(), durable=False)
        for size in (None, sink.getvalue().size):
            opened = objects.open("t.parquet", size)
            assert opened is not None
            with opened:
                assert pq.ParquetFile(opened).read().equals(table)


class TestLocal:
    def test_the_root_is_made_by_the_first_write(self, disk: LocalObjects) -> None:
        assert disk.get("a") is None
        disk.sync_all()
        assert not os.path.exists(disk.uri)
        disk.put("a", b"")
        assert os.listdir(disk.uri) == ["a"]

    def test_a_directory_that_vanished_is_made_again(self, disk: LocalObjects) -> None:
        disk.put_new("a/b/1", b"", durable=True)
        LocalObjects(disk.uri, fake_runtime(1)).delete_tree("a")
        assert disk.put_if_absent("a/b/1", b"", durable=True)

    @pytest.mark.parametrize(
        ("number", "kind"),
        [
            (errno.ENOSPC, StorageFullError),
            (errno.EDQUOT, StorageFullError),
            (errno.EIO, UnavailableError),
            (errno.EROFS, PermissionDeniedError),
        ],
    )
    def test_a_failed_write_says_why_and_leaves_nothing(
        self,
        disk: LocalObjects,
        monkeypatch: pytest.MonkeyPatch,
        number: int,
        kind: type[Exception],
    ) -> None:
        def fail(fd: int, data: bytes) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "write", fail)
        attempts: list[Callable[[], object]] = [
            lambda: disk.put("d/x", b"1"),
            lambda: disk.put_new("d/x", b"1", durable=False),
            lambda: disk.put_if_absent("d/x", b"1", durable=False),
        ]
        for attempt in attempts:
            with pytest.raises(kind, match=f"d/x: {os.strerror(number)}"):
                attempt()
            assert files_below(disk.uri) == []

    def test_a_short_write_is_continued(
        self, disk: LocalObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
        assert disk.put_if_absent("a", b"0123456789", durable=False)
        disk.put_new("b", pa.py_buffer(b"0123456789"), durable=False)
        assert disk.get("a") == disk.get("b") == b"0123456789"

    def test_a_short_read_is_continued(
        self, disk: LocalObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk.put("a", b"0123456789")
        read = os.read
        monkeypatch.setattr(os, "read", lambda fd, size: read(fd, min(size, 3)))
        assert disk.get("a") == b"0123456789"

    def test_a_file_system_without_links_is_refused_with_the_reason(
        self, disk: LocalObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(source: str, target: str) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", fail)
        with pytest.raises(InvalidRequestError, match="hard links"):
            disk.put_if_absent("a", b"", durable=False)
        assert files_below(disk.uri) == []

    def test_durable_bytes_are_on_disk_before_they_are_visible(
        self, disk: LocalObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events: list[str] = []
        fsync, link = os.fsync, os.link

        def traced_fsync(fd: int) -> None:
            events.append("fsync " + os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2][:5])
            fsync(fd)

        def traced_link(source: str, target: str) -> None:
            events.append("link")
            link(source, target)

        monkeypatch.setattr(os, "fsync", traced_fsync)
        monkeypatch.setattr(os, "link", traced_link)
        parent = os.path.basename(os.path.dirname(disk.uri))[:5]
        assert disk.put_if_absent("a/b/1", b"x", durable=True)
        # The first time also the names of the directories, up to the root's own.
        names = ["fsync b", "fsync a", "fsync root", f"fsync {parent}"]
        assert events == ["fsync .tmp-", "link", *names]
        events.clear()
        assert disk.put_if_absent("a/b/2", b"x", durable=True)
        assert events == ["fsync .tmp-", "link", "fsync b"]
        events.clear()
        disk.put_new("a/b/3", b"x", durable=True)
        assert events == ["fsync 3", "fsync b"]
        events.clear()
        assert disk.put_if_absent("a/b/4", b"x", durable=False)
        assert events == ["link"]

    def test_a_lost_durable_race_costs_no_fsync(
        self, disk: LocalObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk.put("1", b"x")

        def fail(fd: int) -> None:
            raise AssertionError("fsync of a lost race")

        monkeypatch.setattr(os, "fsync", fail)
        assert not disk.put_if_absent("1", b"y", durable=True)

    def test_a_root_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        disk = LocalObjects(str(tmp_path / "file"), fake_runtime())
        with pytest.raises(InvalidRequestError, match="must be a directory"):
            disk.put("a", b"")

    def test_forked_children_share_no_temporary_name(
        self, disk: LocalObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[str] = []
        link = os.link

        def traced(source: str, target: str) -> None:
            seen.append(source)
            link(source, target)

        monkeypatch.setattr(os, "link", traced)
        for pid in (1, 2):
            monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
            disk._tmp_numbers = iter([0])  # type: ignore[assignment]
            assert disk.put_if_absent(f"{pid}", b"", durable=False)
        assert len(set(seen)) == 2


class TestOpen:
    def test_memory_is_shared_by_name(self) -> None:
        one, same, other = (
            open_objects(f"memory://shared-{name}", None, Runtime()) for name in "112"
        )
        one.put("a", b"1")
        assert same.get("a") == b"1"
        assert other.get("a") is None
        assert not one.supports_delta

    def test_paths_and_file_urls_are_the_file_system(self, tmp_path: Path) -> None:
        for root in (f"{tmp_path}/a b", f"file://{tmp_path}/a%20b", f"{tmp_path}/a b/"):
            opened = open_objects(root, None, Runtime())
            assert isinstance(opened, LocalObjects)
            assert opened.uri == f"{tmp_path}/a b"

    @pytest.mark.parametrize(
        ("root", "says"),
        [
            ("", "empty"),
            ("ftp://host/x", "unknown scheme 'ftp'"),
            ("s3://", "names no bucket"),
            ("file://host/x", "another host"),
        ],
    )
    def test_a_root_nobody_can_open_is_refused(self, root: str, says: str) -> None:
        with pytest.raises(InvalidRequestError, match=says):
            open_objects(root, None, Runtime())

    def test_options_in_deltalakes_names_reach_the_right_place(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[dict[str, object]] = []

        def capture(url: str, **kwargs: object) -> object:
            calls.append(kwargs)
            return object()

        monkeypatch.setattr(open_module, "from_url", capture)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        options = {
            "AWS_ACCESS_KEY_ID": "key",
            "aws_region": "eu",
            "AWS_ENDPOINT_URL": "http://localhost:9000",
            "timeout": "5s",
            "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
            "max_retries": 3,
        }
        opened = open_objects("s3://bucket/p/", options, Runtime())
        assert opened.uri == "s3://bucket/p"
        assert opened.storage_options["max_retries"] == "3"
        for call in calls:
            assert call["config"] == {
                "aws_access_key_id": "key",
                "aws_region": "eu",
                "aws_endpoint_url": "http://localhost:9000",
            }
            assert call["client_options"] == {"allow_http": "true", "timeout": "5s"}
        retries = [call["retry_config"] for call in calls]
        assert [retry["max_retries"] for retry in retries] == [3, 0]  # type: ignore[index]

    def test_an_unknown_option_is_named(self) -> None:
        with pytest.raises(InvalidRequestError, match="no_such_option"):
            open_objects("s3://bucket", {"no_such_option": "1"}, Runtime())


class TestRemoteErrors:
    def test_an_unreachable_store_is_unavailable_and_tells_no_secret(self) -> None:
        options = {
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "very-secret-value",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
            "AWS_ALLOW_HTTP": "true",
            "max_retries": "0",
        }
        objects = open_objects("s3://bucket/p", options, Runtime())
        assert isinstance(objects, RemoteObjects)
        with pytest.raises(
            UnavailableError, match="cannot write a/b under s3://bucket/p"
        ) as caught:
            objects.put_if_absent("a/b", b"", durable=False)
        assert "very-secret-value" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__

    def test_query_strings_bodies_and_option_values_are_cut(self) -> None:
        error = RuntimeError(
            "PUT https://h/c/x?sig=abc%3D&se=1 with top-secret-key failed: "
            "<?xml?><Error><Code>Denied</Code><StringToSign>x</StringToSign></Error>\nDebug: more"
        )
        assert describe(error, {"account_key": "top-secret-key"}) == (
            "PUT https://h/c/x?… with … failed: (Denied)"
        )
