"""Where and with what the numbers were measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]

from tests.support.java import KAFKA_RELEASE, java_executable

_PACKAGES: Final = ("klamm", "pyspark", "pyarrow", "kafka-python", "uvloop", "google-crc32c", "cramjam", "structlog")
_GIBI: Final = 1024**3


def describe_machine() -> dict[str, Any]:
    """Return model, cores, memory, system and versions."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / _GIBI, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": _java_version(),
        "apache_kafka": KAFKA_RELEASE,
        "packages": {name: version for name in _PACKAGES if (version := _package_version(name)) is not None},
        "commit": _commit(),
        "load_before": os.getloadavg()[0],
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _java_version() -> str:
    said = subprocess.run([java_executable(), "-version"], capture_output=True, text=True, check=True).stderr
    return said.splitlines()[0]


def _package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return said.stdout.strip() or None
