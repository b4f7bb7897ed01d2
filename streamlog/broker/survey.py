"""How long the logs are and how far groups lag, looked up when somebody asks for metrics.

Each broker tells of the partitions that it leads and the groups that it coordinates, so that all brokers
together tell everything once. A look costs a request a partition and two a group, and is not repeated within
`metrics_seconds`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamlog.consumer.group.admin import Group, Groups
from streamlog.errors import StreamlogError
from streamlog.log.reader import PartitionReader
from streamlog.log.topics import TopicInfo
from streamlog.model import TopicPartition

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

_log = logging.getLogger(__name__)


class Figures(NamedTuple):
    """What a look found: start and end by partition, and lag by group and partition."""

    ranges: Mapping[TopicPartition, tuple[int, int]]
    lags: Mapping[tuple[str, TopicPartition], int]


class Survey(Collector):
    """The last look."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._figures = Figures({}, {})
        self._looked_at: float | None = None
        self._looking = asyncio.Lock()
        self._readers: dict[tuple[str, int], PartitionReader] = {}
        self._groups: dict[str, Group] = {}

    async def refresh(self) -> None:
        """Looks, unless that was done lately."""
        clock = self._broker.runtime.clock
        async with self._looking:
            at = self._looked_at
            if at is not None and clock.monotonic() - at < self._broker.settings.metrics_seconds:
                return
            try:
                self._figures = await self._broker.run(self._look)
            except StreamlogError as error:
                # The old figures stay; `storage_silent_seconds` tells why.
                _log.warning("no figures of logs and groups: %s", error)
            self._looked_at = clock.monotonic()

    def collect(self) -> Iterator[Metric]:
        """The figures as Prometheus' library takes them."""
        figures = self._figures
        place = ("topic", "partition")
        starts = GaugeMetricFamily(
            "streamlog_log_start_offset", "First offset of partitions led here.", labels=place
        )
        ends = GaugeMetricFamily(
            "streamlog_log_end_offset", "Next offset of partitions led here.", labels=place
        )
        for tp, (start, end) in figures.ranges.items():
            starts.add_metric((tp.topic, str(tp.partition)), start)
            ends.add_metric((tp.topic, str(tp.partition)), end)
        lags = GaugeMetricFamily(
            "streamlog_group_lag",
            "Records that a group coordinated here has not committed yet.",
            labels=("group", *place),
        )
        for (group, tp), lag in figures.lags.items():
            lags.add_metric((group, tp.topic, str(tp.partition)), lag)
        return iter((starts, ends, lags))

    def _look(self) -> Figures:
        broker = self._broker
        cluster = broker.cluster
        me = cluster.me.node_id
        infos = {info.name: info for info in broker.topics.list(refresh=True)}
        led = [
            (info, number)
            for info in infos.values()
            for number in range(info.partitions)
            if cluster.leader_of(info.id, number).node_id == me
        ]
        committed = self._committed(me)
        wanted = dict.fromkeys((info.id, number) for info, number in led)
        places = dict(zip(wanted, led, strict=True))
        for offsets in committed.values():
            for tp, (topic_id, _) in offsets.items():
                info = infos.get(tp.topic)
                if info is not None and info.id == topic_id and tp.partition < info.partitions:
                    places.setdefault((info.id, tp.partition), (info, tp.partition))
        ranges = self._ranges(list(places.values()))
        lags: dict[tuple[str, TopicPartition], int] = {}
        for group, offsets in committed.items():
            for tp, (topic_id, offset) in offsets.items():
                found = ranges.get((topic_id, tp.partition))
                if found is not None:
                    lags[group, tp] = max(found[1] - max(offset, found[0]), 0)
        mine = {
            TopicPartition(info.name, number): ranges[info.id, number]
            for info, number in led
            if (info.id, number) in ranges
        }
        return Figures(mine, lags)

    def _ranges(
        self, places: list[tuple[TopicInfo, int]]
    ) -> dict[tuple[str, int], tuple[int, int]]:
        topics = self._broker.topics
        # Partitions that consumers wait for are looked at all the time: what is known of them is new.
        found: dict[tuple[str, int], tuple[int, int]] = {
            (host.info.id, host.partition): (host.start, host.end)
            for host in self._broker.partitions.hosts
            if host.waiters
        }
        readers = {
            (info.id, number): self._readers.get((info.id, number))
            or topics.partition_reader(info, number)
            for info, number in places
            if (info.id, number) not in found
        }

        def look(key: tuple[str, int]) -> tuple[int, int] | None:
            try:
                readers[key].refresh()
            except StreamlogError as error:
                _log.debug("%s: %s", key, error)
                return None
            return readers[key].start, readers[key].end

        looks = zip(readers, topics.each(list(readers), look), strict=True)
        seen = {key: value for key, value in looks if value is not None}
        # One that failed is opened anew next time.
        self._readers = {key: readers[key] for key in seen}
        return found | seen

    def _committed(self, me: int) -> dict[str, dict[TopicPartition, tuple[str, int]]]:
        """By group and partition: the topic's id and the offset."""
        broker = self._broker
        names = [
            name
            for name in Groups(broker.topics, broker.runtime).names()
            if broker.cluster.coordinator_of(name).node_id == me
        ]
        self._groups = {
            name: self._groups.get(name) or Group(name, broker.topics, broker.runtime)
            for name in names
        }
        found = {}
        for name, group in self._groups.items():
            try:
                offsets = group.read()[1]
            except StreamlogError as error:
                _log.debug("group %s: %s", name, error)
                continue
            found[name] = {tp: (item.topic_id, item.offset) for tp, item in offsets.items()}
        return found
