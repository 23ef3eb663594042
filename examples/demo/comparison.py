"""Comparison of a topic on two clusters, record by record and byte for byte.

kafka-python reads each side in a separate process into one file per partition, and the files are compared. So neither
the broker nor the mirror takes part in the verdict on itself.
"""

from __future__ import annotations

import filecmp
import struct
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_HEAD: Final = struct.Struct(">qb")  # timestamp in ms, timestamp type
_LENGTH: Final = struct.Struct(">i")  # length, -1 for null
_IDLE_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A topic on a cluster."""

    bootstrap_servers: str
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of a comparison."""

    source_counts: Mapping[int, int]
    """Records per partition."""
    target_counts: Mapping[int, int]
    without_key: int
    """Number of target records with a null key."""
    differences: tuple[str, ...]
    """One sentence for each partition that differs; empty if all are equal."""

    @property
    def is_same(self) -> bool:
        """Return whether every record exists exactly once, in its partition, in order and unchanged."""
        return not self.differences


def compare(source: Side, target: Side, directory: Path) -> Comparison:
    """Read both sides up to their current ends and compare them. The files are written to the directory.

    Raises:
        TimeoutError: A side stopped answering before its end.
    """
    ours, theirs = directory / "source", directory / "target"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        reading = pool.submit(_dump, source, ours), pool.submit(_dump, target, theirs)
        source_dump, target_dump = (future.result() for future in reading)
    differences = tuple(
        _difference(partition, ours / str(partition), theirs / str(partition))
        for partition in sorted(source_dump.counts.keys() | target_dump.counts.keys())
        if not _same_file(ours / str(partition), theirs / str(partition))
    )
    return Comparison(
        source_counts=source_dump.counts,
        target_counts=target_dump.counts,
        without_key=target_dump.without_key,
        differences=differences,
    )


def _same_file(source: Path, target: Path) -> bool:
    return source.exists() and target.exists() and filecmp.cmp(source, target, shallow=False)


def _difference(partition: int, source: Path, target: Path) -> str:
    """Describe the first difference of two partitions."""
    if not (source.exists() and target.exists()):
        return f"partition {partition} exists on one side only"
    source_records, target_records = list(split_dump(source.read_bytes())), list(split_dump(target.read_bytes()))
    pairs = zip(source_records, target_records, strict=False)
    first = next((n for n, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    counts = f"{len(source_records)} records here, {len(target_records)} there"
    if first is None:
        return f"partition {partition}: {counts}"
    return f"partition {partition}: record {first} differs; {counts}"


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """Result of reading one side."""

    counts: Mapping[int, int]
    """Records per partition."""
    without_key: int


def _dump(side: Side, directory: Path) -> Dump:
    """Write each partition's records to a file of its number."""
    from kafka import KafkaConsumer, TopicPartition  # noqa: PLC0415 - in the reading process only

    directory.mkdir(parents=True)
    consumer = KafkaConsumer(
        bootstrap_servers=side.bootstrap_servers, auto_offset_reset="earliest", enable_auto_commit=False
    )
    try:
        partitions = [TopicPartition(side.topic, p) for p in sorted(consumer.partitions_for_topic(side.topic) or ())]
        consumer.assign(partitions)
        return _read_to_end(consumer, partitions, directory)
    finally:
        consumer.close()


def _read_to_end(consumer: Any, partitions: Sequence[Any], directory: Path) -> Dump:
    ends = consumer.end_offsets(partitions)
    counts = {partition.partition: 0 for partition in partitions}
    without_key = 0
    files = {partition.partition: (directory / str(partition.partition)).open("wb") for partition in partitions}
    try:
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            batches = consumer.poll(timeout_ms=int(_IDLE_TIMEOUT_S * 1000), max_records=10_000)
            if not batches:
                raise TimeoutError(f"No more records came from {partitions[0].topic}, although its end is not reached")
            for partition, records in batches.items():
                files[partition.partition].write(b"".join(map(canonical, records)))
                counts[partition.partition] += len(records)
                without_key += sum(record.key is None for record in records)
    finally:
        for file in files.values():
            file.close()
    return Dump(counts=counts, without_key=without_key)


def canonical(record: Any) -> bytes:
    """Return everything about a record except its offset, in a form in which different records differ."""
    parts = [_HEAD.pack(record.timestamp, record.timestamp_type), *_field(record.key), *_field(record.value)]
    for name, value in record.headers:
        parts += [*_field(name.encode()), *_field(value)]
    body = b"".join(parts)
    return _LENGTH.pack(len(body)) + body


def _field(data: bytes | None) -> tuple[bytes, bytes]:
    return (_LENGTH.pack(-1), b"") if data is None else (_LENGTH.pack(len(data)), data)


def split_dump(dump: bytes) -> Iterator[bytes]:
    """Yield the canonical records of a dump."""
    at = 0
    while at < len(dump):
        (length,) = _LENGTH.unpack_from(dump, at)
        yield dump[at + _LENGTH.size : at + _LENGTH.size + length]
        at += _LENGTH.size + length
