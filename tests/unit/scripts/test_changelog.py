"""scripts/changelog.py: the entries of changelog.d/ become the section of a release."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts import load_script

ROOT = Path(__file__).resolve().parents[3]
DATE = datetime.date(2026, 11, 23)
changelog: Any = load_script("changelog")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a change log and three entries."""
    (tmp_path / "CHANGELOG.md").write_text(f"# Changes\n\n{changelog.UNRELEASED}")
    entries = tmp_path / "changelog.d"
    entries.mkdir()
    (entries / "README.md").write_text("One file per change.\n")
    (entries / "quotas.md").write_text("Quotas are kept.\nIn bytes.\n")
    (entries / "mirror-log.md").write_text("- `klamm mirror` logs less.\n- It logs earlier.\n")
    (entries / "acls.md").write_text("ACLs are served.\n")
    return tmp_path


def test_a_release_gathers_the_entries_by_area_and_removes_their_files(project: Path) -> None:
    # when
    changelog.release(project, "1.2.0", DATE)
    # then
    assert (project / "CHANGELOG.md").read_text() == (
        f"# Changes\n\n{changelog.UNRELEASED}\n"
        "## 1.2.0 (2026-11-23)\n\n"
        "### Broker\n\n- ACLs are served.\n- Quotas are kept.\n  In bytes.\n\n"
        "### Mirror\n\n- `klamm mirror` logs less.\n- It logs earlier.\n"
    )
    assert [path.name for path in (project / "changelog.d").iterdir()] == ["README.md"]


def test_a_later_release_comes_before_the_earlier_one(project: Path) -> None:
    # given
    changelog.release(project, "1.2.0", DATE)
    (project / "changelog.d" / "fetch.md").write_text("Fetch is faster.\n")
    # when
    changelog.release(project, "1.3.0rc1", DATE)
    # then
    headings = [line for line in (project / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings == ["## Unreleased", "## 1.3.0rc1 (2026-11-23)", "## 1.2.0 (2026-11-23)"]


@pytest.mark.parametrize(("version", "why"), [("1.2", "expected a version"), ("v1.2.0", "expected a version")])
def test_a_malformed_version_is_refused(project: Path, version: str, why: str) -> None:
    with pytest.raises(changelog.ChangelogError, match=why):
        changelog.release(project, version, DATE)


def test_a_version_is_released_once_and_with_something_in_it(project: Path) -> None:
    changelog.release(project, "1.2.0", DATE)
    with pytest.raises(changelog.ChangelogError, match=r"has a section for 1\.2\.0 already"):
        changelog.release(project, "1.2.0", DATE)
    with pytest.raises(changelog.ChangelogError, match="nothing to release"):
        changelog.release(project, "1.2.1", DATE)


def test_an_entry_with_a_heading_is_refused(project: Path) -> None:
    (project / "changelog.d" / "acls.md").write_text("## ACLs\n\nThey are served.\n")
    with pytest.raises(changelog.ChangelogError, match=r"acls\.md"):
        changelog.release(project, "1.2.0", DATE)


def test_the_entries_of_this_project_can_be_released() -> None:
    found = changelog.entries(ROOT / "changelog.d")
    text = changelog.section("1.0.0", DATE, found)
    assert all(line.startswith(("#", "-", "  ")) or not line for line in text.splitlines())
    assert changelog.UNRELEASED in (ROOT / "CHANGELOG.md").read_text()
