from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from klamm.storage.log import directories
from klamm.storage.log.directories import BALLAST, BALLAST_BYTES, CheckpointFiles, Checkpoints
from tests.support.logs import fill_disk

if TYPE_CHECKING:
    from pathlib import Path


def test_older_checkpoint_is_written_after_a_newer_one_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise DeleteRecords would succeed, and files be renamed, with nothing on disk."""
    files, write = CheckpointFiles(tmp_path), directories.write_offsets

    def full(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(directories, "write_offsets", full)
    with pytest.raises(OSError, match="full"):
        files.write(Checkpoints(6, {"t-0": 9}, {}, {}))
    monkeypatch.setattr(directories, "write_offsets", write)
    files.write(Checkpoints(5, {"t-0": 7}, {}, {}))
    assert "t 0 7" in (tmp_path / directories.LOG_START_OFFSETS).read_text()


def test_older_checkpoint_never_replaces_a_newer_one(tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path)
    files.write(Checkpoints(6, {"t-0": 9}, {}, {}))
    files.write(Checkpoints(5, {"t-0": 7}, {}, {}))
    assert "t 0 9" in (tmp_path / directories.LOG_START_OFFSETS).read_text()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_new_start_offsets_get_the_space_of_the_ballast_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    # given
    files = CheckpointFiles(tmp_path)
    files.write(Checkpoints(1, {}, {}, {}))
    # when
    fill_disk(tmp_path, monkeypatch, code)
    files.write(Checkpoints(2, {"t-0": 9}, {"t-0": 9}, {}))
    # then
    assert "t 0 9" in (tmp_path / directories.LOG_START_OFFSETS).read_text()
    assert "t 0 9" in (tmp_path / directories.RECOVERY_POINTS).read_text()
    assert (tmp_path / BALLAST).stat().st_size >= BALLAST_BYTES // 2


def test_ballast_is_kept_if_no_start_offset_has_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    files = CheckpointFiles(tmp_path)
    files.write(Checkpoints(1, {"t-0": 9}, {}, {}))
    # when
    fill_disk(tmp_path, monkeypatch)
    with pytest.raises(OSError, match="No space"):
        files.write(Checkpoints(2, {"t-0": 9}, {"t-0": 20}, {}))
    # then
    assert (tmp_path / BALLAST).stat().st_size == BALLAST_BYTES


def test_checkpoint_fails_once_the_ballast_is_spent_and_space_restores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    files = CheckpointFiles(tmp_path)
    files.write(Checkpoints(1, {}, {}, {}))
    # when
    with monkeypatch.context() as patched:
        patched.setattr(directories, "write_offsets", full)
        with pytest.raises(OSError, match="No space"):
            files.write(Checkpoints(2, {"t-0": 9}, {}, {}))
    left = (tmp_path / BALLAST).stat().st_size
    files.write(Checkpoints(3, {"t-0": 9}, {}, {}))
    # then
    assert left == 0
    assert (tmp_path / BALLAST).stat().st_blocks * 512 >= BALLAST_BYTES


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
