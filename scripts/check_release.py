"""Check that a tag names the version in the source and that CHANGELOG.md has its section.

Usage: ``python scripts/check_release.py v1.2.3``. Needs nothing but Python.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return what keeps the tag from being released."""
    source = (root / "src" / "klamm" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    version = found.group(1) if found else None
    wrong = []
    if tag != f"v{version}":
        wrong.append(f"the tag is {tag}, the version in src/klamm/__init__.py is {version}")
    if not re.search(
        rf"^## {re.escape(version or '')} \(\d{{4}}-\d\d-\d\d\)$",
        (root / "CHANGELOG.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    ):
        wrong.append(f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)'")
    archive = root / "tests" / "data" / f"klamm-{version}"
    missing = [suffix for suffix in ("tar.xz", "json") if not Path(f"{archive}.{suffix}").exists()]
    if missing:
        wrong.append(f"tests/data has no klamm-{version}.{missing[0]}: run python -m tests.support.data_archive")
    return wrong


if __name__ == "__main__":
    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and the tag
        sys.exit(f"usage: {__doc__}")
    if wrong := problems(sys.argv[1]):
        sys.exit("release: " + "; ".join(wrong))
