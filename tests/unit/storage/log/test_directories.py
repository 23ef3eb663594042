"""Partition directories: ownership, retirement and deletion."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import threading
from pathlib import Path
from unittest.mock import Mock, call
from uuid import UUID

import pytest

from klamm.protocol.errors import StorageError
from klamm.storage.log import LogManager, delete_records
from klamm.storage.log.directories import STRAY_RETENTION_MS, read_topic_id, write_topic_id
from klamm.storage.log.files import LogFile
from tests.support.logs import TOPIC_ID, CrashableLogs, batch, open_count, read_all

OTHER_ID = UUID(int=8)
LONGEST_NAME = "n" * 249


def names(directory: Path) -> list[str]:
    """Names of the directories, with the same text for every UUID in them."""
    return sorted(re.sub(r"[.][0-9a-f]{32}-", ".<uuid>-", path.name) for path in directory.iterdir() if path.is_dir())


def values(manager: LogManager, topic_id: UUID, partition: int = 0) -> list[bytes | None]:
    log = manager.get(topic_id, partition)
    assert log is not None
    return [record.value for record in read_all(log)]


def append(manager: LogManager, topic_id: UUID, partition: int, value: str) -> None:
    log = manager.get(topic_id, partition)
    assert log is not None
    log.append(batch(value))


def test_deleted_topic_is_gone_and_its_files_are_removed_later(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("x"))

    crashable.manager.delete_topic(TOPIC_ID)

    assert crashable.manager.get(TOPIC_ID, 0) is None
    assert names(tmp_path) == ["t-0.<uuid>-delete"]
    crashable.partitions.clear()
    asyncio.run(crashable.open().remove_retired())
    assert names(tmp_path) == []


def test_recreated_topic_is_empty_after_a_restart(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("old"))
    crashable.partitions = [(OTHER_ID, "t", 0)]

    manager = crashable.open()
    append(manager, OTHER_ID, 0, "new")

    assert values(manager, OTHER_ID) == [b"new"]
    assert names(tmp_path) == ["t-0", "t-0.<uuid>-stray"]


@pytest.mark.parametrize("name", ["t", "n" * 240, LONGEST_NAME])
def test_many_partitions_of_a_long_name_are_deleted_and_created_again(tmp_path: Path, name: str) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.partitions = [(TOPIC_ID, name, partition) for partition in range(12)]
    manager = crashable.open()
    for _, _, partition in crashable.partitions:
        append(manager, TOPIC_ID, partition, f"old {partition}")

    manager.delete_topic(TOPIC_ID)
    for _, _, partition in crashable.partitions:
        manager.create(OTHER_ID, name, partition)
        append(manager, OTHER_ID, partition, f"new {partition}")

    assert [values(manager, OTHER_ID, n) for n in range(12)] == [[b"new %d" % n] for n in range(12)]
    crashable.partitions = [(OTHER_ID, name, partition) for partition in range(12)]
    manager = crashable.open()
    asyncio.run(manager.remove_retired())
    assert [values(manager, OTHER_ID, n) for n in range(12)] == [[b"new %d" % n] for n in range(12)]
    assert names(tmp_path) == sorted(f"{name}-{partition}" for partition in range(12))


def test_repeated_stray_directories_are_all_renamed(tmp_path: Path) -> None:
    """The metadata of the topic is gone after each crash, as when it was deleted and the broker was killed."""
    crashable = CrashableLogs(tmp_path)
    crashable.partitions.clear()
    for number in range(4):
        topic_id = UUID(int=100 + number)
        crashable.manager.create(topic_id, "t", 0)
        append(crashable.manager, topic_id, 0, "x")

        crashable.open().put_strays_aside()

    assert names(tmp_path) == ["t-0.<uuid>-stray"] * 4


def test_directory_without_partition_is_kept(tmp_path: Path) -> None:
    for name in ("lost+found", "my-notes", "t-0", "t-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "t-x" / "partition.metadata").touch()

    CrashableLogs(tmp_path).open().put_strays_aside()

    assert names(tmp_path) == ["lost+found", "my-notes", "t-0", "t-x"]


def test_strays_are_removed_after_a_week_also_over_restarts(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("x"))
    crashable.partitions.clear()
    crashable.open().put_strays_aside()
    (tmp_path / "u-0-stray").mkdir()
    os.utime(tmp_path / "u-0-stray", (crashable.clock.now_ms / 1000, crashable.clock.now_ms / 1000))

    crashable.clock.now_ms += STRAY_RETENTION_MS - 1000
    asyncio.run(crashable.open().close())
    kept = names(tmp_path)
    crashable.clock.now_ms += 2000
    asyncio.run(crashable.open().remove_retired())

    assert kept == ["t-0.<uuid>-stray", "u-0-stray"]
    assert names(tmp_path) == []


def test_directory_without_readable_topic_id_belongs_to_the_topic_of_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crashable = CrashableLogs(tmp_path, flush_messages="1")
    crashable.log.append(batch("x"))
    crashable.flush_log()
    (tmp_path / "t-0" / "partition.metadata").write_bytes(b"")

    crashable.open()

    assert values(crashable.manager, TOPIC_ID) == [b"x"]
    assert "t-0 has no readable topic id" in caplog.text
    assert read_topic_id(tmp_path / "t-0") == TOPIC_ID


async def test_new_topic_does_not_reuse_existing_directory(tmp_path: Path) -> None:
    """Not even one without a readable id: a new partition has no directory."""
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("old"))
    (tmp_path / "t-0" / "partition.metadata").unlink()
    (tmp_path / "t-0" / f"{0:020d}.log").rename(tmp_path / "t-0" / "aside")  # no partition to the start
    crashable.partitions.clear()

    manager = crashable.open()
    await manager.start()
    (tmp_path / "t-0" / "aside").rename(tmp_path / "t-0" / f"{0:020d}.log")
    manager.create(OTHER_ID, "t", 0)
    append(manager, OTHER_ID, 0, "new")
    assert values(manager, OTHER_ID) == [b"new"]
    await manager.close()


def test_checkpoints_of_a_deleted_topic_do_not_apply_to_its_successor(tmp_path: Path) -> None:
    """Not even when the broker is killed before it writes the checkpoints again."""
    crashable = CrashableLogs(tmp_path)
    for _ in range(10):
        crashable.log.append(batch("old"))
    delete_records(crashable.log, 5)
    crashable.flush_log()
    asyncio.run(crashable.manager.checkpoint())

    crashable.manager.delete_topic(TOPIC_ID)
    crashable.manager.create(OTHER_ID, "t", 0)
    append(crashable.manager, OTHER_ID, 0, "new")
    crashable.partitions = [(OTHER_ID, "t", 0)]
    crashable.open()

    log = crashable.manager.get(OTHER_ID, 0)
    assert log is not None
    assert (log.log_start_offset, log.recovery_point) == (0, 0)
    assert values(crashable.manager, OTHER_ID) == [b"new"]


def test_older_checkpoint_never_replaces_a_newer_one(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("x"))
    crashable.flush_log()
    older = crashable.manager.snapshot()
    asyncio.run(crashable.manager.checkpoint())

    crashable.manager.checkpoint_files.write(older)

    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 1\n"


# -- directories of new partitions


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that write topic ids, one entry per id."""
    names: list[str] = []

    def write(directory: Path, topic_id: UUID) -> None:
        names.append(threading.current_thread().name)
        write_topic_id(directory, topic_id)

    monkeypatch.setattr("klamm.storage.log.partition.write_topic_id", write)
    return names


async def test_threads_create_the_directories_of_new_partitions_before_the_first_append(
    tmp_path: Path, writers: list[str]
) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.manager.create(TOPIC_ID, "t", 1)
    both = [(TOPIC_ID, 0), (TOPIC_ID, 1)]

    assert [crashable.manager.is_new(*partition) for partition in both] == [True, True]
    await asyncio.gather(*(crashable.manager.create_directories([*both, *both]) for _ in range(3)))
    assert [crashable.manager.is_new(*partition) for partition in both] == [False, False]
    append(crashable.manager, TOPIC_ID, 0, "x")

    assert len(writers) == 2
    assert all(name.startswith("klamm-flush") for name in writers)
    assert read_topic_id(tmp_path / "t-1") == TOPIC_ID
    crashable.partitions.append((TOPIC_ID, "t", 1))
    assert not crashable.open().is_new(TOPIC_ID, 1)
    assert not crashable.manager.is_new(OTHER_ID, 0)
    append(crashable.manager, TOPIC_ID, 1, "y")
    assert len(writers) == 2


def test_failed_directory_creation_is_reported_by_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashable = CrashableLogs(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("klamm.storage.log.partition.write_topic_id", fail)
    asyncio.run(crashable.manager.create_directories([(TOPIC_ID, 0)]))

    with pytest.raises(StorageError, match="No space"):
        crashable.log.append(batch("x"))


async def test_recreated_topic_gets_its_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashable, has_begun, may_go_on = CrashableLogs(tmp_path), threading.Event(), threading.Event()

    def write(directory: Path, topic_id: UUID) -> None:
        has_begun.set()
        assert may_go_on.wait(60)
        write_topic_id(directory, topic_id)

    monkeypatch.setattr("klamm.storage.log.partition.write_topic_id", write)

    first = asyncio.create_task(crashable.manager.create_directories([(TOPIC_ID, 0)]))
    await asyncio.to_thread(has_begun.wait, 10)
    (tmp_path / "t-0").rmdir()  # the thread has not got there yet
    crashable.manager.delete_topic(TOPIC_ID)
    crashable.manager.create(OTHER_ID, "t", 0)
    second = asyncio.create_task(crashable.manager.create_directories([(OTHER_ID, 0)]))
    await asyncio.sleep(0)
    (tmp_path / "t-0").mkdir()
    may_go_on.set()
    await asyncio.gather(first, second)
    append(crashable.manager, OTHER_ID, 0, "new")

    assert names(tmp_path) == ["t-0", "t-0.<uuid>-delete"]
    assert read_topic_id(tmp_path / "t-0") == OTHER_ID


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_topic_recreated_right_after_deletion_leaves_no_stray_directories(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_restarted: bool
) -> None:
    # given
    partitions = range(40)  # more than are renamed at once
    crashable = CrashableLogs(tmp_path)
    crashable.partitions = [(TOPIC_ID, "t", partition) for partition in partitions]
    manager = crashable.open()
    await manager.start()
    for partition in partitions:
        append(manager, TOPIC_ID, partition, "old")
    if is_restarted:
        await manager.close()
        manager = crashable.open()
        await manager.start()
    # when
    deletion = manager.delete_topic(TOPIC_ID)
    for partition in partitions:
        manager.create(OTHER_ID, "t", partition)
    are_new = [manager.is_new(OTHER_ID, partition) for partition in partitions]
    for partition in partitions[::2]:
        append(manager, OTHER_ID, partition, "new")
    assert deletion is not None
    await deletion
    # then
    assert all(are_new)
    assert names(tmp_path) == sorted([f"t-{n}" for n in partitions[::2]] + [f"t-{n}.<uuid>-delete" for n in partitions])
    assert [values(manager, OTHER_ID, n) for n in partitions] == [[b"new"], []] * 20
    assert not caplog.records
    await manager.close()
    assert names(tmp_path) == sorted(f"t-{n}" for n in partitions[::2])


# -- a disk that does not rename or remove


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories cannot be renamed."""
    rename = Path.rename

    def fail_rename(path: Path, target: Path) -> Path:
        if path.is_dir():
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_rename)


@pytest.mark.usefixtures("stuck")
async def test_failed_rename_of_a_directory_does_not_stop_deletion_or_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("old"))

    crashable.manager.delete_topic(TOPIC_ID)

    assert crashable.manager.get(TOPIC_ID, 0) is None
    crashable.partitions.clear()

    manager = crashable.open()
    await manager.start()
    await manager.close()
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


@pytest.mark.usefixtures("stuck")
def test_directory_of_another_topic_is_never_opened(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("old"))
    crashable.partitions = [(OTHER_ID, "t", 0)]

    manager = crashable.open()
    manager.recover()

    with pytest.raises(OSError, match="another topic"):
        manager.get(OTHER_ID, 0)


@pytest.mark.parametrize("is_open_before", [True, False], ids=["open before", "opened later"])
async def test_log_that_fails_its_check_is_not_returned(tmp_path: Path, *, is_open_before: bool) -> None:
    crashable = CrashableLogs(tmp_path)
    append(crashable.manager, TOPIC_ID, 0, "a")
    manager = crashable.open()
    if is_open_before:
        manager.recover()
    check = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    manager.check_before_use(check)
    # then: each request tries again, and the log is opened only once
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            manager.get(TOPIC_ID, 0)
    (log,) = manager.loaded()
    check.side_effect = None
    assert manager.get(TOPIC_ID, 0) is manager.get(TOPIC_ID, 0) is log
    assert check.call_args_list == [call(log)] * (4 if is_open_before else 3)


async def test_topic_with_a_log_that_fails_its_check_is_deleted(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    append(crashable.manager, TOPIC_ID, 0, "a")
    manager = crashable.open()
    manager.check_before_use(Mock(side_effect=OSError))
    with pytest.raises(OSError):  # noqa: PT011 -- any
        manager.get(TOPIC_ID, 0)
    (log,) = manager.loaded()
    manager.delete_topic(TOPIC_ID)
    assert (log.is_deleted, open_count(crashable.pool), names(tmp_path)) == (True, 0, ["t-0.<uuid>-delete"])
    # and: it does not matter any more for the next start
    await manager.close()
    assert crashable.open().was_clean


def test_undeletable_file_does_not_block_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    crashable = CrashableLogs(tmp_path, file_delete_delay_ms="0")
    crashable.log.append(batch("x"))
    (tmp_path / "t-0" / "stuck").mkdir()
    (tmp_path / "t-0" / "gone").touch()
    crashable.log.retire_files([LogFile(crashable.pool, tmp_path / "t-0" / name) for name in ("stuck", "gone")])

    asyncio.run(crashable.manager.remove_retired())

    assert not (tmp_path / "t-0" / "gone").exists()
    assert "stuck cannot be removed" in caplog.text
