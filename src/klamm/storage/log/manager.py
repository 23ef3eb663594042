"""All partition logs of a data directory: found, opened when they are used, deleted, kept tidy."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from typing import TYPE_CHECKING, Final

from klamm.storage.log.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    read_offsets,
    read_topic_id,
    write_offsets,
)
from klamm.storage.log.cleaner import Cleaner
from klamm.storage.log.config import NO_LIMIT, ConfigEpoch, HousekeepingSettings, LiveConfig
from klamm.storage.log.files import DEFAULT_MAX_OPEN, FilePool, fsync_path, write_atomically
from klamm.storage.log.housekeeping import Housekeeper
from klamm.storage.log.recovery import open_partition
from klamm.storage.log.segment import RetiredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from uuid import UUID

    from klamm.storage.log.partition import PartitionLog

logger = logging.getLogger(__name__)

_DELETED: Final = "-delete"
_STRAY: Final = "-stray"
_MAX_NAME_BYTES: Final = 255
_SLICE: Final = 256
"""Logs that are looked at before others have their turn."""
_END_OF_TIME: Final = 2**63


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class _Topic:
    """A topic's logs by partition; None as long as nobody asked for it."""

    __slots__ = ("config", "logs", "name")

    def __init__(self, name: str, config: LiveConfig) -> None:
        self.name = name
        self.config = config
        self.logs: dict[int, PartitionLog | None] = {}


class LogManager:
    """The logs of all partitions. Loop-confined.

    A partition costs an entry in a dictionary until its log is asked for; an empty one has no directory. The data
    directory holds, in Kafka's forms, ``<topic>-<partition>/``, the checkpoints of recovery points and log start
    offsets, and the mark of a clean shutdown.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        configs_of: Callable[[str], Mapping[str, str]],
        now_ms: Callable[[], int] = _wall_clock_ms,
        pool: FilePool | None = None,
        settings: Callable[[], HousekeepingSettings] = HousekeepingSettings,
    ) -> None:
        """Take stock of a data directory; nothing is opened yet.

        Args:
            data_dir: Exists, and is locked by this process.
            configs_of: Effective configs of a topic by its name.
            now_ms: Milliseconds since the epoch.
            pool: The descriptors; None means a pool of ``DEFAULT_MAX_OPEN``.
            settings: What is in force about keeping house.
        """
        self._data_dir = data_dir
        self._configs_of = configs_of
        self._now_ms = now_ms
        self._pool = pool if pool is not None else FilePool(DEFAULT_MAX_OPEN)
        self._topics: dict[UUID, _Topic] = {}
        self._open_logs: dict[tuple[UUID, int], PartitionLog] = {}
        self._recovery_points = read_offsets(data_dir / RECOVERY_POINTS)
        self._start_offsets = read_offsets(data_dir / LOG_START_OFFSETS)
        self._compacted = read_offsets(data_dir / CLEANER_OFFSETS)
        self._directories: set[str] = set()
        self._epoch = ConfigEpoch()
        self._doomed: list[RetiredFile] = []
        self._checkpointing = asyncio.Lock()
        self._scan()
        marker = data_dir / CLEAN_SHUTDOWN
        self.was_clean = marker.exists()
        marker.unlink(missing_ok=True)
        self._housekeeper = Housekeeper(self, now_ms=now_ms, settings=settings)
        self._cleaner = Cleaner(self, now_ms=now_ms, settings=settings)

    def _scan(self) -> None:
        for path in self._data_dir.iterdir():
            if path.name.endswith(_DELETED):
                self._doomed.append(RetiredFile(0, path))
            elif "-" in path.name and not path.name.endswith(_STRAY) and path.is_dir():
                self._directories.add(path.name)

    # -- partitions

    def create(self, topic_id: UUID, topic: str, partition: int) -> None:
        """Make a partition known; one that is known already stays as it is."""
        known = self._topics.get(topic_id)
        if known is None:
            config = LiveConfig(lambda: self._configs_of(topic), self._epoch)
            known = self._topics[topic_id] = _Topic(topic, config)
        known.logs.setdefault(partition, None)

    def get(self, topic_id: UUID, partition: int) -> PartitionLog | None:
        """Return the log of a partition, opened now if need be; None when it is not known.

        Raises:
            OSError: The log cannot be opened.
        """
        topic = self._topics.get(topic_id)
        if topic is None:
            return None
        log = topic.logs.get(partition)
        if log is None and partition in topic.logs:
            log = topic.logs[partition] = self._open(topic_id, topic, partition)
            self._open_logs[topic_id, partition] = log
            if log.config.flush_ms != NO_LIMIT:
                self._housekeeper.wake()
        return log

    def _open(self, topic_id: UUID, topic: _Topic, partition: int) -> PartitionLog:
        name = f"{topic.name}-{partition}"
        directory = self._data_dir / name
        is_ours = name in self._directories and self._claim(directory, topic_id)
        return open_partition(
            topic=topic.name,
            partition=partition,
            topic_id=topic_id,
            directory=directory,
            configs=topic.config.current,
            pool=self._pool,
            recovery_point=self._recovery_points.get(name, 0) if is_ours else 0,
            log_start_offset=self._start_offsets.get(name, 0) if is_ours else 0,
            compacted_up_to=self._compacted.get(name, 0) if is_ours else 0,
            now_ms=self._now_ms,
        )

    def _claim(self, directory: Path, topic_id: UUID) -> bool:
        """Tell whether a directory belongs to the topic; one of an earlier topic of the same name is put away."""
        found = read_topic_id(directory)
        if found == topic_id:
            return True
        if found is None and not any(directory.glob("*.log")):
            return False
        logger.warning("%s belongs to topic id %s, not to %s: it is put aside", directory, found, topic_id)
        self._put_away(directory, f".{found.hex if found is not None else 'unknown'}{_STRAY}")
        return False

    def delete_topic(self, topic_id: UUID) -> None:
        """Forget a topic; its directories are renamed now and removed after ``file.delete.delay.ms``, by a thread."""
        topic = self._topics.pop(topic_id, None)
        if topic is None:
            return
        due_ms = self._now_ms() + topic.config.current().file_delete_delay_ms
        for partition, log in topic.logs.items():
            name = f"{topic.name}-{partition}"
            if log is not None:
                log.is_deleted = True
                log.close()
                del self._open_logs[topic_id, partition]
            directory = self._data_dir / name
            if directory.exists() and read_topic_id(directory) in {topic_id, None}:
                put_away = self._put_away(directory, f".{topic_id.hex}{_DELETED}")
                self._doomed.append(RetiredFile(due_ms, put_away))
        self._housekeeper.wake()

    def _put_away(self, directory: Path, suffix: str) -> Path:
        name = directory.name
        target = directory.with_name(name[: _MAX_NAME_BYTES - len(suffix)] + suffix)
        directory.rename(target)
        self._directories.discard(name)
        self._recovery_points.pop(name, None)
        self._start_offsets.pop(name, None)
        self._compacted.pop(name, None)
        return target

    def update_config(self, topic_id: UUID) -> None:
        """Let the logs of a topic go by its present configs, and look at once whether these ask for something."""
        topic = self._topics.get(topic_id)
        if topic is not None:
            topic.config.changed()
            self._look_at(log for log in topic.logs.values() if log is not None)

    def update_configs(self) -> None:
        """Let all logs go by their present configs: a default has changed. Costs the same however many there are."""
        self._epoch.number += 1
        self._look_at(None)

    def _look_at(self, logs: Iterable[PartitionLog] | None) -> None:
        found = None if logs is None else list(logs)
        self._housekeeper.look_at(found)
        self._cleaner.look_at(found)

    def loaded(self) -> Iterator[PartitionLog]:
        """Return the logs that are open (a copy: it may be iterated over awaits)."""
        return iter(tuple(self._open_logs.values()))

    def known(self) -> Sequence[tuple[UUID, int]]:
        """Return all partitions."""
        return [(topic_id, partition) for topic_id, topic in self._topics.items() for partition in topic.logs]

    def has_directory(self, topic_id: UUID, partition: int) -> bool:
        """Tell whether a partition had a directory when the broker started."""
        topic = self._topics.get(topic_id)
        return topic is not None and f"{topic.name}-{partition}" in self._directories

    def footprint(self, topic_id: UUID, partition: int) -> int | Path | None:
        """Return the bytes of a partition's segments; of one that is not open yet, the directory that has them.

        None when the partition is not known. Nothing is opened by this.
        """
        topic = self._topics.get(topic_id)
        if topic is None or partition not in topic.logs:
            return None
        log = topic.logs[partition]
        if log is not None:
            return log.size
        name = f"{topic.name}-{partition}"
        return self._data_dir / name if name in self._directories else 0

    # -- life

    async def start(self) -> None:
        """Recover what a crash left behind, and begin to keep house. All topics have been made known before.

        After a clean shutdown nothing is opened before it is asked for.
        """
        if not self.was_clean:
            self.recover()
        self._housekeeper.start()
        self._cleaner.start()

    def recover(self) -> None:
        """Open every partition that has a directory, which checks and cuts it; put directories of nobody aside."""
        owned = {f"{topic.name}-{partition}" for topic in self._topics.values() for partition in topic.logs}
        for name in sorted(self._directories - owned):
            directory = self._data_dir / name
            if (directory / PARTITION_METADATA).exists():
                logger.warning("%s belongs to no topic: it is put aside", directory)
                self._put_away(directory, _STRAY)
        for topic_id, partition in self.known():
            if self.has_directory(topic_id, partition):
                self.get(topic_id, partition)

    async def close(self) -> None:
        """Make everything durable, leave checkpoints and the mark of a clean shutdown, close all files.

        Raises:
            OSError: The disk refuses; no mark is left, so that the next start checks the logs.
        """
        await self._housekeeper.close()
        await self._cleaner.close()
        await self.remove_doomed(now_ms=_END_OF_TIME)
        for log in self.loaded():
            log.save_state()
            await self.flush(log)
        await self.checkpoint()
        text = json.dumps({"version": 0, "brokerEpoch": -1})
        await asyncio.to_thread(write_atomically, self._data_dir / CLEAN_SHUTDOWN, text, durable=True)
        for log in self.loaded():
            log.close()
        self._pool.close()

    async def flush(self, log: PartitionLog) -> None:
        """Make a log durable up to its present end, in a thread.

        Raises:
            OSError: The disk refuses.
        """
        end_offset = log.end_offset
        paths = log.fsync_files()
        if paths:
            await asyncio.to_thread(_fsync_all, paths)
        log.flushed(end_offset)

    async def checkpoint(self) -> None:
        """Write recovery points and log start offsets durably.

        Raises:
            OSError: The disk refuses.
        """
        async with self._checkpointing:
            for index, log in enumerate(self.loaded()):
                if index % _SLICE == _SLICE - 1:
                    await asyncio.sleep(0)
                if not log.segments or log.is_deleted:
                    continue
                if log.compacted_up_to:
                    self._compacted[log.name] = log.compacted_up_to
                if log.recovery_point > self._recovery_points.get(log.name, 0):
                    # Producers below the recovery point are not looked for in the log any more.
                    log.save_producers()
                    self._recovery_points[log.name] = log.recovery_point
                if log.log_start_offset > log.segments[0].base_offset:
                    self._start_offsets[log.name] = log.log_start_offset
                else:
                    self._start_offsets.pop(log.name, None)
            recovery_points, start_offsets = dict(self._recovery_points), dict(self._start_offsets)
            compacted = dict(self._compacted)
            # Start offsets first: records that were deleted must not come back.
            await _to_the_end(write_offsets, self._data_dir / LOG_START_OFFSETS, start_offsets)
            await _to_the_end(write_offsets, self._data_dir / RECOVERY_POINTS, recovery_points)
            await _to_the_end(write_offsets, self._data_dir / CLEANER_OFFSETS, compacted)

    async def remove_doomed(self, now_ms: int | None = None) -> None:
        """Remove what was put away long enough ago: directories of deleted topics, files of segments; in a thread."""
        now_ms = self._now_ms() if now_ms is None else now_ms
        due = [file.path for file in self._doomed if file.due_ms <= now_ms]
        self._doomed = [file for file in self._doomed if file.due_ms > now_ms]
        for index, log in enumerate(self.loaded()):
            if index % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if log.retired:
                due += log.take_retired(now_ms)
        if due:
            await asyncio.to_thread(_remove_all, due)


async def _to_the_end(write: Callable[..., None], *arguments: object) -> None:
    """Write in a thread; who is cancelled waits for it all the same, or the next one would write the same file."""
    writing = asyncio.ensure_future(asyncio.to_thread(write, *arguments))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait({writing})
        raise


def _remove_all(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.name.endswith(_DELETED):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _fsync_all(paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            fsync_path(path)
        except FileNotFoundError:
            continue  # deleted by retention or with its topic meanwhile
