"""Table of the results of client libraries' test suites."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from scripts.client_suites import PAGE, ROOT, SUITES, Result, Suite, is_worse, row, with_row
from scripts.with_tools import has_go

if TYPE_CHECKING:
    from pathlib import Path

RESULT = Result.of({"a": "PASS", "b": "FAILED", "c": "PASSED", "d": "SKIP"})
SUITE = Suite(name="lib", version="1.0", run=lambda _: RESULT, remark="b needs docker")
EMPTY = (
    "# Page\n\n| suite | version | passed | failed | skipped | what differs and why |\n|---|---|---|---|---|---|\n"
    "\nText.\n"
)


def test_row_of_a_suite_is_added_and_then_replaced() -> None:
    page = with_row(EMPTY, SUITE, row(SUITE, RESULT))
    assert "|---|\n| lib | 1.0 | 2 | 1 | 1 | b needs docker |\n\nText." in page
    newer = replace(SUITE, version="1.1")
    assert with_row(page, newer, row(newer, RESULT)) == page.replace("1.0", "1.1")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({"a": "P", "b": "F", "c": "P"}, False),
        ({"a": "P", "b": "P", "c": "P"}, False),
        ({"a": "P", "b": "F", "c": "S"}, True),
        ({"a": "P", "b": "F", "c": "P", "d": "F"}, True),
    ],
)
def test_fewer_passed_or_more_failed_tests_are_worse(outcomes: dict[str, str], expected: bool) -> None:
    earlier = row(SUITE, RESULT)
    assert is_worse(earlier, SUITE, Result.of(outcomes)) is expected
    assert not is_worse(earlier, replace(SUITE, version="2.0"), Result.of(outcomes))


def test_page_has_a_row_for_each_suite() -> None:
    lines = PAGE.read_text(encoding="utf-8").split("\n")
    for suite in SUITES:
        (line,) = (line for line in lines if line.startswith(f"| {suite.name} |"))
        assert line.split("|")[2].strip() == suite.version
        assert line.endswith(f"{suite.remark} |")


@pytest.mark.process
@pytest.mark.parametrize(
    ("version", "is_enough"),
    [("go1.19.8", False), ("go1.21.0", True), ("go1.26.8", True), ("go2.0", True), ("devel", False)],
)
def test_go_version_must_support_toolchain_downloads(
    version: str, is_enough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_go()
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho 'go version {version} linux/amd64'\n", encoding="utf-8")
    go.chmod(0o755)
    assert has_go() is is_enough


def test_soak_installs_go_for_the_suites() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").split("\n")
    assert "\t$(WITH_GO) python -m scripts.client_suites" in lines
    assert "WITH_GO := $(PYTHON_BIN)/python scripts/with_tools.py go --" in lines
