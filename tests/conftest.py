"""Rules for the whole test run: a skipped test is never silent, and on CI it is a failure.

CI is recognised by the environment variable `CI` being set to anything but "", "0" or "false".
"""

from __future__ import annotations

import os

import pytest


def _on_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _skips(config: pytest.Config) -> list[tuple[str, str]]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return []
    found = []
    for report in reporter.stats.get("skipped", []):
        # A skip's longrepr is (file, line, reason); a plugin may replace it by plain text.
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        found.append((report.nodeid, reason.removeprefix("Skipped: ")))
    return found


# First, so that the summary and the process's exit code already see the changed status.
@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _on_ci() and session.exitstatus == pytest.ExitCode.OK and _skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    skips = _skips(config)
    if not skips:
        return
    verdict = "a failure, because CI is set" if _on_ci() else "would fail with CI=true"
    terminalreporter.section(f"{len(skips)} skipped: {verdict}", red=_on_ci(), yellow=not _on_ci())
    for nodeid, reason in skips:
        terminalreporter.write_line(f"{nodeid}: {reason}")
