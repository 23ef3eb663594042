"""The log manager: all partition logs of a data directory, their checkpoints, flushes and deletion."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.clock import wall_clock_ms
from klamm.storage.descriptors import EXHAUSTED, FLUSH_THREADS, LENT, SPARE
from klamm.storage.log import flusher
from klamm.storage.log.cleaner import Cleaner
from klamm.storage.log.config import NO_LIMIT, ConfigEpoch, HousekeepingSettings, LiveConfig
from klamm.storage.log.directories import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    DELETED,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    STRAY,
    STRAY_RETENTION_MS,
    CheckpointFiles,
    Checkpoints,
    is_claimed,
    is_partition,
    put_aside,
    read_offsets,
    read_topic_id,
    remove_all,
    stray_since_ms,
)
from klamm.storage.log.files import DEFAULT_MAX_OPEN, FilePool, FsyncError, fsync_path, write_atomically
from klamm.storage.log.flusher import Flusher, RecoveryState, in_parts, to_its_end
from klamm.storage.log.housekeeping import ErrorReports, Housekeeper, with_pauses
from klamm.storage.log.recovery import open_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path
    from uuid import UUID

    from klamm.storage.log.config import LogConfig
    from klamm.storage.log.housekeeping import ConfigOwner
    from klamm.storage.log.partition import PartitionLog
    from klamm.storage.log.segment import LogSegment

logger = logging.getLogger(__name__)

_RENAMED_AT_ONCE: Final = 32
"""Directories of a deleted topic, or old segments, that are renamed before other requests are served. Takes some
milliseconds."""
_END_OF_TIME: Final = 2**63


class _RetiredDirectory(NamedTuple):
    """A renamed directory, and the time of its removal in milliseconds since the epoch."""

    due_ms: int
    path: Path


class _Topic:
    """The logs of a topic by partition; None for a log that has not been opened and checked yet."""

    __slots__ = ("config", "logs", "name")

    def __init__(self, name: str, config: LiveConfig) -> None:
        self.name = name
        self.config = config
        self.logs: dict[int, PartitionLog | None] = {}


class LogManager:
    """The logs of all partitions. Used on the event loop only.

    A partition costs one dictionary entry until its log is opened, and an empty partition has no directory. The data
    directory has Kafka's layout: ``<topic>-<partition>/``, the checkpoint files for recovery points, log start offsets
    and compacted offsets, and the marker file of a clean shutdown.

    Terms: the *recovery point* of a log is the offset below which everything is on disk. The *checkpointed point* is
    the recovery point in the checkpoint file, at which a recovery starts.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        configs_of: Callable[[str], Mapping[str, str]],
        now_ms: Callable[[], int] = wall_clock_ms,
        pool: FilePool | None = None,
        settings: Callable[[], HousekeepingSettings] = HousekeepingSettings,
        leader_epoch: int = 0,
    ) -> None:
        """Scan a data directory. No log is opened yet.

        Args:
            data_dir: Existing directory that this process has locked.
            configs_of: Function that returns the effective configs of a topic by name.
            now_ms: Wall clock, milliseconds since the epoch.
            pool: Pool of file descriptors; None for one of ``DEFAULT_MAX_OPEN``.
            settings: Function that returns the current broker configs of log maintenance.
            leader_epoch: Leader epoch of all partitions.
        """
        self._leader_epoch = leader_epoch
        self._data_dir = data_dir
        self._configs_of = configs_of
        self._now_ms = now_ms
        self._pool = pool if pool is not None else FilePool(DEFAULT_MAX_OPEN)
        self._topics: dict[UUID, _Topic] = {}
        self._open_logs: dict[tuple[UUID, int], PartitionLog] = {}
        self._check: Callable[[PartitionLog], None] | None = None
        self._unusable: set[tuple[UUID, int]] = set()
        """Partitions whose log could not be opened, or has failed its check."""
        self._recovery_points = read_offsets(data_dir / RECOVERY_POINTS)
        self._start_offsets = read_offsets(data_dir / LOG_START_OFFSETS)
        self._compacted = read_offsets(data_dir / CLEANER_OFFSETS)
        self._directories: set[str] = set()
        self._epoch = ConfigEpoch()
        self._retired: list[_RetiredDirectory] = []
        self._strays: list[_RetiredDirectory] = []
        self._checkpointing = asyncio.Lock()
        self._creations: dict[str, asyncio.Future[Sequence[PartitionLog]]] = {}
        """Directories that threads are creating, by name."""
        self._reports = ErrorReports()
        self._flusher = Flusher(data_dir)
        self.checkpoint_files = CheckpointFiles(data_dir)
        self._outdated: set[str] = set()
        """Names of removed directories for which the checkpoint files may still contain offsets."""
        self._checkpoint_number = 0
        self._is_started = False
        self._scan()
        marker = data_dir / CLEAN_SHUTDOWN
        self.was_clean = marker.exists()
        marker.unlink(missing_ok=True)
        fsync_path(
            data_dir
        )  # after a power cut the marker must not reappear, and the directories found here must not vanish
        self._deletions: set[asyncio.Task[None]] = set()
        """Tasks that rename the directories of deleted topics with many partitions."""
        self._deleted_topics: dict[str, dict[UUID, _Topic]] = {}
        """Deleted topics by name and id, with the partitions whose directories are not renamed yet."""
        self.topic_configs: ConfigOwner | None = None
        """Owner of the topics' configs. Nothing is deleted by values that are not durable. None: they always are."""
        self.housekeeper = Housekeeper(self, now_ms=now_ms, settings=settings)
        self.cleaner = Cleaner(self, now_ms=now_ms, settings=settings)

    def _scan(self) -> None:
        for path in self._data_dir.iterdir():
            if path.name.endswith(DELETED):
                self._retired.append(_RetiredDirectory(0, path))
            elif path.name.endswith(STRAY):
                self._strays.append(_RetiredDirectory(stray_since_ms(path) + STRAY_RETENTION_MS, path))
            elif "-" in path.name and path.is_dir():
                self._directories.add(path.name)
        checkpointed = {*self._recovery_points, *self._start_offsets, *self._compacted}
        for name in checkpointed - self._directories:
            self._forget_offsets(name)

    def _forget_directory(self, name: str) -> None:
        """Drop a directory that is not used any more, and its checkpointed offsets."""
        self._directories.discard(name)
        self._forget_offsets(name)

    def _forget_offsets(self, name: str) -> None:
        """Drop the checkpointed offsets of a removed directory, so that a new one of that name has none."""
        for offsets in (self._recovery_points, self._start_offsets, self._compacted):
            if offsets.pop(name, None) is not None:
                self._outdated.add(name)

    # -- partitions

    def create(self, topic_id: UUID, topic: str, partition: int) -> None:
        """Register a partition. Has no effect if it is already registered."""
        state = self._topics.get(topic_id)
        if state is None:
            config = LiveConfig(lambda: self._configs_of(topic), self._epoch)
            state = self._topics[topic_id] = _Topic(topic, config)
        name = f"{topic}-{partition}"
        if self._is_started and partition not in state.logs and name in self._directories:
            # A new partition has no directory yet, so this one belongs to another topic.
            self._put_stray_aside(self._data_dir / name)
        state.logs.setdefault(partition, None)

    def get(self, topic_id: UUID, partition: int) -> PartitionLog | None:
        """Return the log of a partition, opening it if necessary; None if the partition is unknown.

        Raises:
            OSError: The log cannot be opened or is offline because of that, or it fails the check of
                ``check_before_use``.
        """
        topic = self._topics.get(topic_id)
        if topic is None:
            return None
        log = topic.logs.get(partition)
        if log is None and partition in topic.logs:
            log = topic.logs[partition] = self._usable(topic_id, topic, partition)
        return log

    def _usable(self, topic_id: UUID, topic: _Topic, partition: int) -> PartitionLog:
        """Open a log and check it. After a failed check it stays open for flushes and the stop."""
        key = topic_id, partition
        self._unusable.add(key)
        log = self._open_logs.get(key)
        if log is None:
            with self._flusher.opening(topic_id, topic.name, partition):
                log = self._open_logs[key] = self._open_anyhow(topic_id, topic, partition)
            if log.config.flush_ms != NO_LIMIT:
                self.housekeeper.wake()
        if self._check is not None:
            self._check(log)
        self._unusable.discard(key)
        return log

    def check_before_use(self, check: Callable[[PartitionLog], None]) -> None:
        """Check every log before ``get`` returns it: the open logs now, the others when they are opened.

        A check that fails is repeated by the next ``get`` of the log.

        Args:
            check: Function that raises an OSError if the log cannot be used yet. It reports the error itself.
        """
        self._check = check
        for topic_id, partition in tuple(self._open_logs):
            self._topics[topic_id].logs[partition] = None
            with suppress(OSError):
                self.get(topic_id, partition)

    def is_new(self, topic_id: UUID, partition: int) -> bool:
        """Return whether an existing partition has no directory yet, so that ``create_directories`` saves time."""
        topic = self._topics.get(topic_id)
        if topic is None or partition not in topic.logs:
            return False
        log = topic.logs[partition]
        return f"{topic.name}-{partition}" not in self._directories if log is None else not log.has_directory

    async def create_directories(self, partitions: Iterable[tuple[UUID, int]]) -> None:
        """Create the directories of new partitions before their first append, in threads.

        The topic id in a new directory must be durable before the first record, which takes two fsyncs. Here many
        partitions share the disk's commits, and other requests are served meanwhile. A directory that cannot be
        created is left to the append, which reports the error.
        """
        logs: dict[PartitionLog, None] = {}
        async for topic_id, partition in with_pauses(partitions):
            with suppress(OSError):
                if (log := self.get(topic_id, partition)) is not None:
                    logs[log] = None
        while running := {creation for log in logs if (creation := self._creations.get(log.name)) is not None}:
            await asyncio.wait(running)
        new = [log for log in logs if not log.has_directory and not log.is_deleted]
        started = []
        for part in in_parts(new):
            creation = self._flusher.run(_create_all, part)
            self._creations |= dict.fromkeys([log.name for log in part], creation)
            creation.add_done_callback(partial(self._created, part))
            started.append(creation)
        if started:
            await asyncio.wait(started)

    def _created(self, wanted: Sequence[PartitionLog], creation: asyncio.Future[Sequence[PartitionLog]]) -> None:
        for log in wanted:
            del self._creations[log.name]
        for log in creation.result():
            log.has_directory = True
            if log.is_deleted:
                self._retire_directory(log.directory, log.topic_id, log.config)

    def _open_anyhow(self, topic_id: UUID, topic: _Topic, partition: int) -> PartitionLog:
        """Open a log, using reserved descriptors if the process has no free one."""
        try:
            return self._open(topic_id, topic, partition)
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
        self._pool.close_some(LENT)
        with SPARE.lent():
            return self._open(topic_id, topic, partition)

    def _open(self, topic_id: UUID, topic: _Topic, partition: int) -> PartitionLog:
        name = f"{topic.name}-{partition}"
        directory = self._data_dir / name
        for deleted_id, deleted in self._deleted_topics.get(topic.name, {}).items():
            if partition in deleted.logs:  # its directory would become a stray before the deletion comes to it
                self._put_partition_aside(deleted_id, deleted, partition, deleted.logs.pop(partition))
        is_there = name in self._directories or directory.exists()
        is_ours = is_there and is_claimed(directory, topic_id)
        if is_there and not is_ours:
            self._put_stray_aside(directory)
            if directory.exists():
                raise OSError(errno.ENOTEMPTY, "A directory of another topic cannot be moved out of the way", name)
        if not is_ours and name in self._outdated:
            self.checkpoint_files.write(self.snapshot())
            self._outdated.clear()
        log = open_partition(
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
        recorded = self._recovery_points.get(name, 0)
        if log.recovery_point < recorded:
            # What was cut off is written again, and not durable at the next start.
            self._recovery_points[name] = log.recovery_point
            try:
                self.checkpoint_files.write(self.snapshot())
            except OSError:
                self._recovery_points[name] = recorded
                raise
        log.has_directory, log.leader_epoch = is_ours, self._leader_epoch
        return log

    def delete_topic(self, topic_id: UUID) -> asyncio.Task[None] | None:
        """Remove a topic. Its directories are renamed now, and removed by a thread after ``file.delete.delay.ms``.

        If a directory cannot be renamed, this is logged. It keeps the id of the deleted topic, so no other topic uses
        it, and the next start renames it.

        Returns:
            The task that renames the directories of a topic with many partitions while other requests are served; None
            if all directories are already renamed.
        """
        topic = self._topics.pop(topic_id, None)
        self._flusher.forget(topic_id)
        if topic is None:
            return None
        for partition in topic.logs:
            self._forget_directory(f"{topic.name}-{partition}")  # a new topic of this name may come before the renaming
            self._unusable.discard((topic_id, partition))
            log = topic.logs[partition] = self._open_logs.pop((topic_id, partition), None)
            if log is not None:
                log.is_deleted = True
        self._deleted_topics.setdefault(topic.name, {})[topic_id] = topic
        steps = self._put_topic_aside(topic_id, topic)
        if len(topic.logs) <= _RENAMED_AT_ONCE:
            for _ in steps:
                pass
            return None
        task = asyncio.get_running_loop().create_task(self._in_slices(steps), name=f"deletion of {topic.name}")
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)
        return task

    async def _in_slices(self, steps: Iterator[None]) -> None:
        async for _ in with_pauses(steps, at_once=_RENAMED_AT_ONCE):
            pass

    def _put_topic_aside(self, topic_id: UUID, topic: _Topic) -> Iterator[None]:
        """Close the logs of a deleted topic and rename their directories, one per step."""
        while topic.logs:
            self._put_partition_aside(topic_id, topic, *topic.logs.popitem())
            yield
        of_this_name = self._deleted_topics[topic.name]
        del of_this_name[topic_id]
        if not of_this_name:
            del self._deleted_topics[topic.name]
        self.housekeeper.wake()

    def _put_partition_aside(self, topic_id: UUID, topic: _Topic, partition: int, log: PartitionLog | None) -> None:
        if log is not None:
            log.close()
        self._retire_directory(self._data_dir / f"{topic.name}-{partition}", topic_id, topic.config.current())

    def _retire_directory(self, directory: Path, topic_id: UUID, config: LogConfig) -> None:
        """Rename the directory of a deleted partition if it exists, and schedule its removal."""
        due_ms = self._now_ms() + config.file_delete_delay_ms
        try:
            if directory.exists() and read_topic_id(directory) in {topic_id, None}:
                self._retired.append(_RetiredDirectory(due_ms, self._put_aside(directory, DELETED)))
        except OSError as error:
            logger.error("%s of a deleted topic cannot be renamed: %s", directory, error)  # noqa: TRY400 -- the message is complete

    def _put_stray_aside(self, directory: Path) -> None:
        """Rename a directory that belongs to no topic. If this fails, it is logged, and the directory stays unused."""
        try:
            target = self._put_aside(directory, STRAY)
        except OSError as error:
            logger.error("%s belongs to no topic and cannot be renamed: %s", directory, error)  # noqa: TRY400 -- the message is complete
        else:
            self._strays.append(_RetiredDirectory(self._now_ms() + STRAY_RETENTION_MS, target))
            logger.warning(
                "%s belongs to no topic: renamed to %s, to be removed in %d days",
                directory,
                target.name,
                STRAY_RETENTION_MS // 86_400_000,
            )

    def _put_aside(self, directory: Path, suffix: str) -> Path:
        target = put_aside(directory, suffix, self._now_ms())
        self._forget_directory(directory.name)
        return target

    def update_config(self, topic_id: UUID) -> None:
        """Apply the changed configs of a topic to its logs, and let housekeeping and the cleaner check them now."""
        topic = self._topics.get(topic_id)
        if topic is not None:
            topic.config.changed()
            logs = [log for log in topic.logs.values() if log is not None]
            if logs:
                self.housekeeper.check_soon(logs)
                self.cleaner.check_soon(logs)

    def update_configs(self) -> None:
        """Apply changed broker defaults to all logs. The cost does not depend on the number of logs."""
        self._epoch.number += 1
        self.housekeeper.check_soon(None)
        self.cleaner.check_soon(None)

    def is_settled(self, log: PartitionLog) -> bool:
        """Return whether the configs of a log are durable. Nothing is deleted by others."""
        return self.topic_configs is None or self.topic_configs.is_settled(log.topic)

    def check_again(self) -> None:
        """Let housekeeping and the cleaner check the logs whose configs were not durable."""
        self.housekeeper.check_again()
        self.cleaner.check_again()

    async def check_retention(self) -> None:
        """Apply retention to all logs with durable configs now, and return when that is done."""
        await self.housekeeper.check_now()

    def loaded(self) -> Iterator[PartitionLog]:
        """Return the open logs (a copy, so the iteration may be interrupted by awaits)."""
        return iter(tuple(self._open_logs.values()))

    def partitions(self) -> Sequence[tuple[UUID, int]]:
        """Return all partitions."""
        return [(topic_id, partition) for topic_id, topic in self._topics.items() for partition in topic.logs]

    def has_directory(self, topic_id: UUID, partition: int) -> bool:
        """Return whether a partition had a directory when the broker started."""
        topic = self._topics.get(topic_id)
        return topic is not None and f"{topic.name}-{partition}" in self._directories

    def footprint(self, topic_id: UUID, partition: int) -> int | Path | None:
        """Return the size of a partition's segments in bytes, or where to measure it. The log is not opened.

        Returns:
            The size of an open log. For a log that is not open, its directory, which the caller measures in a thread,
            or 0 if it has none. None for an unknown partition.
        """
        topic = self._topics.get(topic_id)
        if topic is None or partition not in topic.logs:
            return None
        log = topic.logs[partition]
        if log is not None:
            return log.size
        name = f"{topic.name}-{partition}"
        return self._data_dir / name if name in self._directories else 0

    # -- start, stop and flushes

    async def start(self) -> None:
        """Recover the logs after a crash, and start the maintenance tasks. All partitions must be registered before.

        After a clean shutdown, logs are opened at first use. After a crash, all logs are opened before any request is
        served, so that transactions that belong to no transactional id are found and ended, also in logs that no
        request opens.
        """
        self.put_strays_aside()
        if not self.was_clean:
            self.recover()
        self._is_started = True
        self.housekeeper.start()
        self.cleaner.start()

    def put_strays_aside(self) -> None:
        """Rename the partition directories that belong to no topic."""
        owned = {f"{topic.name}-{partition}" for topic in self._topics.values() for partition in topic.logs}
        for name in sorted(self._directories - owned):
            if is_partition(self._data_dir / name):
                self._put_stray_aside(self._data_dir / name)

    def recover(self) -> None:
        """Open every partition that has a directory, which checks the log and truncates a damaged end.

        If a log cannot be opened, this is logged. Unless it is offline, the next request for the log tries again.
        """
        for topic_id, partition in self.partitions():
            if self.has_directory(topic_id, partition):
                try:
                    self.get(topic_id, partition)
                except OSError:
                    name = f"{self._topics[topic_id].name}-{partition}"
                    if partition not in self.offline_partitions(topic_id):
                        logger.exception("%s cannot be opened; its clients receive KAFKA_STORAGE_ERROR", name)

    async def close(self) -> None:
        """Flush all logs, write the checkpoints and the marker file of a clean shutdown, and close all files.

        If the disk fails, this is logged and the marker file is not written, so the next start checks all logs. The
        same applies if a log could not be used since a crash: a transaction in it may still lack its marker.
        """
        if self._deletions:
            await asyncio.wait(self._deletions)
        await self.housekeeper.close()
        await self.cleaner.close()
        await self.remove_retired(now_ms=_END_OF_TIME)
        is_clean = await self._leave_all(tuple(self.loaded())) and (self.was_clean or not self._unusable)
        try:
            await self.checkpoint()
            if is_clean:
                text = json.dumps({"version": 0, "brokerEpoch": -1})
                await asyncio.to_thread(write_atomically, self._data_dir / CLEAN_SHUTDOWN, text, durable=True)
        except OSError as error:
            is_clean = False
            logger.error("The checkpoint files in %s cannot be written: %s", self._data_dir, error)  # noqa: TRY400 -- the message is complete
        if not is_clean:
            logger.warning("Some logs could not be opened or flushed: the next start of the broker checks all logs")
        for log in self.loaded():
            log.close()
        self._pool.close()
        self._flusher.close()

    async def _leave_all(self, logs: Sequence[PartitionLog]) -> bool:
        """Flush logs before they are closed, and return whether all of them are on disk.

        Many logs are flushed concurrently, because a disk is far slower with one fsync after the other. Still more are
        flushed at once, because one sync of the file system is faster than an fsync of each file.
        """
        changed = sum(bool(log.segments) and log.end_offset > log.recovery_point for log in logs)
        if changed >= flusher.MANY_LOGS:
            return await self._leave(logs)
        room = asyncio.Semaphore(2 * FLUSH_THREADS)

        async def leave(some: Sequence[PartitionLog]) -> bool:
            async with room:
                return await self._leave(some)

        return all(await asyncio.gather(*map(leave, in_parts(logs))))

    async def _leave(self, logs: Sequence[PartitionLog]) -> bool:
        saved: dict[PartitionLog, Sequence[Path]] = {}
        async for log in with_pauses(logs):
            if (files := self._save_state(log)) is not None:
                saved[log] = files
        errors = await self._flusher.flush_together(logs, saved)
        for log, error in zip(logs, errors, strict=True):
            if error is None and log in saved and not log.is_deleted:
                self._recovery_points[log.name] = log.recovery_point
            elif error is not None and log.failure is None:
                self._reports.report(log.name, "cannot be flushed", error)
        return len(saved) == len(logs) and not any(errors)

    def _save_state(self, log: PartitionLog) -> Sequence[Path] | None:
        """Write the state that the next start needs, and return the files to fsync; None after an error."""
        try:
            recorded = self._recovery_points.get(log.name, 0)
            if not log.segments or log.end_offset <= recorded:
                log.save_state()
                return ()
            log.seal()
            return log.save_recovery_state(recorded)
        except OSError as error:
            if log.failure is None:
                self._reports.report(log.name, "cannot be saved", error)
            return None

    async def flush(self, log: PartitionLog) -> None:
        """Make a log durable up to its current end offset, in a thread. If the fsync fails, the log goes offline.

        Raises:
            OSError: The flush failed, or an earlier one has.
        """
        await self._flusher.flush(log)

    async def checkpoint(self) -> None:
        """Write recovery points, log start offsets and compacted offsets durably.

        If the fsync of a log's indexes or producers fails, the log goes offline and keeps its checkpointed recovery
        point. The files of segments below the log start offsets are then renamed. A rename that fails is logged and
        tried again by the next checkpoint.

        Raises:
            OSError: A checkpoint file cannot be written.
        """
        async with self._checkpointing:
            moved: list[RecoveryState] = []
            doomed: list[tuple[PartitionLog, LogSegment]] = []
            async for log in with_pauses(self.loaded()):
                if not log.segments or log.is_deleted:
                    continue
                if log.compacted_up_to:
                    self._compacted[log.name] = log.compacted_up_to
                self._save_recovery_state(log, moved)
                if log.log_start_offset > 0:
                    self._start_offsets[log.name] = log.log_start_offset
                doomed += [(log, segment) for segment in log.doomed]
            await self._flusher.fsync(moved)
            for state in moved:
                if state.error is None and not state.log.is_deleted:
                    self._recovery_points[state.log.name] = state.recovery_point
                elif state.error is not None and state.log.failure is None:  # a failed fsync has already been logged
                    self._reports.report(state.log.name, "cannot save its indexes and producers", state.error)
            outdated = frozenset(self._outdated)
            await _to_the_end(self.checkpoint_files.write, self.snapshot())
            self._outdated -= outdated
            for state in moved:
                state.log.checkpointed_point = self._recovery_points.get(state.log.name, 0)
            async for log, segment in with_pauses(doomed, at_once=_RENAMED_AT_ONCE):
                self._retire(log, segment)

    def _retire(self, log: PartitionLog, segment: LogSegment) -> None:
        if not log.is_deleted:
            try:
                # A longer name may take a new block of the directory.
                self.checkpoint_files.ballast.spend(partial(log.retire, segment))
            except OSError as error:
                self._reports.report(log.name, "cannot remove old segments", error)

    def _save_recovery_state(self, log: PartitionLog, moved: list[RecoveryState]) -> None:
        recorded = self._recovery_points.get(log.name, 0)
        if log.recovery_point > recorded and log.failure is None:
            try:
                moved.append(RecoveryState(log, log.recovery_point, log.save_recovery_state(recorded)))
            except FsyncError as error:
                self.take_offline(log, error)
            except OSError as error:
                self._reports.report(log.name, "cannot save its indexes and producers", error)
        elif recorded > log.checkpointed_point:  # the state is saved, but the checkpoint could not be written
            moved.append(RecoveryState(log, recorded, ()))

    @property
    def flush_failures(self) -> int:
        """Number of failed fsyncs since the start."""
        return self._flusher.failures

    @property
    def offline_count(self) -> int:
        """Number of logs that are offline because of a disk error."""
        return self._flusher.offline_count

    def offline_partitions(self, topic_id: UUID) -> AbstractSet[int]:
        """Return the partitions of a topic that are offline because of a disk error."""
        return self._flusher.offline_partitions(topic_id)

    def take_offline(self, log: PartitionLog, error: OSError) -> None:
        """Stop serving a log after a disk error, and count it as offline."""
        self._flusher.take_offline(log, error)

    @property
    def has_outdated_checkpoints(self) -> bool:
        """Return whether the checkpoint files contain offsets of directories that no longer exist."""
        return bool(self._outdated)

    def snapshot(self) -> Checkpoints:
        """Return the offsets to write to the checkpoint files. A later snapshot has a higher number."""
        self._checkpoint_number += 1
        return Checkpoints(
            self._checkpoint_number, dict(self._start_offsets), dict(self._recovery_points), dict(self._compacted)
        )

    async def remove_retired(self, now_ms: int | None = None) -> None:
        """Remove renamed directories and files whose delay is over, in a thread.

        Args:
            now_ms: Time that decides which files are due, in milliseconds since the epoch; None for the broker's clock.
                Strays always use the broker's clock.
        """
        due = [retired.path for retired in self._strays if retired.due_ms <= self._now_ms()]
        self._strays = [retired for retired in self._strays if retired.path not in due]
        now_ms = self._now_ms() if now_ms is None else now_ms
        due += [retired.path for retired in self._retired if retired.due_ms <= now_ms]
        self._retired = [retired for retired in self._retired if retired.due_ms > now_ms]
        async for log in with_pauses(self.loaded()):
            if log.retired:
                due += log.take_retired(now_ms)
        if due:
            await asyncio.to_thread(remove_all, due)


async def _to_the_end(write: Callable[..., None], *arguments: object) -> None:
    """Write in a thread. A cancelled caller still waits for the end, so that two threads never write the same file."""
    await to_its_end(asyncio.ensure_future(asyncio.to_thread(write, *arguments)))


def _create_all(logs: Iterable[PartitionLog]) -> Sequence[PartitionLog]:
    """Create the directories of new partitions, and return the logs for which that succeeded."""
    created = []
    for log in logs:
        with suppress(OSError):  # the append tries again, and reports the error
            log.create_directory()
            created.append(log)
    return created
