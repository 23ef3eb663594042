"""Spark session for the mirror, and its JVM. Configured for a fast start, low memory use and task retries."""

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
import time
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from klamm.java import require_java
from klamm.lazy_dataclass import dataclass
from klamm.mirror.progress.flow_progress import SparkFailedError
from klamm.mirror.settings.mirror import MASTER, SPECULATION, check_speculation
from klamm.mirror.spark.class_archive import quick_start

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    """JVM that this process has launched. Thread-safe.

    A service manager sends SIGTERM to every process of the mirror, and a terminal sends SIGINT to its process group on
    Ctrl-C. A JVM that ends on such a signal ends its tasks with it, and records in flight are copied again. Therefore
    the JVM runs in a session (setsid) of its own, and the JVM and its Python workers ignore SIGTERM.

    How the JVM ends:

    - Orderly: the mirror first ends the lease and waits for the tasks. Then ``end`` shuts down the py4j gateway and
      closes the standard input of the JVM. After one second it kills the process group.
    - When the mirror dies, even by SIGKILL, the kernel closes the standard input of the JVM. The JVM then ends, and
      closes the standard input of its Python daemon, which ends the workers.
    - When the JVM dies, ``exit_code`` is set, and ``SparkRun`` starts another JVM.
    """

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

    def end(self, timeout_s: float = _END_S) -> None:
        """End the JVM if it still runs, and reset pyspark so that it can start another.

        Args:
            timeout_s: Seconds after which the JVM is killed.
        """
        gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        if gateway is not None:
            with contextlib.suppress(Exception):  # py4j raises many exception types when its peer is gone
                gateway.shutdown()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self.wait(timeout_s) is None:
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
        conf: Configuration passed to ``spark-submit``, as process arguments that other users of the machine can read.
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


DEFAULT_MASTER: Final = "local[*,4]"
"""All cores, with up to four attempts per task. Plain ``local[N]`` never retries a task."""

_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""Environment variable set by spark-submit. It means that the JVM already runs."""
_PYTHON: Final = "spark.pyspark.python"
_WORKER_PYTHON: Final = "PYSPARK_PYTHON"
_DAEMON: Final = "spark.python.daemon.module"
_LOG_LEVEL: Final = "spark.log.level"
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key|credential", re.IGNORECASE)
"""Names of keys whose values Spark hides in its own log and page (default of ``spark.redaction.regex``)."""
_GATEWAY_EXITED: Final = "JAVA_GATEWAY_EXITED"

_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.app.name": "klamm-mirror",
    "spark.driver.memory": "512m",
    "spark.log.level": "ERROR",
    "spark.python.worker.reuse": "true",
    SPECULATION: "false",
    # A micro-batch has a few rows. To generate and compile Java for them only delays the first one.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.ui.retainedExecutions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.retainedJobs": "1",
    "spark.ui.retainedStages": "1",
    "spark.ui.retainedTasks": "10",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The JVM only plans and reports, so the first-tier compiler and the serial collector suffice. They start faster.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedSpark:
    """Spark session together with its JVM."""

    session: SparkSession
    jvm: Jvm | None
    """None if another program launched the JVM, for example spark-submit."""
    output: JvmOutput
    jvm_s: float = 0.0
    """Seconds until the JVM had started. 0 if another program launched it."""
    session_s: float = 0.0
    """Seconds until the JVM had the session."""

    @property
    def is_lost(self) -> bool:
        """Return whether the JVM has ended. Always False for a JVM that another program launched."""
        return self.jvm is not None and self.jvm.exit_code is not None

    def stop(self, timeout_s: float = _END_S) -> None:
        """Stop the session and the JVM. Neither needs to be running.

        Args:
            timeout_s: Seconds after which the JVM is killed.
        """
        self.output.is_muted = True
        if not self.is_lost:
            with contextlib.suppress(Py4JError, OSError):
                self.session.stop()
        if self.jvm is not None:
            self.jvm.end(timeout_s)


def start_session(properties: Mapping[str, str], directory: Path) -> StartedSpark:
    """Return the running session, or start one. Call it from any thread except the main thread.

    In the main thread, ``SparkContext`` replaces the SIGINT handler. Ctrl-C would then cancel all jobs, with
    records in flight. Under spark-submit, the master and all options given to spark-submit take precedence over the
    defaults here.

    Args:
        properties: ``spark.*`` keys of the mirror's file. They take precedence over everything except the master
            given to spark-submit.
        directory: Private directory that exists as long as the session.

    Raises:
        SparkFailedError: Spark does not start with these properties or in this directory, or the JVM has ended.
        SettingsError: Speculation is enabled: two attempts of one task would run at the same time and write records
            twice.
    """
    logging.getLogger().addFilter(_is_no_py4j_record)
    output = JvmOutput(passes_all=_LOG_LEVEL in properties)
    try:
        if _GATEWAY in os.environ or SparkContext._gateway is not None:
            started = StartedSpark(session=_submitted_session(properties), jvm=None, output=output)
        else:
            started = own_session(properties, directory, output)
    except (PySparkException, Py4JError) as error:
        master = ", ".join(f"{key}={value}" for key, value in properties.items() if key == MASTER)
        reason = first_line(error)
        if _GATEWAY_EXITED in reason and output.last_words:
            reason = f"the JVM ended: {output.last_words}"
        raise SparkFailedError(f"Spark does not start{master and f' with {master}'}: {reason}") from error
    except OSError as error:
        raise SparkFailedError(
            f"Spark does not start in {directory}: {error.strerror or error}. Set TMPDIR to a directory that has space "
            "and in which programs can run (no mount option noexec)"
        ) from error
    if (server := started.session.sparkContext._accumulatorServer) is not None:
        server.handle_error = _say_nothing  # type: ignore[method-assign]  # the JVM's end is reported elsewhere
    check_session(started.session)
    return started


def _is_no_py4j_record(record: logging.LogRecord) -> bool:
    """Filter for the root logger that drops py4j's records. It logs a stack trace there when the JVM is gone."""
    return record.module != "java_gateway"


def _say_nothing(request: object, client_address: object) -> None:
    _ = request, client_address


def first_line(error: Exception) -> str:
    """Return the message of an error from Spark without the stack trace of the JVM."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString()).partition("\n")[0]
    return str(error).partition("\n")[0]


def _submitted_session(properties: Mapping[str, str]) -> SparkSession:
    SparkContext._ensure_initialized()  # without this, the options given to spark-submit are not visible
    conf = dict(SparkConf().getAll())
    builder = SparkSession.builder
    for key, value in (dict(_DEFAULTS) | conf | dict(properties)).items():
        if key != MASTER:
            builder = builder.config(key, value)
    return builder.getOrCreate()


def own_session(properties: Mapping[str, str], directory: Path, output: JvmOutput) -> StartedSpark:
    """Launch a JVM and start a session in it.

    Secrets are not among the arguments of the JVM's process. The session passes them to the JVM before Spark starts in
    it, which is when Spark reads them.
    """
    os.environ.setdefault("JAVA_HOME", str(require_java()))
    master = properties.get(MASTER, os.environ.get("MASTER", DEFAULT_MASTER))
    here = is_local(master)
    keys = {MASTER: master, **_DEFAULTS, **(_LOCAL_DEFAULTS if here else {}), **properties}
    python = properties.get(_PYTHON) or (str(write_interpreter(directory)) if here else sys.executable)
    if here and not properties.get(_PYTHON) and _WORKER_PYTHON not in os.environ:
        keys.setdefault(_DAEMON, "klamm.mirror.spark.daemon")  # the workers run this Python, which has klamm installed
    builder = SparkSession.builder
    for key, value in keys.items():
        builder = builder.config(key, value)
    arguments = [(key, value) for key, value in keys.items() if _SECRET.search(key) is None]
    with _worker_python(python), quick_start():
        began = time.monotonic()
        jvm = launch(SparkConf().setAll(arguments), directory, output)
        launched = time.monotonic()
        try:
            session = builder.getOrCreate()
            return StartedSpark(
                session=session,
                jvm=jvm,
                output=output,
                jvm_s=launched - began,
                session_s=time.monotonic() - launched,
            )
        except BaseException:
            jvm.end()
            raise


def check_session(session: SparkSession) -> None:
    """Reject a session that could write records twice.

    Raises:
        SettingsError: Speculation is enabled.
    """
    check_speculation(session.sparkContext.getConf().get(SPECULATION))


def is_local(master: str | None) -> bool:
    """Return whether tasks run on the driver's machine inside its JVM, as with ``local[2,4]``.

    ``local-cluster`` starts separate executors, so it counts as a cluster.
    """
    return (master or "").partition("[")[0] == "local"


def slots(session: SparkSession) -> int:
    """Return the number of tasks that can run at the same time now, at least 1."""
    context = session.sparkContext
    if is_local(context.master):
        return max(1, context.defaultParallelism)
    # On a cluster, defaultParallelism is at least 2 even if only one slot is left. The second task would then wait for
    # that slot until the lease of the first one is over.
    scala_context = context._jsc.sc()  # pyspark has no API for this
    profile = scala_context.resourceProfileManager().defaultResourceProfile()
    return max(1, int(scala_context.maxNumConcurrentTasks(profile)))


def channel_addresses(session: SparkSession) -> tuple[str, str]:
    """Return the address the driver listens on for tasks and the one they connect to, as for Spark's own ports."""
    context = session.sparkContext
    if is_local(context.master):
        return "127.0.0.1", "127.0.0.1"
    conf = context.getConf()
    advertised = conf.get("spark.driver.host", "127.0.0.1").strip("[]")
    return conf.get("spark.driver.bindAddress", advertised).strip("[]"), advertised


@contextlib.contextmanager
def _worker_python(python: str) -> Iterator[None]:
    """Set the Python interpreter of the workers while Spark starts, unless ``PYSPARK_PYTHON`` is already set."""
    if _WORKER_PYTHON in os.environ:
        yield
        return
    os.environ[_WORKER_PYTHON] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
    try:
        yield
    finally:
        del os.environ[_WORKER_PYTHON], os.environ["PYSPARK_DRIVER_PYTHON"]


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
