"""Archive of loaded Java classes: written once, by one process at a time, and never a reason to fail."""

from __future__ import annotations

import os
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from klamm.class_archive import ClassArchive, lock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DAY_S = 86_400


class Trainer:
    """A JVM that writes its archive, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.runs = 0

    def __call__(self, options: Sequence[str]) -> None:
        self.runs += 1
        if self.error is not None:
            raise self.error
        path = next(option for option in options if option.startswith("-XX:ArchiveClassesAtExit=")).partition("=")[2]
        with open(path, "x", encoding="utf-8") as file:
            file.write("classes")


def archive_in(directory: Path, *identity: str) -> ClassArchive:
    return ClassArchive(directory, "spark", identity)


def age(file: Path, seconds: float) -> None:
    at = file.stat().st_mtime - seconds
    os.utime(file, (at, at))


def test_written_archive_is_used_and_not_written_again(tmp_path: Path) -> None:
    # given
    archive, train = archive_in(tmp_path / "java"), Trainer()
    assert archive.options() == ()
    # when
    assert [archive.write(train), archive.write(train)] == [True, True]
    # then
    assert archive.options()[0] == f"-XX:SharedArchiveFile={archive.path}"
    assert train.runs == 1


def test_other_users_can_read_an_archive_in_a_directory_of_its_own(tmp_path: Path) -> None:
    """An image's build writes it as root, its programs run as another user."""
    archive = archive_in(tmp_path / "java")
    before = os.umask(0o022)
    try:
        archive.write(Trainer())
    finally:
        os.umask(before)
    assert stat.S_IMODE(archive.path.parent.stat().st_mode) == 0o755


def test_other_class_path_has_another_archive(tmp_path: Path) -> None:
    archive_in(tmp_path, "java 17", "a.jar").write(Trainer())
    assert archive_in(tmp_path, "java 17", "b.jar").options() == ()


@pytest.mark.parametrize(
    "error", [RuntimeError("Spark does not start"), subprocess.TimeoutExpired("java", 1), OSError("No space left")]
)
def test_failed_attempt_is_repeated_after_a_day(tmp_path: Path, error: Exception) -> None:
    # given
    archive = archive_in(tmp_path)
    assert not archive.write(Trainer(error))
    assert str(error) in archive.failure
    # when
    at_once = archive.write(train := Trainer())
    age(archive.path.with_suffix(".failed"), DAY_S)
    later = archive.write(train)
    # then
    assert (at_once, later, train.runs) == (False, True, 1)


def test_jvm_that_writes_no_archive_counts_as_failed(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    assert not archive.write(lambda _: None)
    assert archive.has_failed
    assert archive.options() == ()


def test_directory_that_cannot_be_created_is_no_error(tmp_path: Path) -> None:
    # given
    (tmp_path / "file").touch()
    archive, train = archive_in(tmp_path / "file" / "java"), Trainer()
    # then
    assert not archive.write(train)
    assert (archive.options(), train.runs) == ((), 0)


def test_unfinished_file_of_a_killed_writer_is_replaced(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    archive.path.with_suffix(".new").write_text("half of the cla")
    assert archive.write(Trainer())
    assert archive.path.read_text() == "classes"


def test_archive_is_not_written_while_another_process_writes_it(tmp_path: Path) -> None:
    archive, train = archive_in(tmp_path), Trainer()
    with lock(archive.path.with_suffix(".lock")):
        assert not archive.write(train, waits=False)
    assert train.runs == 0


def test_archive_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    archive = archive_in(tmp_path)
    archive.write(Trainer())
    # when
    if os.geteuid() == 0:
        os.chown(archive.path, 65534, -1)
    else:
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    # then
    assert archive.options() == ()


def test_recently_used_archives_are_kept(tmp_path: Path) -> None:
    # given: the oldest one was used after the others were written
    archives = [archive_in(tmp_path, str(number)) for number in range(4)]
    for seconds, archive in enumerate(archives[:3]):
        archive.write(Trainer())
        age(archive.path, 100 - seconds)
    archives[0].options()
    # when
    archives[3].write(Trainer())
    # then
    assert [bool(archive.options()) for archive in archives] == [True, False, True, True]


def test_link_of_another_user_is_not_written_through(tmp_path: Path) -> None:
    archive, target = archive_in(tmp_path), tmp_path / "target"
    target.write_text("kept", encoding="utf-8")
    for name in (".lock", ".failed"):
        archive.path.with_suffix(name).symlink_to(target)
        assert not archive.write(Trainer(RuntimeError("no")))
        archive.path.with_suffix(name).unlink()
    assert target.read_text(encoding="utf-8") == "kept"


def test_archive_in_a_directory_open_to_everybody_is_neither_used_nor_written(tmp_path: Path) -> None:
    archive, train = archive_in(tmp_path), Trainer()
    archive.write(train)
    tmp_path.chmod(0o777)
    assert archive.options() == ()
    archive.path.unlink()
    assert not archive.write(train)
    assert train.runs == 1
