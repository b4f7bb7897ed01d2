"""How often a host may do something: a bucket of tokens a host, filled at a steady rate."""

from __future__ import annotations

_MAX_HOSTS = 10_000


class Buckets:
    """Time is the caller's. Memory is bounded: of very many hosts, those that did least are forgotten."""

    def __init__(self, rate: float, burst: float) -> None:
        """`rate` tokens a second, at most `burst` of them saved."""
        self._rate = rate
        self._burst = burst
        self._hosts: dict[str, tuple[float, float]] = {}

    def left(self, host: str, now: float) -> float:
        """The tokens that a host has now."""
        tokens, at = self._hosts.get(host, (self._burst, now))
        return min(self._burst, tokens + (now - at) * self._rate)

    def take(self, host: str, now: float) -> bool:
        """Takes a token, if there is a whole one."""
        tokens = self.left(host, now)
        if tokens < 1:
            return False
        if len(self._hosts) >= _MAX_HOSTS and host not in self._hosts:
            self._forget(now)
        self._hosts[host] = (tokens - 1, now)
        return True

    def _forget(self, now: float) -> None:
        by_tokens = sorted(self._hosts, key=lambda host: self.left(host, now))
        self._hosts = {host: self._hosts[host] for host in by_tokens[: _MAX_HOSTS // 2]}
