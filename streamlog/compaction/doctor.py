"""What is wrong with a root, or will be, and what to run. Examining changes nothing; repairing is asked for.

The one thing it writes is a probe, removed again: whether the store keeps the promise of put-if-absent, on
which all order rests. A store that breaks it loses records under concurrent writers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.compaction.maintainer import Maintainer
from streamlog.errors import StreamlogError, TopicDeletedError
from streamlog.log.cleaner import Cleaner
from streamlog.log.repair import Repair
from streamlog.log.topics import TopicInfo, Topics
from streamlog.log.versions import VersionLog

Severity = Literal["ok", "warning", "error"]

_ROUNDS = 10
_RACERS = 8
_SKEW_SECONDS = 60.0
_MANY_FILES = 200
_MANY_VERSIONS = 1_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `todo` is what to run, if anything."""

    severity: Severity
    where: str
    what: str
    todo: str = ""


class Doctor:
    """Examines one root."""

    def __init__(self, topics: Topics, runtime: Runtime, maintainer: Maintainer) -> None:
        self._topics = topics
        self._runtime = runtime
        self._maintainer = maintainer

    def examine(
        self, names: Sequence[str] = (), progress: Callable[[int, int], None] | None = None
    ) -> list[Finding]:
        """All findings, the healthy ones too."""
        found = [self._promise(), self._clock()]
        infos = self._topics.chosen(names)
        total = sum(info.partitions for info in infos)
        done = 0
        for info in infos:
            wrong: list[Finding] = []
            files = size = 0
            for number in range(info.partitions):
                try:
                    reader = self._topics.partition_reader(info, number)
                    reader.refresh()
                    files += len(reader.segments)
                    size += sum(segment.size for segment in reader.segments)
                    if reader.version >= 0:
                        wrong += self._partition(info, number, reader.version, len(reader.segments))
                except TopicDeletedError:
                    continue
                except StreamlogError as error:
                    wrong.append(
                        Finding("error", f"{info.name}-{number}", str(error), "see the message")
                    )
                done += 1
                if progress is not None:
                    progress(done, total)
            found += wrong or [
                Finding(
                    "ok", info.name, f"{info.partitions} partitions, {files} files, {size} bytes"
                )
            ]
        found += self._due(names)
        return found

    def repair(self, names: Sequence[str] = ()) -> list[Finding]:
        """Puts back versions that another engine replaced, and removes checkpoints that cannot be read.

        All clients must be stopped.
        """
        found = []
        for info in self._topics.chosen(names):
            for number in range(info.partitions):
                where = f"{info.name}-{number}"
                repair = Repair(
                    self._topics.objects, self._topics.table(info, number), self._runtime
                )
                try:
                    if unreadable := repair.damaged_checkpoints():
                        repair.drop_checkpoints(unreadable)
                        what = f"removed checkpoint {_listed(unreadable)}, which could not be read"
                        found.append(Finding("ok", where, what))
                    damage = repair.find()
                    if damage is None:
                        continue
                    repair.apply(damage)
                    self._topics.partition_reader(info, number).refresh()
                except StreamlogError as error:
                    found.append(Finding("error", where, str(error), "see the message"))
                    continue
                what = f"put version {damage.version} back, which {damage.by.split(' by ')[-1]} replaced"
                if damage.file is not None:
                    what += f": offsets {damage.first} to {damage.end - 1}"
                found.append(Finding("ok", where, what))
        return found

    def _promise(self) -> Finding:
        """Racers for one name: exactly one must win, whoever comes later must lose."""
        objects = self._topics.objects
        broken = 0
        with ThreadPoolExecutor(_RACERS, "streamlog-doctor") as pool:
            for _ in range(_ROUNDS):
                path = f"{paths.PROBE_DIR}/{self._runtime.ids.new()}"

                def race(number: int, path: str = path) -> bool:
                    return objects.put_if_absent(path, str(number).encode(), durable=False)

                try:
                    won = list(pool.map(race, range(_RACERS)))
                    kept = objects.get(path)
                    late = race(_RACERS)
                    winner = str(won.index(True)).encode() if True in won else None
                    broken += won.count(True) != 1 or kept != winner or late
                finally:
                    objects.delete([path])
        if broken:
            return Finding(
                "error",
                objects.uri,
                f"the store broke put-if-absent's promise in {broken} of {_ROUNDS} races: two writers can "
                "win one version, and records are lost",
                "use another store, or one writer at a time",
            )
        return Finding("ok", objects.uri, f"put-if-absent had one winner in {_ROUNDS} races")

    def _clock(self) -> Finding:
        skew = self._topics.objects.store_time() - self._runtime.clock.time_ms() / 1000
        if abs(skew) > _SKEW_SECONDS:
            return Finding(
                "warning",
                "clock",
                f"this machine and the store differ by {skew:.0f} s: records get wrong timestamps",
                "set the machine's clock (NTP)",
            )
        return Finding("ok", "clock", f"differs from the store's by {abs(skew):.1f} s")

    def _partition(
        self, info: TopicInfo, number: int, version: int, files: int
    ) -> Iterator[Finding]:
        where = f"{info.name}-{number}"
        table = self._topics.table(info, number)
        if files > _MANY_FILES:
            yield Finding(
                "warning",
                where,
                f"{files} live files: queries open each",
                f"streamlog compact {info.name}",
            )
        unreadable = Repair(self._topics.objects, table, self._runtime).damaged_checkpoints()
        if unreadable:
            yield Finding(
                "error",
                where,
                f"checkpoint {_listed(unreadable)} cannot be read: other engines fail at it, and no newer "
                "one can be written",
                f"streamlog doctor --repair {info.name}",
            )
            return
        versions, checkpoint = VersionLog(self._topics.objects, table, self._runtime).listing()
        since = version - max(checkpoint, 0)
        if since > _MANY_VERSIONS:
            yield Finding(
                "warning",
                where,
                f"{since} versions since the last checkpoint: opening reads each",
                f"streamlog maintain {info.name}",
            )
        if len(versions) > 2 * _MANY_VERSIONS and checkpoint > 0:
            yield Finding(
                "warning",
                where,
                f"{len(versions)} commit files; those below a checkpoint can go",
                f"streamlog maintain {info.name}",
            )
        dead = Cleaner(self._topics.objects, self._runtime).dead_files(table)
        if dead:
            size = sum(item.size for item in dead)
            yield Finding(
                "warning",
                where,
                f"{len(dead)} files of {size} bytes that no version needs",
                f"streamlog maintain {info.name}",
            )

    def _due(self, names: Sequence[str]) -> Iterator[Finding]:
        late: dict[str, list[int]] = {}
        for item in self._maintainer.plan(names, ("retain",)):
            if item.status == "planned" and item.files_before:
                entry = late.setdefault(item.topic, [0, 0])
                entry[0] += item.files_before
                entry[1] += item.bytes_before
        for topic, (files, size) in sorted(late.items()):
            yield Finding(
                "warning",
                topic,
                f"{files} files of {size} bytes are past retention",
                f"streamlog retention {topic}",
            )


def _listed(versions: Sequence[int]) -> str:
    return ", ".join(str(version) for version in versions)
