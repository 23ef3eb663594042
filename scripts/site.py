"""Build the site in build/site from README.md, docs/ and the pages that they link to; a broken link is an error.

mkdocs takes its pages from one directory, and the pages of the repository stand where GitHub shows them. So they are
copied to build/pages with the same relative paths.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from mkdocs.__main__ import cli

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
CONTENTS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    ".pre-commit-hooks.yaml",
    "docs",
    "examples",
    "benchmarks/README.md",
)


def main() -> None:
    """Copy the pages and build the site; warnings are errors."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for name in CONTENTS:
        source, target = ROOT / name, PAGES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    cli(["build", "--strict", "--config-file", str(ROOT / "mkdocs.yml"), *sys.argv[1:]])


if __name__ == "__main__":
    main()
