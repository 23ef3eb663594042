"""Sync of a whole file system: where it is trusted, and its errors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import pytest

from klamm.storage.log import flusher
from klamm.storage.log.flusher import FileSystem, is_trusted, syncfs

if TYPE_CHECKING:
    from pathlib import Path

DEVICE = os.makedev(254, 1)


class System(NamedTuple):
    sysname: str
    release: str


@pytest.mark.parametrize(
    ("system", "kind", "expected"),
    [
        (System("Linux", "5.8.0-generic"), "ext4", True),
        (System("Linux", "6.18.44"), "xfs", True),
        (System("Linux", "5.7.19"), "ext4", False),
        (System("Linux", "odd"), "ext4", False),
        (System("Linux", "6.18.44"), "overlay", False),
        (System("Darwin", "23.4"), "ext4", False),
    ],
)
def test_file_system_sync_is_trusted_where_it_reports_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: System, kind: str, *, expected: bool
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
        f"30 22 254:1 / /data rw,relatime shared:1 master:2 - {kind} /dev/vdb rw,discard\n"
    )
    monkeypatch.setattr(flusher, "MOUNTS", str(mounts))
    monkeypatch.setattr(os, "uname", lambda: system)
    assert is_trusted(DEVICE) is expected
    assert not is_trusted(os.makedev(254, 2)), "a device that is not mounted under its number"


def test_file_system_sync_succeeds_or_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "is_trusted", lambda _: True)
    whole = FileSystem(tmp_path)
    assert whole.sync([tmp_path, tmp_path / "missing"]) == [True, False]
    whole.close()
    whole.close()
    with pytest.raises(OSError, match="not known to report errors"):
        whole.sync([tmp_path])
    with pytest.raises(OSError, match="Bad file descriptor"):
        syncfs(-1)
