"""One round of maintenance: what it did, in figures for people, scripts and Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streamlog.compaction.maintainer import Cleaned, Outcome


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did, when it ended (milliseconds) and how long it took."""

    outcomes: Sequence[Outcome]
    cleaned: Sequence[Cleaned]
    expired: Sequence[str]
    ended_ms: int
    seconds: float

    @property
    def failures(self) -> list[str]:
        """Messages of what went wrong."""
        steps = [item.note for item in self.outcomes if item.status == "failed"]
        return steps + [item.note for item in self.cleaned if item.note]

    def numbers(self) -> dict[str, float]:
        """The round in figures."""
        done = [item for item in self.outcomes if item.status == "done"]
        rewritten = [item for item in done if item.action != "retain"]
        return {
            "steps": len(done),
            "steps_void": sum(item.status == "void" for item in self.outcomes),
            "failures": len(self.failures),
            "files_replaced": sum(item.files_before for item in done),
            "files_written": sum(item.files_after for item in done),
            "bytes_read": sum(item.bytes_before for item in rewritten),
            "bytes_written": sum(item.bytes_after for item in rewritten),
            "records_dropped": sum(item.records_dropped for item in done),
            "checkpoints": sum(item.checkpoint is not None for item in self.cleaned),
            "commits_cleaned": sum(item.commits for item in self.cleaned),
            "files_vacuumed": sum(item.files for item in self.cleaned),
            "groups_expired": len(self.expired),
            "seconds": round(self.seconds, 3),
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        body: dict[str, Any] = dict(self.numbers())
        body["outcomes"] = [asdict(item) for item in self.outcomes]
        body["groups"] = list(self.expired)
        body["errors"] = self.failures
        return body

    def to_prometheus(self) -> str:
        """Prometheus' text format."""
        lines = []
        figures = self.numbers() | {"last_run_timestamp_seconds": self.ended_ms // 1000}
        for name, value in figures.items():
            metric = f"streamlog_maintenance_{name}"
            lines += [f"# TYPE {metric} gauge", f"{metric} {value}"]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        numbers = self.numbers()
        return (
            f"{numbers['steps']} steps: {numbers['files_replaced']} files became "
            f"{numbers['files_written']}, {numbers['records_dropped']} records dropped; "
            f"{numbers['checkpoints']} checkpoints, {numbers['commits_cleaned']} commit files and "
            f"{numbers['files_vacuumed']} data files cleaned; {self.seconds:.1f} s"
        )
