"""Build klamm's wheel for this system and this Python, with compiled record modules (ADR 13).

Usage: ``python scripts/wheel.py [FOLDER]``; without a folder it goes into ``dist/``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from with_tools import has_compiler

ROOT: Final = Path(__file__).parents[1]
INGREDIENTS: Final = ("pyproject.toml", "README.md", "LICENSE", ".gitignore")


def main() -> None:
    """Build it from a copy: Python would take what is left beside the sources for them, changed or not."""
    into = Path(sys.argv[1] if sys.argv[1:] else ROOT / "dist").resolve()
    if not has_compiler():
        sys.exit("wheel: needs a C compiler and Python's headers (Debian: apt-get install build-essential python3-dev)")
    with tempfile.TemporaryDirectory(prefix="klamm-wheel-") as copy:
        shutil.copytree(ROOT / "src", Path(copy, "src"), ignore=shutil.ignore_patterns("__pycache__"))
        for name in INGREDIENTS:
            shutil.copy(ROOT / name, copy)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        environment = {**os.environ, "HATCH_BUILD_HOOKS_ENABLE": "1"}
        command = [*pip, "--no-build-isolation", "--wheel-dir", into, copy]
        if subprocess.run(command, env=environment, check=False).returncode:
            sys.exit(1)
    newest = max(into.glob("klamm-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    print(f"wheel: {newest}")


if __name__ == "__main__":
    main()
