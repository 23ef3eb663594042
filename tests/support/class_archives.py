"""Archives of loaded Java classes, with which the JVMs of the tests start with half of the CPU time.

The first process that starts Kafka writes its archive below ``.cache/java``, later ones map it. A long test and the
benchmarks write that of Spark.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.mirror.spark.class_archive import (
    DRIVER_OPTIONS,
    LAUNCHER_OPTIONS,
    OFF,
    QUICK,
    VARIABLE,
    find_archive,
)

if TYPE_CHECKING:
    import pytest

    from klamm.class_archive import ClassArchive

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache"
_TRAINING: Final = "klamm.mirror.spark.class_training"
"""Module that uses Spark as klamm does. Its import takes as long as all others of a worker of pytest-xdist."""
_UNVERIFIED: Final = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
"""JVM options that load classes without a check of their bytecode, a tenth of the CPU time until the first query.

The classes of an archive are checked already.
"""


def write_spark_archive() -> ClassArchive:
    """Write the archive of klamm's programs on Spark, unless it exists. Programs started later use it."""
    offer_spark_archive(is_offered=True)
    archive = find_archive()
    assert archive is not None
    if not archive.is_usable:
        subprocess.run([sys.executable, "-m", _TRAINING], check=False, stdout=subprocess.DEVNULL)
    return archive


def offer_spark_archive(*, is_offered: bool) -> None:
    """Let the programs on Spark that this process starts use the archive, or not.

    ``make test`` does not offer one that an earlier run has left: what it tests would depend on it. To write it takes
    37 s of CPU time, and it saves 4 s per JVM: more than ``make test`` starts.
    """
    os.environ[VARIABLE] = str(CACHE / "java") if is_offered else OFF


def let_spark_start_quickly(environment: pytest.MonkeyPatch) -> None:
    """Set the JVM options of every Spark driver that this process starts, or a child of it, until the end of the patch.

    An archive of Spark is used if there is one, and it is offered. No mirror writes it in the background, as it would
    for a user.
    """
    archive = find_archive()
    if archive is None or not archive.is_usable:
        environment.setenv(VARIABLE, OFF)
    options = _UNVERIFIED if archive is None else archive.options()
    environment.setenv(DRIVER_OPTIONS, " ".join((*QUICK, *options)))
    environment.setenv(LAUNCHER_OPTIONS, " ".join(QUICK))
