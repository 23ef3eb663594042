"""JVM of Spark's driver, as a child process that signals to the mirror do not reach.

A service manager sends SIGTERM to every process of the mirror, and a terminal sends SIGINT to its process group on
Ctrl-C. A JVM that ends on such a signal ends its tasks with it, and records in flight are copied again. Therefore the
JVM runs in a session (setsid) of its own, and the JVM and its Python workers ignore SIGTERM.

How the JVM ends:

- Orderly: the mirror first ends the lease and waits for the tasks. Then ``Jvm.end`` shuts down the py4j gateway and
  closes the standard input of the JVM. After one second it kills the process group.
- When the mirror dies, even by SIGKILL, the kernel closes the standard input of the JVM. The JVM then ends, and closes
  the standard input of its Python daemon, which ends the workers.
- When the JVM dies, ``Jvm.exit_code`` is set, and ``SparkRun`` starts another JVM.
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
"""Line of Spark's default log layout."""
_WORKER_LINE: Final = re.compile(r"klamm-worker (?P<level>[A-Z]+) (?P<name>\S+): (?P<text>.*)")
_TOLD_LEVELS: Final = frozenset({"ERROR", "FATAL"})
_REPEATING: Final = frozenset({"Utils", "DataWritingSparkTask", "TaskSetManager", "MicroBatchExecution"})
"""Loggers of Spark that repeat a task failure already logged by ``Executor`` or contained in the query's own error."""
_KEPT_LINES: Final = 40
_END_S: Final = 1.0


class Jvm:
    """JVM that this process has launched. Thread-safe."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal. None while the JVM runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None if the JVM still runs after ``timeout_s`` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def describe_end(self) -> str:
        """Return a verb phrase for messages that describes how the JVM ended."""
        code = self.exit_code
        if code is None:
            return "does not answer"
        name = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"(pid {self._process.pid}) {name}"

    def end(self) -> None:
        """End the JVM if it still runs, by force after one second, and reset pyspark so that it can start another."""
        gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        if gateway is not None:
            with contextlib.suppress(Exception):  # py4j raises many exception types when its peer is gone
                gateway.shutdown()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self.wait(_END_S) is None:
            self.kill()

    def kill(self) -> None:
        """Kill the JVM's process group with SIGKILL. Its workers end when their standard input closes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class JvmOutput:
    """Filter for stdout and stderr of the JVM and its workers, reduced to the lines an operator needs.

    Spark reports each failed task several times, with the stack traces of the JVM and of Python, even though it
    retries the task. This class logs one line per failure. It keeps the latest lines for the error message of a
    failed start.

    Args:
        passes_all: Whether every line is copied to stderr unchanged. True if the settings contain
            ``spark.log.level``.
    """

    def __init__(self, *, passes_all: bool) -> None:
        self._passes_all = passes_all
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)
        self.is_muted = False
        """Whether errors from Spark are not logged. Set while the mirror ends its tasks, which causes such errors."""

    def follow(self, output: IO[bytes]) -> None:
        """Read the output in a separate thread until it is closed."""
        threading.Thread(target=self._follow, args=(output,), name="spark-output", daemon=True).start()

    def _follow(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self.take(line.decode(errors="replace").rstrip())

    def take(self, line: str) -> None:
        """Process one line: keep it, and log it or copy it to stderr."""
        self._last.append(line)
        if self._passes_all:
            sys.stderr.write(line + "\n")
        elif (of_worker := _WORKER_LINE.fullmatch(line)) is not None:
            level = logging.getLevelNamesMapping().get(of_worker["level"], logging.WARNING)
            logging.getLogger(of_worker["name"]).log(level, "%s", of_worker["text"])
        elif not self.is_muted and (of_spark := _SPARK_LINE.fullmatch(line)) is not None and _is_passed_on(of_spark):
            logger.warning("Spark: %s", of_spark["text"])
        else:
            logger.debug("%s", line)

    @property
    def last_words(self) -> str:
        """Last line that is neither empty nor part of a stack trace."""
        lines = [line for line in self._last if line.strip() and not line.startswith(("\t", " "))]
        return lines[-1] if lines else ""


def _is_passed_on(line: re.Match[str]) -> bool:
    """Return whether a line of Spark's log is logged: an error that no other line repeats."""
    return line["level"] in _TOLD_LEVELS and line["name"].rpartition(".")[2] not in _REPEATING


def launch(conf: SparkConf, directory: Path, output: JvmOutput) -> Jvm:
    """Launch the JVM that pyspark uses from now on.

    Args:
        conf: Configuration passed to ``spark-submit``.
        directory: Private directory that exists as long as the JVM.
        output: Receiver of everything that the JVM and its workers print.

    Raises:
        PySparkRuntimeError: The JVM ended before its py4j gateway listened.
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
