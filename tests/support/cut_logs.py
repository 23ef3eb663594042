"""Partition logs under power cuts: a load that uses every kind of file, and a checker of the logs after a cut.

The checker has its own decoder (``raw_logs``). It knows which records were appended at which offsets, which were
acknowledged as durable at the moment of the cut, and which topics existed.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple
from unittest import mock
from uuid import UUID

from klamm.protocol.records import ControlType
from klamm.storage.log import LogManager, PartitionLog, append_marker, delete_records
from klamm.storage.log.partition import overlapping
from tests.support.logs import NOON_MS, Clock, batch
from tests.support.raw_logs import ABORT, RawBatch, decode

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.recorded_disk import Cut, RecordedDisk

_COMMON: Final = {"segment.bytes": "900", "index.interval.bytes": "150", "file.delete.delay.ms": "0"}
CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    "plain": _COMMON,
    "compacted": _COMMON | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    "retained": _COMMON | {"retention.bytes": "2000", "retention.ms": "20000"},
    "transactional": _COMMON,
    "again": _COMMON,
}
"""Topics by name; ``again`` is deleted and created again."""
PARTITIONS: Final = 2
_TRANSACTIONAL_PRODUCERS: Final = (8, 9)

Key = tuple[UUID, int]
"""A partition."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The guarantees for a partition at one moment. They must hold after a power cut at this moment."""

    durable_end: int = 0
    """All records below this offset were acknowledged as durable."""
    start: int = 0
    """Records below this offset were acknowledged as deleted."""
    highest_start: int = 0
    """No record at or above this offset was deleted."""


@dataclass
class Ledger:
    """The records that the load has sent, and the acknowledgements that it has received."""

    topics: dict[str, UUID] = field(default_factory=dict)
    appended: dict[Key, dict[int, tuple[bytes, bytes]]] = field(default_factory=dict)
    """Offset -> key and value of every record that was ever given to a log, also if the cut came in between."""
    promises: dict[Key, Promise] = field(default_factory=dict)
    producer_id: int = 100
    """Of the idempotent producer."""
    sequences: dict[Key, dict[int, int]] = field(default_factory=dict)
    """Sequence -> offset of the idempotent producer's batches."""


class Known(NamedTuple):
    """The part of a ledger that depends on the moment. The disk notes it, so that each cut knows it."""

    topics: dict[str, UUID]
    promises: dict[Key, Promise]


def known_at(cut: Cut) -> Known:
    """Return the last note before a power cut."""
    promised: Known = cut.facts[-1]
    return promised


class Load:
    """A random load on a log manager, the same for the same seed but for the turns that threads take."""

    def __init__(self, directory: Path, disk: RecordedDisk, ledger: Ledger, chance: random.Random) -> None:
        self._directory = directory
        self._disk = disk
        self._ledger = ledger
        self._chance = chance
        self._clock = Clock()
        self._noted = Known(dict(ledger.topics), dict(ledger.promises))
        disk.note(self._noted)
        self._manager = open_manager(directory, ledger.topics, self._clock)
        disk.before_each = self._note_known

    def _note_known(self) -> None:
        """Note the topics and the promises before each change of the disk.

        The start of a log is read from memory. It is increased there before records are deleted on the disk, so a
        cut after this change may find no later start.
        """
        promises = dict(self._ledger.promises)
        for key, promise in promises.items():
            log = self._manager._topics[key[0]].logs.get(key[1]) if key[0] in self._manager._topics else None
            if log is not None:
                promises[key] = replace(promise, highest_start=log.log_start_offset)
        promised = Known(dict(self._ledger.topics), promises)
        if promised != self._noted:
            self._noted = promised
            self._disk.note(promised)

    async def run(self, steps: int, *, stops: bool | None = None) -> None:
        """Do some random things.

        Args:
            steps: Number of them.
            stops: Whether to stop at the end with one sync of the whole file system; None to draw the end, which is
                mostly that of a kill -9.
        """
        await self._manager.start()
        actions = (self._append, self._append, self._append, self._append, self._flush, self._flush, self._transaction)
        rare = (self._keep_house, self._delete_records, self._compact, self._create_again, self._checkpoint)
        for _ in range(steps):
            self._clock.now_ms += 1000
            await self._chance.choice(rare if self._chance.random() < 0.2 else actions)()
        if stops or (stops is None and self._chance.random() < 0.3):
            await self._close(many_logs=1 if stops else self._chance.choice((1, 500)))
        else:
            await self._manager.housekeeper.close()
            await self._manager.cleaner.close()
            for log in self._manager.loaded():
                log.close()
        self._note_known()

    async def _close(self, many_logs: int) -> None:
        """Stop cleanly: with an fsync of each file, or from ``many_logs`` on with a sync of the whole file system."""
        ends = [(log, log.end_offset) for log in self._manager.loaded()]
        with mock.patch("klamm.storage.log.flusher.MANY_LOGS", many_logs):
            await self._manager.close()
        for log, end_offset in ends:
            self._promise(log, durable_end=end_offset)

    def _log(self, *names: str) -> PartitionLog:
        name = self._chance.choice(names or ("plain", "compacted", "retained", "again"))
        log = self._manager.get(self._ledger.topics[name], self._chance.randrange(PARTITIONS))
        assert log is not None
        return log

    async def _append(self) -> None:
        log = self._log()
        is_idempotent = self._chance.random() < 0.5
        for _ in range(self._chance.randrange(1, 6)):
            key, value = b"%d" % self._chance.randrange(6), b"%032x" % self._chance.getrandbits(128)
            self._note(log, key, value)
            if is_idempotent:
                sequences = self._ledger.sequences.setdefault((log.topic_id, log.partition), {})
                sequence = max(sequences, default=-1) + 1
                sequences[sequence] = log.end_offset
                log.append(
                    batch(
                        value, key=key, producer_id=self._ledger.producer_id, producer_epoch=0, base_sequence=sequence
                    )
                )
            else:
                log.append(batch(value, key=key, at=self._clock.now_ms))

    def _note(self, log: PartitionLog, key: bytes, value: bytes) -> None:
        partition = (log.topic_id, log.partition)
        self._ledger.appended.setdefault(partition, {})[log.end_offset] = (key, value)
        self._ledger.promises.setdefault(partition, Promise())

    def _promise(self, log: PartitionLog, *, durable_end: int = 0, start: int = 0) -> None:
        partition = (log.topic_id, log.partition)
        old = self._ledger.promises.get(partition, Promise())
        self._ledger.promises[partition] = replace(
            old, durable_end=max(old.durable_end, durable_end), start=max(old.start, start)
        )

    async def _transaction(self) -> None:
        log = self._log("transactional")
        producer_id = self._chance.choice(_TRANSACTIONAL_PRODUCERS)
        for _ in range(self._chance.randrange(1, 4)):
            value = b"%032x" % self._chance.getrandbits(128)
            self._note(log, b"k", value)
            state = dict(log.producers.items()).get(producer_id)
            sequence = state.last_sequence + 1 if state is not None else 0
            record = batch(
                value,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                is_transactional=True,
            )
            log.append(record, is_verified=True)
        if self._chance.random() < 0.8:
            ends = self._chance.choice((ControlType.ABORT, ControlType.COMMIT))
            self._note(log, struct.pack(">hh", 0, ends), bytes(6))
            append_marker(
                log, ends, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, now_ms=self._clock.now_ms
            )

    async def _flush(self) -> None:
        log = self._log("plain", "compacted", "retained", "again", "transactional")
        end_offset = log.end_offset
        await self._manager.flush(log)
        self._promise(log, durable_end=end_offset)

    async def _keep_house(self) -> None:
        ends = [(log, log.segments[-1].base_offset) for log in self._manager.loaded() if log.segments]
        await self._manager.housekeeper.tick()
        for log, end_offset in ends:
            self._promise(log, durable_end=end_offset)
        await self._manager.housekeeper.check()

    async def _checkpoint(self) -> None:
        await self._manager.checkpoint()

    async def _compact(self) -> None:
        await self._manager.cleaner.clean()

    async def _delete_records(self) -> None:
        log = self._log("plain", "again")
        start = delete_records(log, self._chance.randint(log.log_start_offset, log.end_offset))
        await self._manager.checkpoint()
        self._promise(log, start=start)

    async def _create_again(self) -> None:
        """Delete a topic and create it again; the metadata, which are not simulated here, are durable at once."""
        old, new = self._ledger.topics["again"], UUID(int=self._chance.getrandbits(127))
        del self._ledger.topics["again"]
        self._manager.delete_topic(old)
        for partition in range(PARTITIONS):
            self._ledger.promises.pop((old, partition), None)
            self._manager.create(new, "again", partition)
        self._ledger.topics["again"] = new


def open_manager(directory: Path, topics: Mapping[str, UUID], clock: Clock | None = None) -> LogManager:
    """Open the logs like a starting broker with these topics in its metadata."""
    manager = LogManager(directory, configs_of=lambda topic: dict(CONFIGS[topic]), now_ms=clock or Clock())
    for name, topic_id in topics.items():
        for partition in range(PARTITIONS):
            manager.create(topic_id, name, partition)
    return manager


# -- the checker


def violations_after(cut: Cut, ledger: Ledger, directory: Path) -> str | None:
    """Open the logs after a power cut. Return the first broken promise, or None if all are kept."""
    cut.write(directory)
    try:
        with mock.patch("os.fsync"):  # the real disk is not under test
            return asyncio.run(_check(known_at(cut), ledger, directory))
    except Exception as error:  # noqa: BLE001 -- each reason that stops a start is a finding
        return f"{type(error).__name__}: {error}"


async def _check(promised: Known, ledger: Ledger, directory: Path) -> str | None:
    manager = open_manager(directory, promised.topics)
    await manager.start()
    try:
        for name, topic_id in promised.topics.items():
            for partition in range(PARTITIONS):
                log = manager.get(topic_id, partition)
                assert log is not None
                wrong = _check_log(log, promised.promises.get((topic_id, partition), Promise()), ledger)
                if wrong is not None:
                    return f"{name}-{partition}: {wrong}"
    finally:
        await manager.housekeeper.close()
        await manager.cleaner.close()
        for log in manager.loaded():
            log.close()
    return None


def _check_log(log: PartitionLog, promise: Promise, ledger: Ledger) -> str | None:
    partition = (log.topic_id, log.partition)
    appended = ledger.appended.get(partition, {})
    batches = list(read_batches(log))
    records = {offset: record for item in batches for offset, record in item.records.items()}
    is_compacted = "compact" in CONFIGS[log.topic].get("cleanup.policy", "")
    for offset, record in records.items():
        if appended.get(offset) != record:
            return f"offset {offset} holds {record!r}, and {appended.get(offset)!r} was appended there"
    if log.end_offset < promise.durable_end:
        return f"ends at {log.end_offset}, and {promise.durable_end} was durable"
    has_durable = promise.durable_end > promise.highest_start
    if log.log_start_offset < promise.start or (has_durable and log.log_start_offset > promise.highest_start):
        return f"starts at {log.log_start_offset}, expected {promise.start} to {promise.highest_start}"
    if not is_compacted:
        missing = [o for o in appended if log.log_start_offset <= o < promise.durable_end and o not in records]
        if missing:
            return f"offsets {missing} are missing"
    else:
        newest = {key: offset for offset, (key, _) in sorted(appended.items()) if offset < promise.durable_end}
        for key, offset in newest.items():
            if not any(record[0] == key and at >= offset for at, record in records.items()):
                return f"the newest record of key {key!r} at offset {offset} is missing"
    return _check_transactions(log, batches) or _check_repeated(log, promise, ledger) or _check_lookups(log, records)


def _check_transactions(log: PartitionLog, batches: list[RawBatch]) -> str | None:
    begun: dict[int, int] = {}
    aborted = []
    for item in batches:
        if item.is_control:
            first = begun.pop(item.producer_id, None)
            if first is not None and item.control_type == ABORT:
                aborted.append((item.producer_id, first, item.base_offset))
        elif item.is_transactional:
            begun.setdefault(item.producer_id, item.base_offset)
    stable = min(begun.values(), default=log.end_offset)
    if log.last_stable_offset != stable:
        return f"last stable offset {log.last_stable_offset}, expected {stable}"
    read_entries = [
        (entry.producer_id, entry.first_offset, entry.last_offset)
        for entry in overlapping(log.segments, log.log_start_offset, log.end_offset)
    ]
    return None if read_entries == aborted else f"aborted transactions {read_entries}, expected {aborted}"


def _check_repeated(log: PartitionLog, promise: Promise, ledger: Ledger) -> str | None:
    """Send the last durable batch of the idempotent producer again, then something new."""
    partition = (log.topic_id, log.partition)
    there = {
        sequence: offset
        for sequence, offset in ledger.sequences.get(partition, {}).items()
        if log.log_start_offset <= offset < promise.durable_end
    }
    if there:
        sequence = max(there)
        later = [o for o in ledger.sequences[partition].values() if there[sequence] < o < log.end_offset]
        if len(later) < 4:
            key, value = ledger.appended[partition][there[sequence]]
            again = batch(value, key=key, producer_id=ledger.producer_id, producer_epoch=0, base_sequence=sequence)
            result = log.append(again)
            if result.base_offset != there[sequence]:
                return f"sequence {sequence} of offset {there[sequence]} was taken for new at {result.base_offset}"
    end_offset = log.end_offset
    if log.append(batch("new", at=NOON_MS)).base_offset != end_offset:
        return "an offset was used twice"
    return None


def _check_lookups(log: PartitionLog, records: Mapping[int, object]) -> str | None:
    for offset in records:
        (first, *_) = decode(bytes(log.read(offset, 1)), log.name)
        if not first.base_offset <= offset <= first.last_offset:
            return f"a read from offset {offset} begins at {first.base_offset}"
    return None


def read_batches(log: PartitionLog) -> Iterator[RawBatch]:
    """Yield the batches that a consumer with ``read_uncommitted`` gets, from the start to the end."""
    offset = log.log_start_offset
    while offset < log.end_offset:
        batches = list(decode(bytes(log.read(offset, 700)), log.name))
        if not batches:
            return  # compaction has left nothing
        for item in batches:
            assert item.last_offset >= offset, "offsets go back"
            yield item._replace(records={at: record for at, record in item.records.items() if at >= offset})
            offset = item.last_offset + 1


def as_found(cut: Cut, directory: Path, producer_id: int) -> Ledger:
    """Return the ledger of a load that continues after a power cut. All records found there count as durable."""
    cut.write(directory)
    topics = known_at(cut).topics
    ledger = Ledger(topics=dict(topics), producer_id=producer_id)
    ledger.topics.setdefault("again", UUID(int=producer_id))  # the cut came between its deletion and its creation

    async def look() -> None:
        manager = open_manager(directory, topics)
        await manager.start()
        for key in manager.partitions():
            log = manager.get(*key)
            assert log is not None
            items = list(read_batches(log))
            ledger.appended[key] = {at: record for item in items for at, record in item.records.items()}
            ledger.promises[key] = Promise(log.end_offset, log.log_start_offset, log.log_start_offset)
        await manager.housekeeper.close()
        await manager.cleaner.close()
        for log in manager.loaded():
            log.close()

    with mock.patch("os.fsync"):
        asyncio.run(look())
    return ledger
