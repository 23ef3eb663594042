"""The JVM of Spark's driver, as a child process that signals to the mirror do not reach.

A service manager sends SIGTERM to every process of the mirror, a terminal sends Ctrl-C to its process group. A JVM that
ends on such a signal takes its tasks with it, and records in flight are copied again. So the JVM runs in a session of
its own, and it and its Python workers ignore SIGTERM. The mirror stops them in order. When the mirror itself is killed,
the kernel closes the JVM's standard input, which ends the JVM, which closes that of its workers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections import deque
from typing import IO, TYPE_CHECKING, Final

from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark import SparkConf

logger = logging.getLogger(__name__)

_LAUNCHER: Final = """#!/bin/sh
# A signal that is ignored here stays ignored in the JVM.
trap '' TERM
exec {submit} "$@"
"""
_SPARK_LINE: Final = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?P<level>[A-Z]+) (?P<name>\S+): (?P<text>.*)")
"""A line of Spark's default log layout."""
_WORKER_LINE: Final = re.compile(r"klamm-worker (?P<level>[A-Z]+) (?P<name>\S+): (?P<text>.*)")
_TOLD_LEVELS: Final = frozenset({"ERROR", "FATAL"})
_REPEATING: Final = frozenset({"Utils", "DataWritingSparkTask", "TaskSetManager", "MicroBatchExecution"})
"""Loggers of Spark that only repeat what ``Executor`` or the query's own error says of a failed task."""
_KEPT_LINES: Final = 40
_END_S: Final = 1.0


class Jvm:
    """A JVM that this process launched. Thread-safe."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while the JVM runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None when the JVM still runs after ``timeout_s`` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def describe_end(self) -> str:
        """Return in words how the JVM ended."""
        code = self.exit_code
        if code is None:
            return "does not answer"
        name = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"(pid {self._process.pid}) {name}"

    def end(self) -> None:
        """End the JVM if it still runs, by force if needed, and let pyspark start another one."""
        gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        if gateway is not None:
            with contextlib.suppress(Exception):  # py4j has many words for a peer that is gone
                gateway.shutdown()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self.wait(_END_S) is None:
            self.kill()

    def kill(self) -> None:
        """End the JVM at once. Its workers end when their standard input closes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class JvmOutput:
    """Standard output and error of the JVM and its workers, reduced to what a person needs.

    Spark reports each failed task several times with the stacks of the JVM and of Python, although it retries the task.
    One line of each report is logged. The rest is kept for the message when Spark does not start.

    Args:
        passes_all: Whether every line goes to stderr as it is: the file sets ``spark.log.level``.
    """

    def __init__(self, *, passes_all: bool) -> None:
        self._passes_all = passes_all
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)
        self.is_muted = False
        """Whether Spark's errors count for nothing any more: the mirror ends its tasks."""

    def follow(self, output: IO[bytes]) -> None:
        """Read the output in a thread of its own until it is closed."""
        threading.Thread(target=self._follow, args=(output,), name="spark-output", daemon=True).start()

    def _follow(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self.take(line.decode(errors="replace").rstrip())

    def take(self, line: str) -> None:
        """Log a line, keep it, or pass it on."""
        self._last.append(line)
        if self._passes_all:
            sys.stderr.write(line + "\n")
        elif (of_worker := _WORKER_LINE.fullmatch(line)) is not None:
            level = logging.getLevelNamesMapping().get(of_worker["level"], logging.WARNING)
            logging.getLogger(of_worker["name"]).log(level, "%s", of_worker["text"])
        elif not self.is_muted and (of_spark := _SPARK_LINE.fullmatch(line)) is not None and _is_told(of_spark):
            logger.warning("Spark: %s", of_spark["text"])
        else:
            logger.debug("%s", line)

    @property
    def last_words(self) -> str:
        """The last line that is neither empty nor of a stack."""
        lines = [line for line in self._last if line.strip() and not line.startswith(("\t", " "))]
        return lines[-1] if lines else ""


def _is_told(line: re.Match[str]) -> bool:
    return line["level"] in _TOLD_LEVELS and line["name"].rpartition(".")[2] not in _REPEATING


def launch(conf: SparkConf, directory: Path, output: JvmOutput) -> Jvm:
    """Launch the JVM that pyspark is to use from now on.

    Args:
        conf: What ``spark-submit`` gets.
        directory: A private one that lives as long as the JVM.
        output: Takes what the JVM and its workers write.

    Raises:
        PySparkRuntimeError: The JVM ended before it listened.
    """
    launcher = directory / "spark-submit"
    submit = os.path.join(_find_spark_home(), "bin", "spark-submit")
    launcher.write_text(_LAUNCHER.format(submit=shlex.quote(submit)))
    launcher.chmod(0o700)
    reading, writing = os.pipe()
    output.follow(os.fdopen(reading, "rb"))
    try:
        options: Mapping[str, object] = {
            "executable": str(launcher),
            "start_new_session": True,
            "stdout": writing,
            "stderr": writing,
        }
        gateway = launch_gateway(conf, dict(options))  # type: ignore[no-untyped-call]
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)
    return Jvm(gateway.proc)
