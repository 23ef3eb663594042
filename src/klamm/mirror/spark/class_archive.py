"""Class archive of Spark, for all programs of klamm that start Spark: JVM and session start in half the time.

The first program that starts Spark without an archive also starts ``class_training`` in a process of its own, which
writes the archive when the machine is otherwise idle.

The environment variable ``KLAMM_CLASS_ARCHIVE`` is the directory of the archives, or ``off``. Default:
``klamm/java`` in ``XDG_CACHE_HOME``, or in ``~/.cache``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.find_spark_home import _find_spark_home

from klamm.class_archive import ClassArchive
from klamm.java import require_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE: Final = "KLAMM_CLASS_ARCHIVE"
OFF: Final = "off"
DRIVER_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Environment variable with JVM options of Spark's driver. ``spark-submit`` puts them after those in the settings."""
LAUNCHER_OPTIONS: Final = "SPARK_LAUNCHER_OPTS"
QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that lives for seconds. The archive serves JVMs with other options, too."""
BACKGROUND: Final = "--background"
"""Flag of ``class_training``."""
_TRAINING: Final = "klamm.mirror.spark.class_training"
_MIN_MEMORY_BYTES: Final = 2 << 30
"""Memory that must be available. Writing an archive takes up to 1.1 GB for some seconds."""
_MIN_DISK_BYTES: Final = 1 << 30


def find_archive() -> ClassArchive | None:
    """Return the archive of this Spark and this Java.

    None: it is turned off, the user has no home directory, or the class path has entries that no archive can have.

    Raises:
        JavaNotFoundError: There is no Java for Spark.
    """
    directory = _directory(os.environ)
    home = Path(_find_spark_home())
    try:
        if directory is None or _has_own_class_path(home, os.environ):
            return None
        program = (require_java() / "bin" / "java").resolve()
        files = [(file, file.stat()) for file in (program, *sorted((home / "jars").iterdir()))]
    except OSError:
        return None
    # Layers of an image keep the time of a file in whole seconds. So does Java in its own check of the archive.
    return ClassArchive(directory, "spark", (f"{file} {stat.st_size} {int(stat.st_mtime)}" for file, stat in files))


def _has_own_class_path(home: Path, environ: Mapping[str, str]) -> bool:
    """Return whether Spark's class path has more than its jars. Java archives no class path with directories in use."""
    configured = (environ.get(name) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"))
    directories = (environ.get("SPARK_CONF_DIR") or home / "conf", *(name for name in configured if name))
    return "SPARK_DIST_CLASSPATH" in environ or any(
        directory.is_dir() and any(directory.iterdir()) for directory in map(Path, directories)
    )


def _directory(environ: Mapping[str, str]) -> Path | None:
    value = environ.get(VARIABLE, "")
    if value:
        return None if value == OFF else Path(value)
    cache = environ.get("XDG_CACHE_HOME", "")
    if not cache:
        try:
            cache = str(Path.home() / ".cache")
        except RuntimeError:
            return None
    return Path(cache) / "klamm" / "java"


@contextlib.contextmanager
def quick_start() -> Iterator[None]:
    """Set the environment in which Spark's JVM starts quickly, while it starts.

    The archive is used if there is one. ``SPARK_HOME`` saves ``spark-submit`` a Python process that looks for it.
    Options that the user has set are kept.
    """
    archive = find_archive()
    own = os.environ.get(DRIVER_OPTIONS, "")
    values = {"SPARK_HOME": _find_spark_home(), LAUNCHER_OPTIONS: " ".join(QUICK)}
    changes = {key: value for key, value in values.items() if key not in os.environ}
    if archive is not None and "-XX:SharedArchiveFile" not in own and (options := archive.options()):
        changes[DRIVER_OPTIONS] = " ".join((*([own] if own else []), *(f'"{option}"' for option in options)))
    before = {key: os.environ.get(key) for key in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def write_in_background() -> None:
    """Start a process that writes the archive, unless there is one, or memory or disk space may not suffice."""
    archive = find_archive()
    if archive is None or archive.is_usable or archive.has_failed or not _has_room(archive.path.parent):
        return
    process = subprocess.Popen(  # noqa: S603 - this Python
        [sys.executable, "-P", "-m", _TRAINING, BACKGROUND],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    threading.Thread(target=process.wait, name="class-archive", daemon=True).start()


def _has_room(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return (
            os.access(directory, os.W_OK)
            and shutil.disk_usage(directory).free >= _MIN_DISK_BYTES
            and (available_memory() >= _MIN_MEMORY_BYTES)
        )
    except OSError:
        return False


def available_memory() -> int:
    """Return the bytes of memory that are available to this process, by the kernel and by its control group."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        available = int(text.partition("MemAvailable:")[2].split()[0]) << 10
    with contextlib.suppress(OSError, ValueError):  # in a container, its own group is at the root
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        available = min(available, limit - int((group / "memory.current").read_text(encoding="ascii")))
    return available
