"""Skipped tests are reported in red at the end of the run, and are failures where CI=true."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def in_ci() -> bool:
    """Whether this run may skip nothing (``CI=true`` or ``CI=1`` in the environment)."""
    return os.environ.get("CI", "").lower() in {"1", "true"}


def skip_loudly(reason: str) -> NoReturn:
    """Skip the calling test or fixture; in CI fail instead."""
    if in_ci():
        pytest.fail(f"{reason} (with CI=true this may not be skipped)", pytrace=False)
    pytest.skip(reason)


def report_skips(reporter: pytest.TerminalReporter) -> None:
    """Write a red section that names every skipped test and why."""
    skipped = reporter.stats.get("skipped", [])
    if not skipped:
        return
    reporter.section(f"{len(skipped)} TESTS DID NOT RUN", sep="!", red=True, bold=True)
    for report in skipped:
        reporter.write_line(f"SKIPPED {report.nodeid}: {_reason(report)}", red=True)


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)
