from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from klamm.storage.errors import DataDirectoryError, DataDirectoryLockedError
from klamm.storage.lock import DataDirectoryLock

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import sys, time
from pathlib import Path
from klamm.storage.lock import DataDirectoryLock
lock = DataDirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_second_holder_is_rejected_with_pid_of_the_first(tmp_path: Path) -> None:
    with DataDirectoryLock(tmp_path), pytest.raises(DataDirectoryLockedError, match=f"process {os.getpid()}"):
        DataDirectoryLock(tmp_path)


def test_released_lock_can_be_acquired_again(tmp_path: Path) -> None:
    lock = DataDirectoryLock(tmp_path)
    lock.release()
    lock.release()

    with DataDirectoryLock(tmp_path) as again:
        assert again is not lock


@pytest.mark.process
def test_lock_of_another_process_names_its_pid_and_ends_when_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            with pytest.raises(DataDirectoryLockedError, match=f"process {other.pid};"):
                DataDirectoryLock(tmp_path)
        finally:
            other.send_signal(signal.SIGKILL)
            other.wait()

    DataDirectoryLock(tmp_path).release()


def test_missing_directories_are_created(tmp_path: Path) -> None:
    with DataDirectoryLock(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / "klamm.lock").read_text() == f"{os.getpid()}\n"


def test_data_dir_that_is_a_file_is_rejected_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(DataDirectoryError, match="file"):
        DataDirectoryLock(tmp_path / "file")
