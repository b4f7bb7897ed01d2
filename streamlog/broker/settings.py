"""How a broker is set up: plain values, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.errors import InvalidRequestError

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """All that a broker can be told. Sizes in bytes, times in seconds unless the name says otherwise."""

    host: str = "127.0.0.1"
    port: int = 9092
    # What clients are told to connect to; by default where we listen.
    advertised_host: str | None = None
    advertised_port: int | None = None
    rack: str | None = None

    # A topic that a client asks for is made, as Kafka's `auto.create.topics.enable`.
    auto_create_topics: bool = True
    num_partitions: int = 1

    max_request_bytes: int = 100 * _MIB
    max_connections: int = 10_000
    max_connections_per_host: int = 5_000
    idle_seconds: float = 600.0
    # Requests of one connection that may be under way at a time; more are left in its socket.
    max_in_flight: int = 64

    # Memory for requests under way, for the tails of partitions, and for one decompressed batch.
    request_memory: int = 256 * _MIB
    tail_memory: int = 256 * _MIB
    max_decompressed: int = 256 * _MIB

    # The longest a commit may take, whatever the client's own timeout.
    commit_seconds: float = 30.0

    # Groups, by Kafka's names: group.initial.rebalance.delay.ms, group.min/max.session.timeout.ms,
    # group.max.size, offset.metadata.max.bytes. Then: how often the coordinator of a group with members
    # gives a sign of life, and how long one without is kept in memory.
    group_initial_rebalance_seconds: float = 0.3
    group_min_session_seconds: float = 6.0
    group_max_session_seconds: float = 1800.0
    group_max_members: int = 1000
    offset_metadata_max: int = 4096
    group_beat_seconds: float = 3.0
    group_idle_seconds: float = 300.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise InvalidRequestError(f"port {self.port} is not valid; allowed are 0 to 65535")
        if self.num_partitions < 1:
            raise InvalidRequestError(
                f"num_partitions {self.num_partitions} is not valid; give at least 1"
            )
