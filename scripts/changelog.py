"""Move the files of ``changelog.d/`` into CHANGELOG.md, as the section of a release.

Usage: ``python scripts/changelog.py VERSION [DATE]`` (DATE as 2026-11-23; today by default), or
``python scripts/changelog.py --draft`` to print the section without changing anything.
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).parents[1]
UNRELEASED: Final = "## Unreleased\n\nSee the files in [changelog.d/](changelog.d/).\n"
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")

AREAS: Final = (
    ("Mirror", ("mirror",)),
    ("DataFrames and registration report", ("dataframes", "registrations")),
    ("Policies", ("policies", "policy")),
    ("Command line", ("command", "demo")),
    ("Admin client", ("admin",)),
    ("Clients and client configs", ("client", "clients")),
    ("Tests with klamm", ("embedded", "fault", "pytest")),
    ("Packages", ("containers", "extras", "packages", "wheel")),
)
"""Sections of a release, and the first words of the file names that belong to them."""
OTHERS: Final = "Broker"


class ChangelogError(Exception):
    """The change log cannot be written. The message says why."""


def entries(folder: Path) -> dict[Path, str]:
    """Return the text of each file by its path, in the order of the names.

    Raises:
        ChangelogError: A file is empty or has a heading.
    """
    found = {}
    for path in sorted(folder.glob("*.md")):
        if path.name == "README.md":
            continue
        text = path.read_text(encoding="utf-8").strip()
        if not text or re.search(r"^#", text, re.MULTILINE):
            raise ChangelogError(f"{path.name}: expected a sentence or two without a heading")
        found[path] = text
    return found


def section(version: str, date: datetime.date, found: Mapping[Path, str]) -> str:
    """Return the section of a release: one bullet per file, grouped by area."""
    by_area: dict[str, list[str]] = {}
    for path, text in found.items():
        by_area.setdefault(area_of(path.stem), []).append(as_bullets(text))
    areas = [area for area in (OTHERS, *(name for name, _ in AREAS)) if area in by_area]
    parts = [f"### {area}\n\n" + "\n".join(by_area[area]) + "\n" for area in areas]
    return "\n".join([f"## {version} ({date})\n", *parts])


def area_of(name: str) -> str:
    """Return the heading that an entry belongs to, by the first word of its file name."""
    first = name.partition("-")[0]
    return next((area for area, words in AREAS if first in words), OTHERS)


def as_bullets(text: str) -> str:
    """Return the text as one bullet, or as its own bullets if it is a list; lines that continue one are indented."""
    if not text.startswith("- "):
        text = f"- {text}"
    lines = text.splitlines()
    return "\n".join(line if not line or line.startswith(("- ", "  ")) else f"  {line}" for line in lines)


def release(root: Path, version: str, date: datetime.date) -> None:
    """Write the section of a release into CHANGELOG.md and remove the files that it was made from.

    Raises:
        ChangelogError: The version is malformed or has a section already, or there is nothing to release.
    """
    if not _VERSION.fullmatch(version):
        raise ChangelogError(f"{version}: expected a version such as 1.2.3 or 1.2.3rc1")
    path = root / "CHANGELOG.md"
    before = path.read_text(encoding="utf-8")
    if f"## {version} (" in before:
        raise ChangelogError(f"CHANGELOG.md has a section for {version} already")
    if UNRELEASED not in before:
        raise ChangelogError(f"CHANGELOG.md has no section that reads {UNRELEASED!r}")
    found = entries(root / "changelog.d")
    if not found:
        raise ChangelogError("changelog.d/ has no entry: there is nothing to release")
    path.write_text(before.replace(UNRELEASED, f"{UNRELEASED}\n{section(version, date, found)}"), encoding="utf-8")
    for entry in found:
        entry.unlink()


def main(arguments: Sequence[str]) -> None:
    """Run the command line."""
    today = datetime.datetime.now(tz=datetime.UTC).date()
    try:
        match arguments:
            case ["--draft"]:
                print(section("Draft", today, entries(ROOT / "changelog.d")), end="")
            case [version]:
                release(ROOT, version, today)
            case [version, date]:
                release(ROOT, version, datetime.date.fromisoformat(date))
            case _:
                sys.exit(f"usage: {__doc__}")
    except (ChangelogError, ValueError) as error:
        sys.exit(f"changelog: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
