"""Processes of a Spark driver: its JVM and its Python workers.

Processes come and go while a driver starts and ends, so each may be gone before the next look at it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator


def jvms(driver: int) -> list[psutil.Process]:
    """Return the JVMs of a driver with this process id.

    ``spark-class`` first asks a JVM of its own for the command line (``org.apache.spark.launcher.Main``). That one ends
    before the driver's JVM starts, and is not returned.
    """
    return [
        process
        for process, command in _descendants(driver)
        if command and Path(command[0]).name == "java" and "org.apache.spark.launcher.Main" not in command
    ]


def workers(driver: int, port: int) -> list[psutil.Process]:
    """Return the driver's Python workers that are connected to a broker's port."""
    processes = []
    for process, command in _descendants(driver):
        if "pyspark.worker" not in command:
            continue
        with contextlib.suppress(psutil.Error):
            if port in {connection.raddr.port for connection in process.net_connections("tcp") if connection.raddr}:
                processes.append(process)
    return processes


def _descendants(driver: int) -> Iterator[tuple[psutil.Process, list[str]]]:
    """Yield the processes below the driver that still live, with their command lines (empty: the process has ended)."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(driver).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                yield process, process.cmdline()
