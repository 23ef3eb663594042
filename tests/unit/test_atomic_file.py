"""Tests of klamm.atomic_file: what stands at the path of a file that is replaced."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

import pytest

from klamm.atomic_file import replace_file

if TYPE_CHECKING:
    from pathlib import Path


def test_replaced_file_has_new_content_and_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "page"
    replace_file(path, "old")
    with path.open() as reader:
        replace_file(path, "größer")
        assert reader.read() == "old"
    assert path.read_text(encoding="utf-8") == "größer"
    assert os.listdir(tmp_path) == ["page"]


def test_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    # given
    (path := tmp_path / "page").touch(mode=0o600)
    # when
    replace_file(path, "new")
    # then
    assert path.stat().st_mode & 0o777 == 0o600


def test_mounted_file_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(_path: Path, _target: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    (path := tmp_path / "page").write_text("old")
    monkeypatch.setattr(type(path), "replace", replace)
    replace_file(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["page"]
    with pytest.raises(OSError, match="busy"):
        replace_file(tmp_path / "another", "new")


@pytest.mark.parametrize("exists", [True, False])
def test_link_stays_and_its_file_is_replaced(exists: bool, tmp_path: Path) -> None:
    # given
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (link := tmp_path / "link").symlink_to(elsewhere / "page")
    if exists:
        (elsewhere / "page").write_text("old")
    # when
    replace_file(link, "new")
    # then
    assert link.is_symlink()
    assert (elsewhere / "page").read_text() == "new"


def test_pipe_is_written_to(tmp_path: Path) -> None:
    # given
    os.mkfifo(pipe := tmp_path / "pipe")
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    # when
    replace_file(pipe, "page")
    # then
    reader.join()
    assert received == ["page"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("path", [".", "missing/page"])
def test_directory_is_rejected(path: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / path, "page")
    assert not os.listdir(tmp_path)
