"""Tests with processes of their own get a second chance when the machine was too slow, never when a claim was false.

A wait that ran out or a connection that was not there in time may be the machine's fault: such a test runs once more,
and the end of the run names it. An assertion that failed is final at once: what was read from a broker does not become
right by reading again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

_WITH_PROCESSES: Final = {"crash", "interop", "spark"}


def grant_second_chances(items: Iterable[pytest.Item]) -> None:
    """Mark the tests of the directories whose tests start processes."""
    mark = pytest.mark.flaky(reruns=1, rerun_except=["AssertionError", "Failed"])
    for item in items:
        if _WITH_PROCESSES.intersection(item.path.relative_to(item.config.rootpath / "tests").parts[:1]):
            item.add_marker(mark)


def report_second_chances(reporter: pytest.TerminalReporter) -> None:
    """Write a yellow section that names every test that ran twice, with what ended its first run."""
    again = reporter.stats.get("rerun", [])
    if not again:
        return
    reporter.section(f"{len(again)} TESTS NEEDED A SECOND RUN", sep="!", yellow=True, bold=True)
    for report in again:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = str(crash.message if crash else report.longrepr)
        reporter.write_line(f"AGAIN {report.nodeid}: {reason.splitlines()[0]}", yellow=True)
