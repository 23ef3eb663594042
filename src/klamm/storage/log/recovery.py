"""Opening of a partition directory, with the recovery of the log after a crash.

Below the recovery point everything was on disk, so the log is trusted there. Above it, a power cut may have lost or
torn anything that was only in the page cache. The steps of ``open_partition``:

1. A half-finished segment swap of a compaction is completed or undone (``segment_swap.finish``). Temporary files, files
   of removed segments, indexes without a segment, and segments below the log start offset are deleted. Of the latter,
   a power cut during retention may have left some and not others.
2. After a failed fsync (``OFFLINE`` file), the page cache is dropped, so that the next steps read what is on disk.
3. For segments below the recovery point, the indexes are checked and completed. Later segments are read batch by batch
   with their checksums. At the first damaged batch the log is truncated durably, and all later segments are deleted. A
   gap between two segments above the recovery point is lost data as well, unless compaction may have made it.
4. If the log now ends below its log start offset, all of it is deleted and it continues, empty, at the log start
   offset: offsets are never used twice.
5. The producer snapshot is loaded, or the previous one if the log is shorter now, and the batches after it are
   replayed, also those that DeleteRecords has deleted: their producers continue after them. This also rebuilds the
   indexes of aborted transactions. An unusable index, or the lack of a usable snapshot, makes the replay start at the
   first segment.
6. Leader epochs after the new end are removed, and those of the batches that were read are added.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records import NO_SEQUENCE, ControlType, decode_marker, patched_header, verify_crc
from klamm.protocol.records.layout import CONTROL, CRC_AT, LAST_OFFSET_DELTA_AT, TRANSACTIONAL
from klamm.storage.log import segment_swap
from klamm.storage.log.directories import OFFLINE, UNDEFINED, EpochStart, LeaderEpochs
from klamm.storage.log.files import FilePool, fsync_path, write_atomically
from klamm.storage.log.partition import PartitionLog, entry_for
from klamm.storage.log.producers import NO_OFFSET, PREVIOUS_SNAPSHOT, SNAPSHOT, UNUSABLE, ProducerStates
from klamm.storage.log.segment import ABORTED_SUFFIX, REBUILT_INTERVAL, LogSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from uuid import UUID

    from klamm.storage.log.config import LogConfig
    from klamm.storage.log.segment import BatchHead

logger = logging.getLogger(__name__)

_LEFTOVERS: Final = (".cleaned", ".deleted", ".swap", ".tmp")
_INDEXES: Final = (".index", ".timeindex", ABORTED_SUFFIX)


def open_partition(
    *,
    topic: str,
    partition: int,
    topic_id: UUID,
    directory: Path,
    configs: Callable[[], LogConfig],
    pool: FilePool,
    recovery_point: int,
    log_start_offset: int,
    compacted_up_to: int,
    now_ms: Callable[[], int],
) -> PartitionLog:
    """Open and recover the log of a partition. A missing directory is an empty log.

    Args:
        topic: Topic name.
        partition: Partition index.
        topic_id: Topic id, written into a new directory.
        directory: ``<data directory>/<topic>-<partition>``.
        configs: Function that returns the topic's current configs.
        pool: Pool of file descriptors.
        recovery_point: Offset below which everything is on disk.
        log_start_offset: Log start offset in the checkpoint file, 0 if there is none.
        compacted_up_to: Compacted offset in the checkpoint file, 0 if there is none.
        now_ms: Wall clock, milliseconds since the epoch.

    Raises:
        OSError: The directory cannot be read, or a damaged end cannot be truncated.
    """
    name = f"{topic}-{partition}"
    segments, names = _find_segments(directory, pool, log_start_offset)
    if OFFLINE in names:
        for segment in segments:
            segment.file.forget_cached()
    # Compaction leaves gaps between segments, but only below a checkpointed recovery point. So gaps are acceptable
    # above the recovery point only if the checkpoint itself is lost (recovery point 0).
    may_have_gaps = recovery_point == 0 and (compacted_up_to > 0 or configs().is_compacted)
    end_offset, is_whole, begun = 0, True, [UNDEFINED]
    if segments:
        end_offset, is_whole = _recover(name, segments, recovery_point, begun, may_have_gaps=may_have_gaps)
    if log_start_offset > end_offset:
        # The end of the log was lost. Its offsets must not be used again for other records.
        if segments:
            logger.warning(
                "%s: the log ends at offset %d, below its log start offset %d, and is emptied",
                name,
                end_offset,
                log_start_offset,
            )
        for segment in segments:
            segment.remove()
        segments.clear()
        end_offset = log_start_offset
    has_snapshot = SNAPSHOT in names or PREVIOUS_SNAPSHOT in names
    if not segments and has_snapshot:
        # A later start would trust them as soon as the log has passed their offsets.
        (directory / PREVIOUS_SNAPSHOT).unlink(missing_ok=True)
        (directory / SNAPSHOT).unlink(missing_ok=True)
        fsync_path(directory)
    log_start_offset = max(log_start_offset, segments[0].base_offset if segments else 0)
    recovery_point = min(recovery_point, end_offset)
    producers = ProducerStates(name)
    epochs = LeaderEpochs(directory)
    if segments:
        _replay_producers(
            producers,
            directory=directory,
            has_snapshot=has_snapshot,
            segments=segments,
            recovery_point=recovery_point,
            end_offset=end_offset,
            now_ms=now_ms(),
            is_whole=is_whole,
        )
        epochs.load(segments, log_start_offset, end_offset, begun)
        if OFFLINE in names:
            (directory / OFFLINE).unlink(missing_ok=True)
    return PartitionLog(
        topic=topic,
        partition=partition,
        topic_id=topic_id,
        directory=directory,
        configs=configs,
        pool=pool,
        segments=segments,
        end_offset=end_offset,
        log_start_offset=log_start_offset,
        recovery_point=max(recovery_point, log_start_offset),
        compacted_up_to=min(compacted_up_to, end_offset),
        producers=producers,
        epochs=epochs,
        now_ms=now_ms,
    )


def _find_segments(directory: Path, pool: FilePool, log_start_offset: int) -> tuple[list[LogSegment], Collection[str]]:
    """Return the segments of a directory and all names in it. Delete the files that do not belong to the log."""
    try:
        names = _names_in(directory)
    except FileNotFoundError:
        return [], ()
    if names.keys() & {segment_swap.READY, segment_swap.WORK}:
        segment_swap.finish(directory)
        names = _names_in(directory)
    split = {name: os.path.splitext(name) for name, entry in names.items() if not entry.is_dir()}
    bases = {int(stem) for stem, suffix in split.values() if suffix == ".log" and stem.isdigit()}
    for name, (stem, suffix) in split.items():
        is_orphan = suffix in _INDEXES and stem.isdigit() and int(stem) not in bases
        if suffix in _LEFTOVERS or is_orphan:
            (directory / name).unlink(missing_ok=True)
    sizes = {
        name: names[name].stat().st_size
        for name, (stem, suffix) in split.items()
        if suffix == ".log" or (suffix in _INDEXES and stem.isdigit() and int(stem) in bases)
    }
    segments = [
        LogSegment(
            pool=pool,
            directory=directory,
            base_offset=base,
            created_ms=int(names[f"{base:020d}.log"].stat().st_mtime * 1000),
            sizes=sizes,
        )
        for base in sorted(bases)
    ]
    while len(segments) > 1 and segments[1].base_offset <= log_start_offset:
        segments.pop(0).remove()
    return segments, names


def _names_in(directory: Path) -> Mapping[str, os.DirEntry[str]]:
    """Return the entries of a directory by name. Each is looked at only once, and only if necessary."""
    with os.scandir(directory) as entries:
        return {entry.name: entry for entry in entries}


def _recover(
    name: str, segments: list[LogSegment], recovery_point: int, begun: list[EpochStart], *, may_have_gaps: bool
) -> tuple[int, bool]:
    """Check the batches after the recovery point, and truncate the log at the first damaged one.

    The truncation is made durable. Otherwise the next power cut could bring the old bytes back, after new records with
    the same offsets. The leader epochs of the batches that were read are appended to ``begun``.

    Returns:
        The end offset, and whether nothing is missing between the recovery point and the end. The latter is False if a
        power cut has lost the first segments.
    """
    end_offset = segments[0].base_offset
    is_whole = end_offset <= recovery_point
    for index, segment in enumerate(segments):
        is_last = index == len(segments) - 1
        if not is_last and segments[index + 1].base_offset <= recovery_point:
            segment.complete_indexes(REBUILT_INTERVAL, _END)
            continue
        is_whole &= index == 0 or segment.base_offset <= max(end_offset, recovery_point)
        end_offset, cut = _recover_segment(segment, recovery_point, begun)
        if cut is None and not is_last and not may_have_gaps and segments[index + 1].base_offset != end_offset:
            cut = 0, f"the next segment begins at offset {segments[index + 1].base_offset}"
        if cut is None:
            continue
        lost = segments[index + 1 :]
        logger.warning(
            "%s: truncated at offset %d, %d bytes are lost: %s%s",
            name,
            end_offset,
            cut[0] + sum(other.size for other in lost),
            cut[1],
            f"; {len(lost)} later segments are deleted" if lost else "",
        )
        for other in reversed(lost):
            other.remove()
        del segments[index + 1 :]
        fsync_path(segment.file.path)
        fsync_path(segment.file.path.parent)
        break
    return end_offset, is_whole


def _recover_segment(
    segment: LogSegment, recovery_point: int, begun: list[EpochStart]
) -> tuple[int, tuple[int, str] | None]:
    """Check a segment. Return its end offset, and the number of truncated bytes with the reason, or None."""
    end_offset, reason = segment.base_offset, None
    position = segment.trust_up_to(recovery_point)
    try:
        for head in segment.walk(position):
            if head.last_offset >= recovery_point and not _is_sound(segment, head.position):
                reason = "a batch with a wrong checksum"
                break
            segment.account(head.position, head.size, head.last_offset, head.max_timestamp, REBUILT_INTERVAL)
            if head.partition_leader_epoch > begun[-1].epoch:
                begun.append(EpochStart(head.partition_leader_epoch, head.base_offset))
            end_offset = head.last_offset + 1
            position = head.position + head.size
    except CorruptBatchError as error:
        reason = str(error)
    if reason is None:
        return end_offset, None
    cut = segment.size - position
    segment.truncate(position)
    return end_offset, (cut, reason)


_END: Final = 2**63 - 1


def _is_sound(segment: LogSegment, position: int) -> bool:
    try:
        batch = segment.batch_at(position)
    except CorruptBatchError:
        return False
    return batch is not None and batch.magic == 2 and verify_crc(batch)  # noqa: PLR2004  # the only format we write


def _replay_producers(
    producers: ProducerStates,
    *,
    directory: Path,
    has_snapshot: bool,
    segments: list[LogSegment],
    recovery_point: int,
    end_offset: int,
    now_ms: int,
    is_whole: bool,
) -> None:
    """Load the producer snapshot, replay the batches after it, and complete the indexes of aborted transactions.

    The snapshot is written before the recovery point advances, and is removed only if there was no producer. So without
    a snapshot there is no producer below the recovery point.
    """
    saved = _load_producers(producers, directory, segments, end_offset, is_whole=is_whole) if has_snapshot else None
    first_offset = segments[0].base_offset
    # Not clamped to the log start offset: DeleteRecords advances it without a new snapshot.
    start = max(recovery_point if saved is None else saved, first_offset)
    ends = [*(segment.base_offset for segment in segments[1:]), end_offset]
    is_damaged = _are_aborted_damaged(segments, ends, start)
    if is_damaged:
        producers.clear()
        saved, start = UNUSABLE, first_offset
    for segment, end in zip(segments, ends, strict=True):
        if end <= start and segment is not segments[-1]:
            continue
        if is_damaged or segment.base_offset >= start:
            segment.aborted.clear()
        segment.aborted.keep_below(start)
        if start < end_offset:
            _replay_segment(producers, segment, start, now_ms)
    if saved == UNUSABLE or start < recovery_point:
        # Below the recovery point, nothing else makes the completed indexes durable. A later snapshot lets a start skip
        # them.
        for segment in segments:
            segment.aborted.sync()
    if saved == UNUSABLE:
        # The unusable snapshot must be replaced now: once the log is long enough again, a later start would trust it.
        producers.save(directory, end_offset, durable=True)


def _replay_segment(producers: ProducerStates, segment: LogSegment, start: int, now_ms: int) -> None:
    try:
        for head in segment.walk(segment.position_of(start) or 0):
            if head.last_offset >= start:  # DeleteRecords may have moved the recovery point into a batch
                _replay(producers, segment, head, now_ms)
    except CorruptBatchError as error:
        segment.is_damaged = True
        logger.error("%s is damaged, the producer state of that part is unknown: %s", segment.file.path, error)  # noqa: TRY400 -- the message is complete


def _are_aborted_damaged(segments: Sequence[LogSegment], ends: Sequence[int], start: int) -> bool:
    """Return whether an index of aborted transactions cannot be trusted below ``start``."""
    for segment, end in zip(segments, ends, strict=True):
        is_closed = end <= start and segment is not segments[-1]
        if segment.base_offset < start and not segment.aborted.is_sound(min(start, end), is_closed=is_closed):
            logger.warning("%s is damaged, all such indexes of the partition are rebuilt", segment.aborted.file.path)
            return True
    return False


def _load_producers(
    producers: ProducerStates, directory: Path, segments: Sequence[LogSegment], end_offset: int, *, is_whole: bool
) -> int | None:
    """Load the producer snapshot, and return the result of ``ProducerStates.load``."""
    saved = producers.load(directory, end_offset)
    if saved is not None and (not is_whole or 0 <= saved < segments[0].base_offset):
        logger.warning(
            "%s: the producer state is rebuilt from the log, because batches after the snapshot are missing",
            directory.name,
        )
        producers.clear()
        saved = UNUSABLE
    return saved


def _replay(producers: ProducerStates, segment: LogSegment, head: BatchHead, now_ms: int) -> None:
    marker = None
    if head.attributes & CONTROL:
        batch = segment.batch_at(head.position)
        marker = decode_marker(batch) if batch is not None else None
    first = producers.replay(head, now_ms, marker)
    if first != NO_OFFSET and marker is not None and marker.control_type is ControlType.ABORT:
        segment.aborted.append(entry_for(head.producer_id, first, head.last_offset, producers.first_open_offset))


def restore_markers(directory: Path, *, is_compacted: bool) -> None:
    """Restore the control bit of markers that earlier versions wrote without it to topics with LogAppendTime.

    Only such markers are transactional batches without a sequence number: producers cannot append one. The producer
    snapshot is invalidated first, so that the log, once opened, rebuilds the state of all transactions.

    Args:
        directory: Partition directory whose log is not open.
        is_compacted: Whether compaction has rewritten the log. It may have removed such markers like records, so the
            state of the transactions is left as it is.

    Raises:
        OSError: A file cannot be read or written.
    """
    count, pool = 0, FilePool()
    for path in sorted(directory.glob("[0-9]*.log")):
        segment = LogSegment(pool=pool, directory=directory, base_offset=int(path.stem), created_ms=0)
        patches = list(_bare_markers(segment))
        segment.close()
        if patches and not count and not is_compacted:
            (directory / PREVIOUS_SNAPSHOT).unlink(missing_ok=True)
            write_atomically(directory / SNAPSHOT, "", durable=True)
        if patches:
            _patch(path, patches)
        count += len(patches)
    if count:
        logger.warning(
            "%s: restored the control bit of %d transaction markers, which an earlier version wrote without it because"
            " of message.timestamp.type=LogAppendTime. %s",
            directory.name,
            count,
            "The topic has been compacted: records of committed transactions may be missing and must be written again"
            if is_compacted
            else "The state of all its transactions is rebuilt from the log",
        )


def _bare_markers(segment: LogSegment) -> Iterator[tuple[int, bytes]]:
    """Yield the repairs of transaction markers that lost their control bit: position, and checksum with attributes."""
    with suppress(CorruptBatchError):  # the records after the damage cannot be read either
        for head in segment.walk(0):
            if head.base_sequence == NO_SEQUENCE and head.attributes & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL:
                batch = segment.batch_at(head.position)
                if batch is not None and verify_crc(batch) and decode_marker(batch) is not None:
                    header = patched_header(batch, attributes=batch.attributes | CONTROL)
                    yield head.position + CRC_AT, header[CRC_AT:LAST_OFFSET_DELTA_AT]


def _patch(path: Path, patches: Iterable[tuple[int, bytes]]) -> None:
    """Overwrite bytes of a file durably. Keep its modification time, which counts for retention."""
    status = path.stat()
    with path.open("r+b") as file:
        for position, data in patches:
            file.seek(position)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
