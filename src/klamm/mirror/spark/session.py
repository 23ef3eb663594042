"""A Spark session for the mirror: quick to start, small, and able to retry a task."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from klamm.java import require_java
from klamm.mirror.spark.interpreter import write_interpreter
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

DEFAULT_MASTER: Final = "local[*,4]"
"""``local[N]`` alone never retries a task."""

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

    Args:
        properties: ``spark.*`` keys of the mirror's file; they win over the mirror's defaults.
        directory: a private one that lives as long as the session.

    Raises:
        SettingsError: speculation is on: two copies of a task would write records twice.
    """
    os.environ.setdefault("JAVA_HOME", str(require_java()))
    # Under spark-submit the launcher has said where to run; a default of ours would win over it.
    submitted = "SPARK_ENV_LOADED" in os.environ
    master = properties.get("spark.master", os.environ.get("MASTER", DEFAULT_MASTER))
    builder = SparkSession.builder
    defaults = dict(_DEFAULTS) | (dict(_LOCAL_DEFAULTS) if master.startswith("local") and not submitted else {})
    for key, value in (defaults | dict(properties)).items():
        builder = builder.config(key, value)
    if not submitted:
        builder = builder.master(master)
    on_this_machine = master.startswith("local")
    with _worker_python(str(write_interpreter(directory)) if on_this_machine else sys.executable):
        session = builder.getOrCreate()
    if session.sparkContext.getConf().get("spark.speculation", "false") == "true":
        raise SettingsError("spark.speculation=true: expected false; two copies of a task would write records twice")
    return session


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
