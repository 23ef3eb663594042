"""Lines of Spark's JVM and of its workers in the driver's log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from klamm.mirror.spark.session import JvmOutput

if TYPE_CHECKING:
    import pytest

AT_START = """WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/23 03:32:59 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform
Setting Spark log level to "ERROR".""".splitlines()
FAILED_TASK = """26/11/23 03:31:21 ERROR Utils: Aborting task
org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.applyOrElse(PythonRunner.scala:1136)
Caused by: java.io.EOFException
26/11/23 03:31:21 ERROR DataWritingSparkTask: Aborting commit for partition 0 (task 0, attempt 0, stage 0.0)
26/11/23 03:31:21 ERROR Executor: Exception in task 0.0 in stage 0.0 (TID 0): Python worker exited unexpectedly
Traceback (most recent call last):
  File "worker.py", line 1, in main""".splitlines()


def logged(caplog: pytest.LogCaptureFixture, lines: list[str], *, is_muted: bool = False) -> list[str]:
    output = JvmOutput(passes_all=False)
    output.is_muted = is_muted
    caplog.set_level(logging.INFO)
    for line in lines:
        output.take(line)
    return caplog.messages


def test_spark_startup_output_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, AT_START) == []


def test_failed_task_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, FAILED_TASK) == [
        "Spark: Exception in task 0.0 in stage 0.0 (TID 0): Python worker exited unexpectedly"
    ]


def test_task_failures_during_stop_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, FAILED_TASK, is_muted=True) == []


def test_worker_warning_is_logged_with_its_logger(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, ["klamm-worker WARNING klamm.mirror.copy.copier: A->B: a transaction is lost"]) == [
        "A->B: a transaction is lost"
    ]
    assert caplog.records[0].name == "klamm.mirror.copy.copier"


def test_configured_log_level_passes_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    output = JvmOutput(passes_all=True)
    for line in AT_START:
        output.take(line)
    assert capsys.readouterr().err.splitlines() == AT_START


def test_output_of_failed_jvm_start_is_kept() -> None:
    output = JvmOutput(passes_all=False)
    for line in (*AT_START, "Error: Could not create the Java Virtual Machine.", "\tat java.base/Main"):
        output.take(line)
    assert output.last_words == "Error: Could not create the Java Virtual Machine."
