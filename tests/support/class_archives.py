"""Archives of loaded Java classes, with which the two hundred JVMs of the tests start with half of the CPU time.

The first process that needs an archive writes it below ``.cache/java``, later ones map it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.mirror.spark import class_training
from klamm.mirror.spark.class_archive import (
    DRIVER_OPTIONS,
    LAUNCHER_OPTIONS,
    QUICK,
    VARIABLE,
    find_archive,
)

if TYPE_CHECKING:
    from klamm.class_archive import ClassArchive

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache"


def write_spark_archive() -> ClassArchive:
    """Write the archive of klamm's programs on Spark, unless it exists. Programs started later use it."""
    os.environ[VARIABLE] = str(CACHE / "java")
    archive = find_archive()
    assert archive is not None
    if not archive.is_usable:
        subprocess.run([sys.executable, "-m", class_training.__name__], check=False, stdout=subprocess.DEVNULL)
    return archive


def let_spark_start_quickly() -> None:
    """Set the JVM options of every Spark driver that this process starts, or a child of it."""
    archive = write_spark_archive()
    os.environ[DRIVER_OPTIONS] = " ".join((QUICK[0], *archive.options()))
    os.environ[LAUNCHER_OPTIONS] = " ".join(QUICK)
