"""One small Spark session for all files that use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from klamm.java import require_java
from klamm.mirror.spark.session import write_interpreter
from tests.support.class_archives import let_spark_start_quickly

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def _quick_spark(java: None) -> Iterator[None]:
    """Of a module: a fixture of the session would keep its environment for the tests of other directories."""
    with pytest.MonkeyPatch.context() as environment:
        let_spark_start_quickly(environment)
        yield


@pytest.fixture(scope="session")
def worker_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Python for workers on this machine that does not compile Spark's archive of pyspark in every process."""
    return str(write_interpreter(tmp_path_factory.mktemp("python")))


@pytest.fixture(scope="session")
def spark(java: None, worker_python: str) -> Iterator[SparkSession]:
    """A session for all files, with its JVM and its Python workers. The environment is restored when it has started.

    A mirror that is started later must not find the ``PYSPARK_PYTHON`` of this session: it would use it, and not its
    own daemon, which ignores SIGTERM.
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_HOME", str(require_java()))
        environment.setenv("PYSPARK_PYTHON", worker_python)
        let_spark_start_quickly(environment)
        session = _start(worker_python)
    yield session
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def _no_query_left() -> Iterator[None]:
    """A query that a test leaves running fails this file, and does not keep the session's only slot from the others."""
    yield
    session = SparkSession.getActiveSession()
    left = [] if session is None else session.streams.active
    for query in left:
        query.stop()
    assert not left, f"still running: {[query.name or query.id for query in left]}"


def _start(worker_python: str) -> SparkSession:
    return (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.pyspark.python", worker_python)
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "1")
        # To generate and compile Java for each query, and to plan its stages one by one, takes most of the time where
        # there are a few rows. Mirrors and reports that run in processes of their own do both.
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
