"""Archives of loaded Java classes (class data sharing), with which a JVM starts with half of the CPU time.

The tests start about two hundred JVMs. The first that needs an archive writes it below ``.cache/java``, later ones map
it. A JVM whose class path differs from that of the archive ignores the archive.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.java import require_java
from klamm.mirror.spark.session import write_interpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache"
_QUIET: Final = "-Xlog:cds*=off"
"""JVM option without which the JVM writes a line to stdout for each class that it cannot archive."""
_QUICK_COMPILER: Final = "-XX:TieredStopAtLevel=1"
_SERIAL: Final = "-XX:+UseSerialGC"
_TRAINING_TIMEOUT_S: Final = 180


def path(name: str, class_path: str, java: Path | str) -> Path:
    """Return where the archive of a class path is kept. The name changes with the Java program."""
    program = Path(java).resolve()
    identity = f"{class_path} {program} {program.stat().st_mtime_ns}"
    return CACHE / "java" / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def options(archive: Path) -> Sequence[str]:
    """Return the JVM options that use an archive; none if it has not been written yet."""
    return (f"-XX:SharedArchiveFile={archive}", _QUIET) if archive.is_file() else ()


def write(archive: Path, train: Callable[[Sequence[str]], None]) -> None:
    """Write an archive unless it exists, or could not be written before.

    Args:
        archive: The file.
        train: Runs a JVM with the given options to its orderly end. The archive holds the classes that this JVM loads.
    """
    failed = archive.with_suffix(".failed")
    with lock(archive.with_suffix(".lock")):
        if archive.is_file() or failed.is_file():
            return
        fresh = archive.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        try:
            train((f"-XX:ArchiveClassesAtExit={fresh}", _QUIET))
            fresh.rename(archive)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # without it, all work takes longer
            failed.write_text(f"{error!r}\n")


@contextmanager
def lock(file: Path) -> Iterator[None]:
    """Hold a lock that several test processes share. The file is its name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def let_spark_start_quickly() -> None:
    """Set the JVM options of every Spark driver that this process starts, or a child of it."""
    home = require_java()
    pyspark = importlib.util.find_spec("pyspark")
    assert pyspark is not None
    archive = path("spark", str(pyspark.origin), home / "bin" / "java")
    write(archive, lambda options: _run_spark_once(home, (_QUICK_COMPILER, _SERIAL, *options)))
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join((_QUICK_COMPILER, *options(archive)))
    os.environ["SPARK_LAUNCHER_OPTS"] = f"{_QUICK_COMPILER} {_SERIAL}"


def _run_spark_once(home: Path, jvm_options: Sequence[str]) -> None:
    """Run the example with a batch and a stream. The pipe ends with the JVM, which outlives the example a little."""
    example = ROOT / "examples" / "masked_stream.py"
    with tempfile.TemporaryDirectory(prefix="klamm-spark-") as directory:
        python = str(write_interpreter(Path(directory)))
        more = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": python, "SPARK_SUBMIT_OPTS": " ".join(jvm_options)}
        command = [sys.executable, str(example)]
        subprocess.run(
            command, env={**os.environ, **more}, check=True, capture_output=True, timeout=_TRAINING_TIMEOUT_S
        )
