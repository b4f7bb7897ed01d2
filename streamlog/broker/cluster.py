"""The brokers of a root: who lives, who leads which partition, who coordinates which group."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.broker.settings import BrokerSettings


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A live broker as clients are told of it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Cluster:
    """The live brokers, as of the last look."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self.me = BrokerInfo(1, settings.host, settings.port, settings.rack)

    @property
    def epoch(self) -> int:
        """Rises whenever a broker comes or goes: the leader epoch of all partitions."""
        return 0

    @property
    def controller(self) -> BrokerInfo:
        """Who runs maintenance."""
        return self.me

    def brokers(self) -> list[BrokerInfo]:
        """The live brokers by id."""
        return [self.me]

    def leader_of(self, topic_id: str, partition: int) -> BrokerInfo:
        """Who serves a partition."""
        return self.me

    def leads(self, topic_id: str, partition: int) -> bool:
        """Whether this broker serves a partition."""
        return self.leader_of(topic_id, partition).node_id == self.me.node_id

    def coordinator_of(self, group: str) -> BrokerInfo:
        """Who serves a group."""
        return self.me

    async def start(self, port: int) -> None:
        """Registers this broker, which listens at `port`."""
        host = self._settings.advertised_host or self._settings.host
        self.me = BrokerInfo(1, host, self._settings.advertised_port or port, self._settings.rack)

    async def stop(self) -> None:
        """Leaves."""
