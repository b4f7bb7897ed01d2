"""Waiting between attempts at a commit: full jitter, growing, within one deadline."""

from __future__ import annotations

from streamlog.clock import Runtime
from streamlog.errors import DeliveryTimeoutError, UnknownOutcomeError

_FIRST = 0.001
_LONGEST_AFTER_LOSS = 0.05
_LONGEST_AFTER_FAILURE = 1.0


class Backoff:
    """Waits between attempts, with jitter, within a deadline."""

    def __init__(self, runtime: Runtime, deadline: float | None, what: str) -> None:
        self._runtime = runtime
        self._deadline = deadline
        self._what = what
        self._tries = 0

    def after_loss(self) -> None:
        """Another writer won the version."""
        self._wait(_LONGEST_AFTER_LOSS, "other writers won every version meanwhile; not written")

    def after_failure(self, error: Exception, *, unclear: bool = False) -> None:
        """The store did not answer; `unclear` when the commit itself may have taken effect."""
        if unclear:
            why = f"it may or may not have been written; last answer: {error}"
        else:
            why = f"not written; last answer: {error}"
        self._wait(_LONGEST_AFTER_FAILURE, why, unclear)

    def _wait(self, longest: float, why: str, unclear: bool = False) -> None:
        clock = self._runtime.clock
        limit = min(longest, _FIRST * 2 ** min(self._tries, 16))
        seconds = self._runtime.rng.uniform(0, limit)
        self._tries += 1
        if self._deadline is not None and clock.monotonic() + seconds > self._deadline:
            kind = UnknownOutcomeError if unclear else DeliveryTimeoutError
            raise kind(
                f"{self._what} was not confirmed in time after {self._tries} attempts: {why}"
            )
        clock.sleep(seconds)
