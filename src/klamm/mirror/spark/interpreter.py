"""Launcher script of the Python interpreter for Spark workers on this machine."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

_SCRIPT: Final = """#!/bin/sh
# Spark puts an archive of pyspark before the installed package; what is in an archive is compiled in every process.
PYTHONPATH={path} PYTHONWARNINGS={warnings} exec {python} "$@"
"""


def write_interpreter(directory: Path) -> Path:
    """Write a script that starts this interpreter with the module path of this process, and return its path.

    Use it only for workers on this machine, because module paths differ on other machines.
    """
    script = directory / "python"
    path = os.pathsep.join(entry for entry in sys.path if entry and Path(entry).is_dir())
    # pyspark warns about each pandas version newer than itself. The workers do not use pandas.
    warnings = os.environ.get("PYTHONWARNINGS", "ignore::FutureWarning")
    text = _SCRIPT.format(path=shlex.quote(path), warnings=shlex.quote(warnings), python=shlex.quote(sys.executable))
    script.write_text(text)
    script.chmod(0o700)
    return script
