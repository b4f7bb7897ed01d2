"""How a broker is set up: plain values, checked once."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from streamlog.broker.scram import MECHANISMS
from streamlog.errors import InvalidRequestError

_MIB = 1 << 20


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "db.example")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """All that a broker can be told. Sizes in bytes, times in seconds unless the name says otherwise."""

    host: str = "127.0.0.1"
    port: int = 9092
    # What clients are told to connect to; by default where we listen.
    advertised_host: str | None = None
    advertised_port: int | None = None
    rack: str | None = None

    # Metrics and health over HTTP: off without a port. Anybody who reaches the address can read them, so
    # one that is not loopback must be allowed (`insecure` allows it too).
    http_host: str = "127.0.0.1"
    http_port: int | None = None
    http_insecure: bool = False
    # For how long the offsets of logs and the lag of groups, which cost requests, are shown as last seen.
    metrics_seconds: float = 15.0

    # The number that clients know this broker by; without it, the next one that nobody ever had.
    node_id: int | None = None
    # How often a broker shows that it lives, and how many looks in a row without a sign mean that it does
    # not: a dead one is replaced after about their product.
    heartbeat_seconds: float = 1.0
    missed_heartbeats: int = 6
    # Whether this broker maintains the root while it is the controller, and how often.
    maintain: bool = False
    maintain_seconds: float = 60.0
    # How long a broker that is told to stop waits for what is under way.
    drain_seconds: float = 30.0

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

    # TLS: PEM files. `tls_client_ca`: clients need a certificate that one of these authorities signed.
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    # Clients have to log in; True offers all mechanisms.
    sasl: bool | tuple[str, ...] = False
    # Users (names, or principals such as User:CN=admin) who may do everything, whatever the rules say.
    super_users: tuple[str, ...] = ()
    # Listens beyond this machine without TLS, or without knowing who its clients are.
    insecure: bool = False
    # A client has so long from connecting to being logged in, or to its first whole request.
    login_seconds: float = 10.0
    # How long the answer to a failed login takes.
    login_delay_seconds: float = 1.0
    # Failed logins of a host; beyond them it is refused unheard.
    failed_logins_per_second: float = 1.0
    failed_logins_burst: int = 50
    # New connections of a host.
    connections_per_second: float = 500.0
    connections_burst: int = 2_500
    # A request that began to arrive must not stall for longer.
    stall_seconds: float = 30.0
    # How soon a change of users and rules counts.
    security_refresh_seconds: float = 3.0

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms that are offered; none if clients need not log in."""
        if isinstance(self.sasl, tuple):
            return self.sasl
        return MECHANISMS if self.sasl else ()

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise InvalidRequestError(f"port {self.port} is not valid; allowed are 0 to 65535")
        if self.advertised_port is not None and not 1 <= self.advertised_port <= 65_535:
            raise InvalidRequestError(
                f"advertised_port {self.advertised_port} is not valid; allowed are 1 to 65535"
            )
        if self.http_port is not None and not 0 <= self.http_port <= 65_535:
            raise InvalidRequestError(
                f"http_port {self.http_port} is not valid; allowed are 0 to 65535"
            )
        if (
            self.http_port is not None
            and not is_loopback(self.http_host)
            and not (self.http_insecure or self.insecure)
        ):
            raise InvalidRequestError(
                f"metrics on {self.http_host} could be read by anybody who reaches it: give an address of "
                "loopback such as 127.0.0.1, or allow it with http_insecure=true"
            )
        if self.node_id is not None and not 1 <= self.node_id < 1 << 31:
            raise InvalidRequestError(
                f"node_id {self.node_id} is not valid; allowed are 1 to {(1 << 31) - 1}"
            )
        for name in ("heartbeat_seconds", "maintain_seconds", "group_beat_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidRequestError(
                    f"{name} {getattr(self, name)} is not valid; give more than 0"
                )
        if self.missed_heartbeats < 2:
            raise InvalidRequestError(
                f"missed_heartbeats {self.missed_heartbeats} is not valid; give at least 2, or a single "
                "slow request would depose a broker"
            )
        if self.drain_seconds < 0:
            raise InvalidRequestError(
                f"drain_seconds {self.drain_seconds} is not valid; give 0 or more"
            )
        if self.num_partitions < 1:
            raise InvalidRequestError(
                f"num_partitions {self.num_partitions} is not valid; give at least 1"
            )
        self._check_security()

    def _check_security(self) -> None:
        unknown = [name for name in self.mechanisms if name not in MECHANISMS]
        if unknown:
            raise InvalidRequestError(
                f"SASL mechanism {unknown[0]!r} is not offered; allowed are {', '.join(MECHANISMS)}"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequestError("tls_cert and tls_key go together: give both, or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidRequestError("tls_client_ca needs TLS: give tls_cert and tls_key as well")
        if self.loopback or self.insecure:
            return
        missing = [] if self.tls_cert else ["TLS (tls_cert, tls_key)"]
        if not self.mechanisms and self.tls_client_ca is None:
            missing.append("a login of clients (sasl, or tls_client_ca)")
        if missing:
            raise InvalidRequestError(
                f"listening on {self.host!r}, which others than this machine can reach, needs "
                f"{' and '.join(missing)}. Listen on 127.0.0.1, give what is missing, or say insecure to "
                "let everybody who can connect do everything"
            )
