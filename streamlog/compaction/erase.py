"""Erasing keys: their records leave the log, and then the storage.

E1  Files that hold a key are written anew without it; their neighbours keep offset and order, and readers
    do not see them again.
E2  The old files stay until the vacuum floor has passed, for readers of an older version. `purge` deletes
    them, and what earlier rewrites left of the key, at once: readers of streamlog look again and go on; a
    query of another engine that runs on the older version fails.
E3  The proof looks into every data file that is there, live or not, and into what Spark's sink staged. What
    cannot be read counts as holding the key: a crash may have cut it short behind the key's bytes.

Records of the key that producers append meanwhile are erased as far as they were committed when the last
look began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.compaction import rewrite
from streamlog.compaction.plan import clusters, total_records
from streamlog.compaction.rewrite import Job
from streamlog.errors import CorruptLogError, UnavailableError
from streamlog.log.commit import Segment
from streamlog.log.files import DataFile, FileMissingError
from streamlog.log.topics import TopicInfo, Topics
from streamlog.log.versions import VACUUM_FLOOR_SECONDS
from streamlog.storage.objects import ObjectInfo

_TRIES = 5
_COMMIT_SECONDS = 60.0
# A file that is being written becomes readable meanwhile.
_LOOKS = 6
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Erased:
    """One partition: what was written anew, and which files still hold a key."""

    partition: int
    files: int
    records: int
    # Paths of files that are no longer part of the log but still on storage with the key in them.
    left: tuple[str, ...]


class Eraser:
    """Erases keys of one topic."""

    def __init__(self, topics: Topics, runtime: Runtime, info: TopicInfo, keys: Sequence[bytes]):
        self._topics = topics
        self._runtime = runtime
        self._info = info
        self._keys = pa.array(list(keys), pa.binary())

    def run(
        self, *, purge: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> list[Erased]:
        """Erases the keys in every partition (a key may have been sent to any of them)."""
        found = []
        for number in range(self._info.partitions):
            gone, records = self._erase(number)
            if purge:
                self._topics.objects.delete(self._dead(number))
            found.append(Erased(number, len(gone), records, self.holding(number)))
            if progress is not None:
                progress(number + 1, self._info.partitions)
        return found

    def holding(self, number: int) -> tuple[str, ...]:
        """Every file of a partition, live or not, that holds one of the keys or cannot be read."""
        return tuple(info.path for info, _ in self._suspects(number))

    def staged(self) -> tuple[str, ...]:
        """Files that Spark's sink staged for this topic and that hold one of the keys, as `holding`."""
        return tuple(
            info.path
            for info in self._topics.objects.list(paths.STAGING_DIR)
            if info.path.endswith(".arrow") and self._patiently(info, self._in_staged) is not False
        )

    def _suspects(self, number: int) -> list[tuple[ObjectInfo, bool]]:
        """Files that hold a key or cannot be read, and whether they were read."""
        table = self._table(number)
        log = paths.log_dir(table) + "/"
        found = []
        for info in self._topics.objects.list(table):
            if info.path.startswith(log) or not info.path.endswith(".parquet"):
                continue
            held = self._patiently(info, self._in_file)
            if held is not False:
                found.append((info, held is True))
        return found

    def _dead(self, number: int) -> list[str]:
        """Files with a key that can never be live again.

        What is not live and begins below the head was replaced, or lost its race: an append begins at the
        head, and a rewrite that read one of these files is void since the erasure took them. What could
        not be read may be another rewrite's, at work: only its age tells that nobody will commit it (rule
        8).
        """
        suspects = self._suspects(number)
        oldest = self._topics.objects.store_time() - VACUUM_FLOOR_SECONDS / 4
        reader = self._topics.partition_reader(self._info, number)
        reader.refresh()
        live = {segment.path for segment in reader.segments}
        dead = []
        for info, readable in suspects:
            name = info.path.rsplit("/", 1)[-1]
            first = paths.parse_data_file(name)
            if name in live or first is None or first >= reader.end:
                continue
            if readable or info.modified < oldest:
                dead.append(info.path)
        return dead

    def _erase(self, number: int) -> tuple[list[Segment], int]:
        config = self._info.config
        for _ in range(_TRIES):
            reader = self._topics.partition_reader(self._info, number)
            reader.refresh()
            gone: list[Segment] = []
            new: list[Segment] = []
            started = self._runtime.clock.monotonic()
            try:
                for part in clusters(list(reader.segments)):
                    job = Job(
                        self._table(number), part, config.compression_type, config.segment_bytes
                    )
                    result = rewrite.drop_key(
                        self._topics.objects, self._runtime.ids, job, self._keys
                    )
                    gone += result.gone
                    new += result.new
            except FileMissingError:
                continue  # another job replaced it; look again
            if not gone:
                return [], 0
            log = self._topics.partition_log(self._info, number)
            deadline = self._runtime.clock.monotonic() + _COMMIT_SECONDS
            if log.rewrite(gone, new, drops=True, written_at=started, deadline=deadline):
                return gone, total_records(gone) - total_records(new)
        raise UnavailableError(
            f"{self._table(number)}: other jobs changed its files {_TRIES} times while the key was being "
            "erased; stop maintenance, or try again"
        )

    def _patiently(self, info: ObjectInfo, look: Callable[[ObjectInfo], bool]) -> bool | None:
        """Whether a file holds a key; None if it cannot be read."""
        for attempt in range(_LOOKS):
            try:
                return look(info)
            except FileMissingError:
                return False  # a vacuum was here meanwhile
            except CorruptLogError:
                self._runtime.clock.sleep(_LOOK_SECONDS * 2**attempt)
            now = self._topics.objects.head(info.path)
            if now is None:
                return False
            info = now
        return None

    def _in_file(self, info: ObjectInfo) -> bool:
        table, _, name = info.path.rpartition("/")
        file = DataFile(self._topics.objects, table, name, info.size)
        return rewrite.holds(file, self._keys)

    def _in_staged(self, info: ObjectInfo) -> bool:
        data = self._topics.objects.get(info.path)
        if data is None:
            return False
        try:
            with pa.ipc.open_stream(pa.BufferReader(data)) as stream:
                rows = stream.read_all()
        except (pa.ArrowException, OSError) as error:
            raise CorruptLogError(f"{info.path} is no staged batch ({error})") from error
        mine = pc.and_(pc.equal(rows["topic"], self._info.name), pc.is_in(rows["key"], self._keys))
        return bool(pc.any(mine).as_py())

    def _table(self, number: int) -> str:
        return self._topics.table(self._info, number)
