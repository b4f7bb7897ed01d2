"""`connect`, and the `Log` it returns: one root with its topics, producers and consumers.

C1  A root is streamlog's when, and only when, it holds `_streamlog.json`; it is written by put-if-absent
    into a root that is empty or absent, never into a folder that holds something else.
C2  A root of a newer format is refused before anything else of it is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from streamlog import display, paths
from streamlog.clock import Runtime
from streamlog.errors import ClosedError, InvalidRequestError, RootError
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.topics import TopicDescription, TopicInfo, Topics
from streamlog.schema import FORMAT_VERSION
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects

if TYPE_CHECKING:
    # Loaded when they are used: listing topics needs neither role, and a shell user waits for it.
    from streamlog.compaction.doctor import Doctor
    from streamlog.compaction.engine import Engine
    from streamlog.compaction.erase import Eraser
    from streamlog.compaction.lease import Lease
    from streamlog.compaction.maintainer import Maintainer
    from streamlog.compaction.round import Round
    from streamlog.consumer.consumer import Consumer
    from streamlog.consumer.group.admin import Group, Groups, GroupSummary
    from streamlog.producer.producer import Producer

ROOT_VARIABLE = "STREAMLOG_ROOT"
_DRAIN_SECONDS = 30.0


def connect(
    root: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, object] | None = None,
    *,
    create: bool = True,
    runtime: Runtime | None = None,
) -> Log:
    """Opens the log at `root`, a local path or `s3://…`; by default the one in `STREAMLOG_ROOT`.

    An empty or absent root is made, unless `create` is false. `storage_options` are those of the
    deltalake library (`aws_access_key_id`, …); the usual environment variables count as well.

    >>> log = connect("memory://connect-example")
    >>> log.create_topic("orders", partitions=4).partitions
    4
    >>> [info.name for info in log.topics()]
    ['orders']
    """
    chosen = os.environ.get(ROOT_VARIABLE) if root is None else os.fspath(root)
    if not chosen:
        raise RootError(
            f"no root given: call connect('./data') or connect('s3://bucket/prefix'), or set "
            f"{ROOT_VARIABLE}"
        )
    runtime = runtime or Runtime()
    objects = open_objects(chosen, storage_options, runtime)
    cluster_id = check_root(objects, runtime, create=create)
    return Log(objects, runtime, cluster_id)


class TopicList(list[TopicInfo]):
    """The topics of a log, by name."""

    def to_arrow(self) -> pa.Table:
        """One row a topic, ready for a DataFrame: `log.topics().to_arrow().to_pandas()`."""
        return pa.table(
            {
                "topic": pa.array([info.name for info in self], pa.string()),
                "id": pa.array([info.id for info in self], pa.string()),
                "partitions": pa.array([info.partitions for info in self], pa.int32()),
                "config": pa.array(
                    [list(info.config.to_dict().items()) for info in self],
                    pa.map_(pa.string(), pa.string()),
                ),
                "created_at": pa.array(
                    [info.created_at for info in self], pa.timestamp("us", tz="UTC")
                ),
            }
        )

    def _repr_html_(self) -> str:
        return display.topics_html(self)


class GroupList(list["GroupSummary"]):
    """The consumer groups of a log, by name."""

    def to_arrow(self) -> pa.Table:
        """One row a group, ready for a DataFrame."""
        return pa.table(
            {
                "group": pa.array([group.name for group in self], pa.string()),
                "state": pa.array([group.state for group in self], pa.string()),
                "members": pa.array([group.members for group in self], pa.int32()),
                "generation": pa.array([group.generation for group in self], pa.int64()),
            }
        )

    def _repr_html_(self) -> str:
        return display.groups_html(self)


class Log:
    """One root: its topics, and producers and consumers for them. Close it, or use it with `with`."""

    def __init__(self, objects: Objects, runtime: Runtime, cluster_id: str) -> None:
        self.root = objects.uri
        self.storage_options = dict(objects.storage_options)
        self.cluster_id = cluster_id
        self._runtime = runtime
        self._checkpointer = Checkpointer(objects)
        self._topics = Topics(objects, runtime, self._checkpointer)
        self._closed = False

    # topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        if_not_exists: bool = False,
    ) -> TopicInfo:
        """Makes a topic; `config` has Kafka's names.

        >>> log = connect("memory://create-example")
        >>> info = log.create_topic("clicks", partitions=2, config={"retention.ms": 86_400_000})
        >>> info.config.to_dict()
        {'retention.ms': '86400000'}
        """
        return self._open().create(name, partitions, config, if_not_exists)

    def topics(self) -> TopicList:
        """All topics, freshly looked up."""
        return TopicList(self._open().list(refresh=True))

    def topic(self, name: str) -> TopicInfo:
        """One topic as the registry has it."""
        return self._open().get(name, refresh=True)

    def describe(self, name: str) -> TopicDescription:
        """One topic with its partitions: offsets, records, bytes, files, versions.

        >>> log = connect("memory://describe-example")
        >>> _ = log.create_topic("clicks")
        >>> with log.producer() as producer:
        ...     _ = producer.send("clicks", b"hello").result()
        >>> log.describe("clicks").partitions[0].end
        1
        """
        return self._open().describe(name)

    def alter_topic(self, name: str, config: Mapping[str, object | None]) -> TopicInfo:
        """Changes settings; None puts one back to its default."""
        return self._open().alter(name, config)

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Raises the number of partitions to `total`; keys map to partitions anew, as in Kafka."""
        return self._open().add_partitions(name, total)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic with all its records. Clients that still use it get an error."""
        self._open().delete(name)

    def truncate(self, name: str, partition: int, before_offset: int) -> int:
        """Removes the records of a partition below an offset; returns the new log start."""
        return self._open().truncate(name, partition, before_offset)

    # clients

    def producer(self, **settings: object) -> Producer:
        """A producer; its settings are those of `ProducerSettings` (`acks`, `linger_ms`, …).

        >>> log = connect("memory://producer-example")
        >>> _ = log.create_topic("orders")
        >>> with log.producer(acks="all") as producer:
        ...     ack = producer.send("orders", key=b"user-1", value=b"{}")
        ...     ack.result().offset
        0
        """
        from streamlog.producer.producer import Producer
        from streamlog.producer.settings import ProducerSettings

        return Producer(self._open(), ProducerSettings.from_kwargs(**settings), self._runtime)

    def consumer(self, *topics: str, **settings: object) -> Consumer:
        """A consumer, subscribed to `topics` if any are named; see `ConsumerSettings`.

        >>> log = connect("memory://consumer-example")
        >>> _ = log.create_topic("orders")
        >>> with log.producer() as producer:
        ...     _ = producer.send("orders", b"first"), producer.send("orders", b"second")
        >>> with log.consumer("orders", auto_offset_reset="earliest") as consumer:
        ...     [record.value for record in consumer.poll(timeout_ms=1000)]
        [b'first', b'second']
        """
        from streamlog.consumer.consumer import Consumer
        from streamlog.consumer.settings import ConsumerSettings

        consumer = Consumer(self._open(), ConsumerSettings.from_kwargs(settings), self._runtime)
        if topics:
            try:
                consumer.subscribe(topics)
            except BaseException:
                consumer.close()
                raise
        return consumer

    # groups

    def groups(self) -> GroupList:
        """All consumer groups: name, state, members, generation."""
        return GroupList(self._groups().list())

    def group(self, name: str) -> Group:
        """One consumer group: describe, lag, offsets, reset, delete.

        >>> log = connect("memory://group-example")
        >>> _ = log.create_topic("orders")
        >>> with log.producer() as producer:
        ...     _ = producer.send("orders", b"first").result()
        >>> with log.consumer("orders", group_id="billing", auto_offset_reset="earliest") as consumer:
        ...     len(consumer.poll(timeout_ms=1000))
        1
        >>> log.group("billing").lag().to_pylist()[0]["lag"]
        0
        """
        return self._groups().get(name)

    def expire_groups(
        self, retention_ms: int = 7 * 86_400_000, *, dry_run: bool = False
    ) -> list[str]:
        """Deletes groups that have no members and committed nothing for so long; their names."""
        return list(self._groups().expire(retention_ms, dry_run=dry_run))

    def _groups(self) -> Groups:
        from streamlog.consumer.group.admin import Groups

        return Groups(self._open(), self._runtime)

    # maintenance

    def maintainer(
        self, engine: Engine | None = None, *, controller_epoch: int | None = None
    ) -> Maintainer:
        """Retention, compaction and cleaning of this log; `engine` does the heavy part, here by default.

        Brokers give their `controller_epoch`: what a deposed controller still commits is then refused.

        >>> log = connect("memory://maintainer-example")
        >>> _ = log.create_topic("clicks")
        >>> with log.producer(linger_ms=0) as producer:
        ...     for number in range(40):
        ...         _ = producer.send("clicks", b"a file each").result()
        >>> [done.files_after for done in log.maintainer().run()]
        [1]
        """
        from streamlog.compaction.maintainer import Maintainer

        return Maintainer(
            self._open(),
            self._runtime,
            engine,
            lambda: self._groups().committed(),
            controller_epoch,
        )

    def maintain(
        self,
        topics: Sequence[str] = (),
        *,
        engine: Engine | None = None,
        group_retention_ms: int = 7 * 86_400_000,
        progress: Callable[[int, int], None] | None = None,
        controller_epoch: int | None = None,
    ) -> Round:
        """One round of all that is due: retention, compaction, cleaning; of the whole log, old groups too.

        >>> log = connect("memory://maintain-example")
        >>> _ = log.create_topic("clicks")
        >>> log.maintain().numbers()["failures"]
        0
        """
        from streamlog.compaction.round import Round

        started = self._runtime.clock.monotonic()
        # A disk that was unmounted is an empty folder, and all would look well for ever.
        check_root(self._open().objects, self._runtime, create=False)
        maintainer = self.maintainer(engine, controller_epoch=controller_epoch)
        outcomes = maintainer.run(topics, progress=progress)
        cleaned = maintainer.clean(topics)
        expired: list[str] = []
        if not topics:
            expired = self.expire_groups(group_retention_ms)
            self.purge()
        seconds = self._runtime.clock.monotonic() - started
        return Round(outcomes, cleaned, expired, self._runtime.clock.time_ms(), seconds)

    def eraser(self, topic: str, keys: Iterable[bytes | str]) -> Eraser:
        """Erases keys of a topic from the log and from its storage."""
        from streamlog.compaction.erase import Eraser

        wanted = [key.encode() if isinstance(key, str) else key for key in keys]
        if not wanted:
            raise InvalidRequestError("no key given: name at least one key to erase")
        return Eraser(self._open(), self._runtime, self.topic(topic), wanted)

    def doctor(self) -> Doctor:
        """Examines this root: `log.doctor().examine()`."""
        from streamlog.compaction.doctor import Doctor

        return Doctor(self._open(), self._runtime, self.maintainer())

    def lease(self, ttl: float = 180.0, controller: bool = False) -> Lease:
        """The claim to be the one maintenance loop of this root."""
        from streamlog.compaction.lease import Lease

        return Lease(self._open().objects, self._runtime, ttl, controller=controller)

    def purge(self) -> None:
        """Removes the last files of topics that were deleted hours ago."""
        self._open().purge()

    def admin(self) -> Topics:
        """The topics with the ways to their partitions: for brokers and jobs, not for everyday use."""
        return self._open()

    # the end

    def close(self) -> None:
        """Waits for checkpoints under way. Producers and consumers are closed by who made them."""
        self._closed = True
        self._checkpointer.drain(_DRAIN_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Log {self.root}>"

    def _repr_html_(self) -> str:
        return display.topics_html(self.topics())

    def _open(self) -> Topics:
        if self._closed:
            raise ClosedError("this log is closed; connect again")
        return self._topics


def check_root(objects: Objects, runtime: Runtime, *, create: bool) -> str:
    """The cluster id of a root of ours, made if it is empty."""
    data = objects.get(paths.MARKER)
    if data is None:
        if not create:
            raise RootError(
                f"there is no log at {objects.uri}: {paths.MARKER} is missing. Check the path; to make "
                "a log there, create a topic in it"
            )
        stranger = next(iter(objects.list("")), None)
        # Another client may be making this very root: then the marker is there by now.
        if stranger is not None and objects.head(paths.MARKER) is None:
            raise RootError(
                f"{objects.uri} is not a root of streamlog: it has no {paths.MARKER} but holds "
                f"{stranger.path}. Give an empty or a new place, or the root itself, not a folder in it"
            )
        marker = {"format_version": FORMAT_VERSION, "cluster_id": runtime.ids.new()}
        fresh = (json.dumps(marker) + "\n").encode()
        objects.put_if_absent(paths.MARKER, fresh, durable=True)
        data = objects.get(paths.MARKER)
    return _read_marker(objects.uri, data)


def _read_marker(uri: str, data: bytes | None) -> str:
    try:
        marker = json.loads(data or b"")
        version, cluster_id = int(marker["format_version"]), str(marker["cluster_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise RootError(
            f"{uri}/{paths.MARKER} is not readable ({error}): this is not a root of streamlog, or the "
            "file is damaged; restore it from a backup"
        ) from error
    if version > FORMAT_VERSION:
        raise RootError(
            f"{uri} has format version {version}, and this streamlog reads up to {FORMAT_VERSION}: "
            "upgrade streamlog"
        )
    if version < 1:
        raise InvalidRequestError(f"{uri} has format version {version}, which never was")
    return cluster_id
