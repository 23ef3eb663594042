"""Class archive of Spark: the JVM maps it, and Spark starts without one that is damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from klamm.mirror.spark.class_archive import DRIVER_OPTIONS, VARIABLE, find_archive
from tests.support.class_archives import write_spark_archive

if TYPE_CHECKING:
    from pathlib import Path

_START: Final = """
import os, sys, tempfile, threading
from pathlib import Path
from klamm.mirror.spark.session import start_session
from tests.support.spark_processes import jvms

def start():
    with tempfile.TemporaryDirectory() as directory:
        started = start_session({}, Path(directory))
        (jvm,) = jvms(os.getpid())
        print(started.session.range(3).count(), sys.argv[1] in Path(f"/proc/{jvm.pid}/maps").read_text())
        started.stop()

thread = threading.Thread(target=start)
thread.start()
thread.join()
"""
"""Start of a session as in ``klamm mirror``. It prints a result, and whether the JVM has mapped the archive."""


def start(archive: Path) -> list[str]:
    environ = {key: value for key, value in os.environ.items() if key != DRIVER_OPTIONS}
    environ[VARIABLE] = str(archive.parent)
    command = [sys.executable, "-W", "ignore", "-c", _START, str(archive)]
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.long
def test_jvm_maps_the_archive_that_the_training_has_written() -> None:
    archive = write_spark_archive()
    assert archive.is_usable
    assert start(archive.path) == ["3", "True"]


@pytest.mark.long
def test_spark_starts_with_a_damaged_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    archive = find_archive()
    assert archive is not None
    archive.path.write_bytes(b"not an archive" * 1000)
    assert start(archive.path) == ["3", "False"]
