"""Verification of a flow: compares partitions, offsets and the checksum of every record on both clusters.

Verdict of each partition, by the first matching condition:

====================================================  =================================================================
condition                                             verdict
====================================================  =================================================================
remote partition missing                              a problem, unless the source partition is empty
no committed source offset                            a problem if either partition has records
source log ends before the committed source offset    a problem: the topic was probably deleted and created again
records are not read                                  no problem
records differ                                        a problem, except the differences below
====================================================  =================================================================

These differences are expected:

- Source records from the committed source offset on are not mirrored yet. They count as lag.
- Records at the start of one side may have expired on the other. They are ignored if the other side's log starts after
  offset 0.
- A restarted mirror may copy heartbeats again, so surplus heartbeats are ignored.

With ``klamm.offsets=preserve`` a record is equal only at the same offset.

Records are compared in bounded memory. Both sides are read in log order. While both first records are equal, they are
counted and dropped. When they differ, each side is searched for the first record of the other, at first at most
``MAX_LOOK_AHEAD`` records ahead, then to its end, such as after a long beginning that has expired on one side:

- Found on the target only, or closer there: the target has surplus records before it, such as duplicates.
- Found on the source only, or closer there: the source has records before it that are missing on the target.
- Found on neither side: the pair differs, and counts as one missing and one surplus record.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from klamm.dataframes.options import ReadOptions
from klamm.dataframes.positions import EARLIEST, LATEST, OffsetRange
from klamm.dataframes.reader import TopicReader
from klamm.lazy_dataclass import dataclass
from klamm.mirror.cluster_admin import admin_client, check_reachable, partition_counts
from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.naming import is_heartbeats_topic
from klamm.mirror.records.worker_offsets import mirrored_offsets
from klamm.mirror.settings.definitions import IsolationLevel
from klamm.mirror.topics.plans import selected_topics
from klamm.protocol.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.records import Record

MAX_OFFSET: Final = (1 << 63) - 1
MAX_LOOK_AHEAD: Final = 20_000
"""Maximum number of records that are kept to search ahead. The records that a restarted mirror copies again lie within
it."""
_MAX_SEARCHES: Final = 10
"""Maximum number of searches beyond them in a partition. Each may read both sides to their ends."""


RecordsFrom: TypeAlias = "Callable[[int], Iterator[Fingerprint]]"
"""Function that returns the records of one side from an offset on, in log order."""


class Fingerprint(NamedTuple):
    """One record of one side, reduced to a checksum."""

    offset: int
    digest: bytes
    """Checksum of key, value, headers and timestamp."""


@dataclass(slots=True)
class Findings:
    """Differences between both sides. Offsets are -1 if there is no such record."""

    same: int = 0
    missing: int = 0
    """Number of source records that the target lacks."""
    first_missing: int = -1
    """Source offset of the first missing record."""
    surplus: int = 0
    """Number of target records that the source does not have there: duplicates, or records of another producer."""
    first_surplus: int = -1
    """Target offset of the first surplus record."""
    leading_missing: int = 0
    """Part of ``missing`` before the first equal record. If the target's log does not start at 0, its retention removed
    them.
    """
    leading_surplus: int = 0
    """Part of ``surplus`` before the first equal record. If the source's log does not start at 0, its retention removed
    them.
    """
    first_missing_later: int = field(default=-1, compare=False)
    """Source offset of the first missing record after them."""
    first_surplus_later: int = field(default=-1, compare=False)
    """Target offset of the first surplus record after them."""


class _Side:
    """Records of one side in log order, with a buffer of those that were read ahead."""

    def __init__(self, records: RecordsFrom) -> None:
        self._records_from = records
        self._records = records(0)
        self._ahead: deque[Fingerprint] = deque()
        self._places: dict[bytes, deque[int]] = {}
        """Numbers of the buffered records by digest, in log order. The first record of this side has number 0. Empty
        until a search needs it, because equal sides need no search.
        """
        self._taken = 0

    def first(self) -> Fingerprint | None:
        return self._ahead[0] if self._ahead or self._read() else None

    def take(self) -> Fingerprint:
        record = self._ahead.popleft()
        self._taken += 1
        if self._places:
            places = self._places[record.digest]
            places.popleft()
            if not places:
                del self._places[record.digest]
        return record

    def find(self, digest: bytes) -> int | None:
        """Return the number of records before the first one with this digest, or None if it is not near."""
        if not self._places:
            for number, record in enumerate(self._ahead, self._taken):
                self._places.setdefault(record.digest, deque()).append(number)
        while digest not in self._places:
            if len(self._ahead) >= MAX_LOOK_AHEAD or not self._read():
                return None
        return self._places[digest][0] - self._taken

    def pass_over(self, digest: bytes, limit: int) -> int | None:
        """Take the records before the first one with this digest, which ``find`` has not found, however far it is.

        Returns:
            Number of these records before an offset. None: no record has this digest, and none was taken.
        """
        if len(self._ahead) < MAX_LOOK_AHEAD:
            return None
        count = sum(record.offset < limit for record in self._ahead)
        later = self._records_from(self._ahead[-1].offset + 1)
        for record in later:
            if record.digest == digest:
                self._ahead.clear()
                self._places.clear()
                self._records = later
                self._ahead.append(record)
                return count
            count += record.offset < limit
        return None

    def _read(self) -> bool:
        record = next(self._records, None)
        if record is None:
            return False
        if self._places:
            self._places.setdefault(record.digest, deque()).append(self._taken + len(self._ahead))
        self._ahead.append(record)
        return True


def compare(source: RecordsFrom, target: RecordsFrom, *, mirrored_to: int | None = None) -> Findings:
    """Compare the records of a partition with those of its remote partition.

    Args:
        source: Records of the source partition, including records that are not mirrored yet.
        target: Records of the remote partition.
        mirrored_to: Source offset from which on records may be missing on the target. None: no record may be
            missing.
    """
    return _Comparison(source, target, MAX_OFFSET if mirrored_to is None else mirrored_to).findings()


class _Comparison:
    """Comparison of both sides of a partition. Used once."""

    def __init__(self, source: RecordsFrom, target: RecordsFrom, limit: int) -> None:
        self._left, self._right = _Side(source), _Side(target)
        self._limit = limit
        self._findings = Findings()
        self._searches = _MAX_SEARCHES

    def findings(self) -> Findings:
        """Compare all records."""
        while (wanted := self._left.first()) is not None and (there := self._right.first()) is not None:
            if wanted.digest == there.digest:
                self._findings.same += 1
                self._left.take()
                self._right.take()
            else:
                self._resolve(wanted, there)
        while (wanted := self._left.first()) is not None and wanted.offset < self._limit:
            self._miss(1)
        while self._right.first() is not None:
            self._skip(1)
        return self._findings

    def _resolve(self, wanted: Fingerprint, there: Fingerprint) -> None:
        """Decide which side has additional records: the side that reaches the first record of the other side sooner."""
        surplus, missing = self._right.find(wanted.digest), self._left.find(there.digest)
        if surplus is not None and (missing is None or surplus <= missing):
            self._skip(surplus)
        elif missing is not None:
            self._miss(missing)
        elif not self._search(wanted, there):
            self._miss(1)
            self._skip(1)

    def _search(self, wanted: Fingerprint, there: Fingerprint) -> bool:
        """Search for the first record of a side in all records of the other one, and return whether it was found.

        Many records in a row are missing on one side if their retention has expired there. Records of the source that
        are not mirrored yet are not searched: a mirror that lags behind may have millions of them.
        """
        if self._searches == 0:
            return False
        self._searches -= 1
        is_mirrored = wanted.offset < self._limit
        if is_mirrored and (missing := self._left.pass_over(there.digest, self._limit)) is not None:
            self._count_missing(missing, wanted.offset)
            return True
        if (surplus := self._right.pass_over(wanted.digest, MAX_OFFSET)) is not None:
            self._count_surplus(surplus, there.offset)
            return True
        return False

    def _miss(self, count: int) -> None:
        for _ in range(count):
            record = self._left.take()
            if record.offset < self._limit:
                self._count_missing(1, record.offset)

    def _skip(self, count: int) -> None:
        for _ in range(count):
            self._count_surplus(1, self._right.take().offset)

    def _count_missing(self, count: int, first: int) -> None:
        findings = self._findings
        findings.missing += count
        findings.leading_missing += 0 if findings.same else count
        if findings.first_missing < 0 < count:
            findings.first_missing = first
        if findings.first_missing_later < 0 < count and findings.same:
            findings.first_missing_later = first

    def _count_surplus(self, count: int, first: int) -> None:
        findings = self._findings
        findings.surplus += count
        findings.leading_surplus += 0 if findings.same else count
        if findings.first_surplus < 0:
            findings.first_surplus = first
        if findings.first_surplus_later < 0 and findings.same:
            findings.first_surplus_later = first


_PATIENCE_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.05
_DIGEST_BYTES: Final = 12
_NONE: Final = (1 << 32) - 1
"""Length that encodes null in the checksum. No key, value or header is that long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """Result for one partition."""

    topic: str
    """Name of the source topic."""
    remote_topic: str
    partition: int
    mirrored: int
    """Next source offset to copy, from the source offset that the mirror committed. -1: it committed none."""
    lag: int
    """Number of source offsets from there on. They are not mirrored yet and were not compared."""
    findings: Findings | None
    """Result of the comparison. None: no records were compared."""
    problem: str
    """Description of the problem. Empty: there is none."""


def verify_flow(
    flow: FlowSettings,
    *,
    wanted: Callable[[str], bool] = lambda _topic: True,
    read_records: bool = True,
) -> Iterator[PartitionVerdict]:
    """Compare both sides of a flow up to the committed source offsets.

    Records that the retention of one side has removed are not reported as differences. Nothing is written.

    Args:
        flow: Settings of the flow.
        wanted: Function that returns whether a source topic is verified.
        read_records: Whether records are compared. False compares only partitions and offsets.

    Raises:
        ReadingError: A partition cannot be read.
        ConnectionError, TimeoutError: A cluster is unavailable.
        ConnectionLostError: The connection to a cluster is lost.
        SettingsError: The flow has a client property that klamm does not support.
    """
    settings = copy_settings(flow)
    topics = [name for name in _selected(flow) if wanted(name)]
    committed = flow.isolation_level is IsolationLevel.READ_COMMITTED
    source = TopicReader(_options(settings.source, topics, read_committed=committed))
    remote_topics = [flow.remote_topic(topic) for topic in topics]
    target = TopicReader(_options(settings.target, remote_topics, read_committed=True))
    try:
        # The order matters while a mirror runs. Records before a committed source offset are on the target already, so
        # read the source offsets before the target's bounds. Every record on the target was on the source before, so
        # read the source's bounds last.
        mirrored = mirrored_offsets(flow)
        if read_records:
            _wait_until_decided(target, _options(settings.target, remote_topics, read_committed=False))
        remote_bounds = _bounds(target)
        sides = _Sides(flow, source, target, remote_bounds, mirrored)
        yield from sides.verdicts(_bounds(source), read_records=read_records)
    finally:
        source.close()
        target.close()


def _bounds(reader: TopicReader) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the log start offset and log end offset of every partition."""
    partitions = reader.partitions()
    first, end = reader.offsets(partitions, EARLIEST), reader.offsets(partitions, LATEST)
    return {where: (first[where], end[where]) for where in partitions}


def _wait_until_decided(committed: TopicReader, options: ReadOptions) -> None:
    """Wait until the transactions that are open now have ended, for at most one minute.

    The source offsets of a transaction can become visible before its records: for a transaction with thousands of
    partitions, a broker takes some time to write the commit markers. Until then, read_committed hides the records.
    """
    uncommitted = TopicReader(options)
    try:
        written = uncommitted.offsets(uncommitted.partitions(), LATEST)
    finally:
        uncommitted.close()
    open_ones = committed.partitions()
    deadline = time.monotonic() + _PATIENCE_S
    while open_ones and time.monotonic() < deadline:
        ends = committed.offsets(open_ones, LATEST)
        if open_ones := [where for where in open_ones if ends[where] < written.get(where, 0)]:
            time.sleep(_LOOK_AGAIN_S)


def _selected(flow: FlowSettings) -> list[str]:
    with admin_client(flow, "source") as admin:
        check_reachable(admin, flow.source.alias)
        return list(selected_topics(partition_counts(admin), flow.selection))


def _options(connection: ConnectionSettings, topics: Sequence[str], *, read_committed: bool) -> ReadOptions:
    return ReadOptions(
        connection=connection,
        topics=tuple(topics),
        starting=EARLIEST,
        ending=LATEST,
        records_per_range=None,
        most_per_trigger=None,
        fail_on_data_loss=False,
        fail_on_missing_topic=False,
        read_committed=read_committed,
        patience_s=_PATIENCE_S,
    )


@dataclass(frozen=True, slots=True)
class _Sides:
    """Readers and bounds of both clusters, with the committed source offsets."""

    flow: FlowSettings
    source: TopicReader
    target: TopicReader
    remote_bounds: Mapping[tuple[str, int], tuple[int, int]]
    mirrored: Mapping[tuple[str, int], int]

    def verdicts(
        self, bounds: Mapping[tuple[str, int], tuple[int, int]], *, read_records: bool
    ) -> Iterator[PartitionVerdict]:
        """Yield the verdict of each source partition; see the module for the conditions."""
        for (topic, partition), (first, end) in bounds.items():
            remote = (self.flow.remote_topic(topic), partition)
            last = self.mirrored.get((topic, partition), -1)
            is_heartbeats = is_heartbeats_topic(self.flow.policy, topic)
            verdict = _Verdict(topic, remote, mirrored=last + 1 if last >= 0 else -1, end=end, may_repeat=is_heartbeats)
            there = self.remote_bounds.get(remote)
            if there is None:
                yield verdict.problem("" if end == first else f"{remote[0]} has no partition {partition}")
            elif last < 0:
                yield verdict.problem(_unmirrored(there[1] - there[0], end - first))
            elif last + 1 > end:
                yield verdict.problem(f"the source ends at {end}, before what was mirrored: was the topic recreated?")
            elif not read_records:
                yield verdict.problem("")
            else:
                findings = self._findings((topic, partition), (first, end), remote, there, last + 1)
                expired = (0, 0) if self.flow.preserves_offsets else (first, there[0])
                yield verdict.found(findings, *expired)

    def _findings(
        self,
        where: tuple[str, int],
        bounds: tuple[int, int],
        remote: tuple[str, int],
        there: tuple[int, int],
        mirrored_to: int,
    ) -> Findings:
        """Compare the records of both sides. If offsets are equal, compare those at and above both log start offsets.

        All others have expired then. Retention may remove more records during the comparison: it is repeated.
        """
        start = max(bounds[0], there[0]) if self.flow.preserves_offsets else 0
        while True:
            findings = compare(
                self._records_from(self.source, where, (max(bounds[0], start), bounds[1])),
                self._records_from(self.target, remote, (max(there[0], start), there[1])),
                mirrored_to=mirrored_to,
            )
            if not self.flow.preserves_offsets or not (findings.missing or findings.surplus):
                return findings
            starts = self.source.offsets([where], EARLIEST)[where], self.target.offsets([remote], EARLIEST)[remote]
            if max(starts) <= start:
                return findings
            start = max(starts)

    def _records_from(self, reader: TopicReader, where: tuple[str, int], bounds: tuple[int, int]) -> RecordsFrom:
        def fingerprints(start: int) -> Iterator[Fingerprint]:
            wanted = OffsetRange(topic=where[0], partition=where[1], start=max(start, bounds[0]), end=bounds[1])
            return _fingerprints(reader, wanted, with_offsets=self.flow.preserves_offsets)

        return fingerprints


def _unmirrored(on_target: int, on_source: int) -> str:
    if on_target:
        return f"the target holds {on_target} records, but there is no source offset for them"
    return f"{on_source} records were never mirrored" if on_source else ""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Factory of the result for one partition."""

    topic: str
    remote: tuple[str, int]
    mirrored: int
    end: int
    may_repeat: bool
    """Whether surplus records are ignored: a restarted mirror may copy heartbeats again."""

    def problem(self, problem: str, findings: Findings | None = None) -> PartitionVerdict:
        return PartitionVerdict(
            topic=self.topic,
            remote_topic=self.remote[0],
            partition=self.remote[1],
            mirrored=self.mirrored,
            lag=max(0, self.end - max(0, self.mirrored)),
            findings=findings,
            problem=problem,
        )

    def found(self, findings: Findings, source_start: int, target_start: int) -> PartitionVerdict:
        """Return the verdict on findings. Ignore leading records that have expired on the other side.

        A side with records has the newest ones. If both have some and none is equal, nothing has merely expired.
        """
        missing, first_missing = findings.missing, findings.first_missing
        surplus, first_surplus = findings.surplus, findings.first_surplus
        may_have_expired = findings.same or not (missing and surplus)
        if target_start and may_have_expired:
            missing, first_missing = missing - findings.leading_missing, findings.first_missing_later
        if source_start and may_have_expired:
            surplus, first_surplus = surplus - findings.leading_surplus, findings.first_surplus_later
        parts = []
        if missing:
            parts.append(f"missing on the target: {missing}, the first is offset {first_missing}")
        if surplus and not self.may_repeat:
            parts.append(f"on the target only: {surplus}, the first is offset {first_surplus} of {self.remote[0]}")
        return self.problem("; ".join(parts), findings)


def _fingerprints(reader: TopicReader, wanted: OffsetRange, *, with_offsets: bool) -> Iterator[Fingerprint]:
    for batches in reader.read(wanted):
        for batch in batches:
            for record in decode_records(batch):
                if wanted.start <= record.offset < wanted.end:
                    yield Fingerprint(record.offset, _digest(record, with_offset=with_offsets))


def _digest(record: Record, *, with_offset: bool) -> bytes:
    """Return a checksum of everything that a mirror preserves: key, value, headers, timestamp, perhaps the offset."""
    digest = hashlib.blake2b(record.timestamp.to_bytes(8, "big", signed=True), digest_size=_DIGEST_BYTES)
    if with_offset:
        digest.update(record.offset.to_bytes(8, "big"))
    for content in (record.key, record.value, *(part for header in record.headers for part in header)):
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        digest.update((_NONE if data is None else len(data)).to_bytes(4, "big"))
        digest.update(b"" if data is None else data)
    return digest.digest()
