"""A Spark session for the mirror: quick to start, small, and able to retry a task."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from klamm.java import require_java
from klamm.mirror.settings.mirror import MASTER
from klamm.mirror.spark.interpreter import write_interpreter
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

DEFAULT_MASTER: Final = "local[*,4]"
"""``local[N]`` alone never retries a task."""

_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit: the JVM runs already."""
_PYTHON: Final = "spark.pyspark.python"

_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.app.name": "klamm-mirror",
    "spark.driver.memory": "512m",
    "spark.log.level": "ERROR",
    "spark.python.worker.reuse": "true",
    "spark.speculation": "false",
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
    # The JVM only plans and reports: the quick compiler and the small collector start it sooner.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}


def start_session(properties: Mapping[str, str], directory: Path) -> SparkSession:
    """Return the running session, or start one.

    Under spark-submit the launcher has said where to run, and what it was told wins over the defaults here.

    Args:
        properties: ``spark.*`` keys of the mirror's file; they win over everything but spark-submit's master.
        directory: a private one that lives as long as the session.

    Raises:
        SettingsError: Spark does not start as it is asked to; or speculation is on: two copies of a task would write
            records twice.
    """
    try:
        with _interrupts_kept():
            session = _submitted_session(properties) if _GATEWAY in os.environ else _own_session(properties, directory)
    except (PySparkException, Py4JError) as error:
        asked = ", ".join(f"{key}={value}" for key, value in properties.items() if key == MASTER)
        raise SettingsError(f"Spark does not start{asked and f' with {asked}'}: {first_line(error)}") from error
    check_session(session)
    return session


def first_line(error: Exception) -> str:
    """Return what an error of Spark's says, without the stack of the JVM."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString()).partition("\n")[0]
    return str(error).partition("\n")[0]


def _submitted_session(properties: Mapping[str, str]) -> SparkSession:
    SparkContext._ensure_initialized()  # else what was said is not seen
    said = dict(SparkConf().getAll())
    builder = SparkSession.builder
    for key, value in (dict(_DEFAULTS) | said | dict(properties)).items():
        if key != MASTER:
            builder = builder.config(key, value)
    return builder.getOrCreate()


def _own_session(properties: Mapping[str, str], directory: Path) -> SparkSession:
    os.environ.setdefault("JAVA_HOME", str(require_java()))
    master = properties.get(MASTER, os.environ.get("MASTER", DEFAULT_MASTER))
    here = is_local(master)
    builder = SparkSession.builder.master(master)
    for key, value in (dict(_DEFAULTS) | (dict(_LOCAL_DEFAULTS) if here else {}) | dict(properties)).items():
        builder = builder.config(key, value)
    python = properties.get(_PYTHON) or (str(write_interpreter(directory)) if here else sys.executable)
    with _worker_python(python):
        return builder.getOrCreate()


@contextlib.contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Let Ctrl-C do afterwards what it did before: ``SparkContext`` makes it cancel all jobs, records in the middle."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGINT, handler)


def check_session(session: SparkSession) -> None:
    """Refuse a session on which records would be written twice.

    Raises:
        SettingsError: speculation is on.
    """
    if session.sparkContext.getConf().get("spark.speculation", "false") == "true":
        raise SettingsError("spark.speculation=true: expected false; two copies of a task would write records twice")


def is_local(master: str | None) -> bool:
    """Tell whether tasks run in the driver's own process, as with ``local[2,4]``; ``local-cluster`` is a cluster."""
    return (master or "").partition("[")[0] == "local"


def slots(session: SparkSession) -> int:
    """Return how many tasks can run at once now, at least 1."""
    context = session.sparkContext
    if is_local(context.master):
        return max(1, context.defaultParallelism)
    # defaultParallelism is at least 2 on a cluster, also when one slot is left: the second task would wait for it
    # until the lease of the first is over.
    scala_context = context._jsc.sc()  # not offered in Python
    profile = scala_context.resourceProfileManager().defaultResourceProfile()
    return max(1, int(scala_context.maxNumConcurrentTasks(profile)))


def channel_addresses(session: SparkSession) -> tuple[str, str]:
    """Return where the driver is to listen for tasks, and where they find it: as for Spark's own ports."""
    context = session.sparkContext
    if is_local(context.master):
        return "127.0.0.1", "127.0.0.1"
    conf = context.getConf()
    advertised = conf.get("spark.driver.host", "127.0.0.1").strip("[]")
    return conf.get("spark.driver.bindAddress", advertised).strip("[]"), advertised


@contextlib.contextmanager
def _worker_python(python: str) -> Iterator[None]:
    """Say which Python workers run, unless somebody has said so; Spark reads it while it starts."""
    if "PYSPARK_PYTHON" in os.environ:
        yield
        return
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
    try:
        yield
    finally:
        del os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"]
