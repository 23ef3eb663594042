"""Spark's JVM among the child processes of its driver."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import wait_until
from tests.support.spark_processes import jvms

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process


@contextlib.contextmanager
def called_java(main_class: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process whose command line is that of a JVM with this main class."""
    command = ["/jdk/bin/java", "-c", "print(flush=True); input()", main_class]
    with subprocess.Popen(command, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def jvm_pids() -> set[int]:
    """Return the process ids of the JVMs below this process. Tests with Spark leave theirs to the end of the worker."""
    return {process.pid for process in jvms(os.getpid())}


def test_spark_launcher_jvm_is_not_returned() -> None:
    before = jvm_pids()
    with called_java("org.apache.spark.launcher.Main"), called_java("org.apache.spark.deploy.SparkSubmit") as spark:
        assert jvm_pids() - before == {spark.pid}


def test_ended_jvm_is_not_returned() -> None:
    # when
    with called_java("org.apache.spark.deploy.SparkSubmit") as spark:
        spark.kill()
        # then
        wait_until(lambda: spark.pid not in jvm_pids(), timeout_s=30, what="the end")
    assert jvms(spark.pid) == []
