from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from klamm.storage.log import directories
from klamm.storage.log.directories import CheckpointFiles, Checkpoints

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
