"""Partition logs for tests: a clock that the test sets, given configs, and a disk that fails on demand."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING
from uuid import UUID

from klamm.protocol.records import Record, decode_records, encode_batch, iter_batches
from klamm.storage.log import LogManager, PartitionLog
from klamm.storage.log.directories import BALLAST
from klamm.storage.log.files import FilePool, fsync_path, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from klamm.storage.log.files import Buffer

TOPIC_ID = UUID(int=7)
NOON_MS = 1_600_000_000_000


def open_count(pool: FilePool) -> int:
    """Return the number of open descriptors of a pool."""
    return sum(file.is_open for file in pool.open_files)


class Clock:
    """Clock in milliseconds since the epoch, set by the test."""

    def __init__(self, now_ms: int = NOON_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class FailingPool(FilePool):
    """Pool of files on a disk that is full after a number of bytes; None means never."""

    room: int | None = None

    def writev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        if self.room is None:
            return super().writev(descriptor, buffers, position)
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = super().writev(descriptor, [b"".join(buffers)[: self.room]], position)
        self.room -= written
        return written


class CrashableLogs:
    """Log manager over a directory that can be closed, crashed and reopened."""

    def __init__(self, data_dir: Path, **configs: str) -> None:
        self.data_dir = data_dir
        self.configs = {name.replace("_", "."): value for name, value in configs.items()}
        self.clock = Clock()
        self.pool = FailingPool()
        self.partitions = [(TOPIC_ID, "t", 0)]
        self.manager = self.open()

    def __del__(self) -> None:
        """Close the files: a search of thousands of histories in one test has as many directories."""
        self.pool.close()

    def open(self) -> LogManager:
        """Open the directory. An earlier manager is abandoned and its files are closed, as a crash would do."""
        self.pool.close()
        self.pool = FailingPool()
        self.manager = LogManager(self.data_dir, configs_of=lambda _: self.configs, now_ms=self.clock, pool=self.pool)
        for topic_id, topic, partition in self.partitions:
            self.manager.create(topic_id, topic, partition)
        return self.manager

    @property
    def log(self) -> PartitionLog:
        log = self.manager.get(TOPIC_ID, 0)
        assert log is not None
        return log

    def flush_log(self) -> None:
        """Make the log durable and advance its recovery point, without the manager's threads."""
        end_offset = self.log.end_offset
        for path in self.log.fsync_files():
            fsync_path(path)
        self.log.flushed(end_offset)


def fill_disk(data_dir: Path, monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOSPC) -> None:
    """Make small files unwritable, as on a full disk, until the ballast releases some of its space."""
    ballast = data_dir / BALLAST
    size = ballast.stat().st_size if ballast.exists() else 0

    def write(path: Path, text: str, *, durable: bool) -> None:
        if not ballast.exists() or ballast.stat().st_size >= size:
            raise OSError(code, os.strerror(code), str(path))
        write_atomically(path, text, durable=durable)

    for module in ("directories", "producers"):
        monkeypatch.setattr(f"klamm.storage.log.{module}.write_atomically", write)


def batch(*values: str | bytes | None, key: bytes | None = b"k", at: int = NOON_MS, **producer: int) -> memoryview:
    """Return one batch as a producer sends it; ``producer_id`` and so on as in ``encode_batch``."""
    records = [
        Record(key, value.encode() if isinstance(value, str) else value, (), at + offset, offset)
        for offset, value in enumerate(values)
    ]
    return memoryview(encode_batch(records, **producer))  # type: ignore[arg-type]  # numbers of the producer only


def records_in(data: bytes) -> list[Record]:
    """Return all records in a result of a read."""
    return [record for item in iter_batches(data) for record in decode_records(item)]


def read_all(log: PartitionLog, offset: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    """Return all records from an offset on, as a consumer would get them."""
    position = log.log_start_offset if offset is None else offset
    records: list[Record] = []
    while position < log.end_offset:
        for item in iter_batches(log.read(position, max_bytes)):
            records += [record for record in decode_records(item) if record.offset >= position]
            assert item.last_offset >= position, "a consumer would not get on"
            position = item.last_offset + 1
    return records
