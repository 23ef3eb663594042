"""Tests with processes of their own get a second chance, as the machine may have been too slow; who fails twice fails.

The end of the run names each that needed it, with what ended its first run: it is to be looked at, not lived with. What
was lost or doubled by a crash, or where each record has to arrive once, is final at once: such a thing does not become
right by trying again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALWAYS_FINAL: Final = ["Failed", "RecordsDifferError"]
"""``Failed`` is what may not be skipped; the other is a difference in a test of exactly once."""
_FINAL: Final = {"interop": _ALWAYS_FINAL, "spark": _ALWAYS_FINAL, "crash": ["AssertionError", *_ALWAYS_FINAL]}
"""By directory of tests that start processes, what ends a test for good."""


def grant_second_chances(items: Iterable[pytest.Item]) -> None:
    """Mark the tests of the directories whose tests start processes."""
    for item in items:
        directory = item.path.relative_to(item.config.rootpath / "tests").parts[0]
        if directory in _FINAL:
            item.add_marker(pytest.mark.flaky(reruns=1, rerun_except=_FINAL[directory]))


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
