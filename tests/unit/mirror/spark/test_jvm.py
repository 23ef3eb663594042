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


def test_what_spark_writes_while_it_starts_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, AT_START) == []


def test_a_failed_task_is_one_line_without_a_stack(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, FAILED_TASK) == [
        "Spark: Exception in task 0.0 in stage 0.0 (TID 0): Python worker exited unexpectedly"
    ]


def test_while_the_mirror_ends_its_tasks_their_failures_count_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, FAILED_TASK, is_muted=True) == []


def test_a_warning_of_a_worker_is_logged_as_its_own(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, ["klamm-worker WARNING klamm.mirror.copy.copier: A->B: a transaction is lost"]) == [
        "A->B: a transaction is lost"
    ]
    assert caplog.records[0].name == "klamm.mirror.copy.copier"


def test_with_a_log_level_of_the_file_every_line_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    output = JvmOutput(passes_all=True)
    for line in AT_START:
        output.take(line)
    assert capsys.readouterr().err.splitlines() == AT_START


def test_the_last_words_of_a_jvm_that_does_not_start_are_kept() -> None:
    output = JvmOutput(passes_all=False)
    for line in (*AT_START, "Error: Could not create the Java Virtual Machine.", "\tat java.base/Main"):
        output.take(line)
    assert output.last_words == "Error: Could not create the Java Virtual Machine."
