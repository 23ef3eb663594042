"""Both sides of a flow, partition by partition: positions, offsets, and every record with its checksum."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.dataframes.options import EARLIEST, LATEST, ReadOptions
from klamm.dataframes.ranges import OffsetRange
from klamm.dataframes.reader import TopicReader
from klamm.mirror.admin import KafkaAdmin
from klamm.mirror.copy.preparation import copy_settings
from klamm.mirror.naming import is_heartbeats_topic
from klamm.mirror.settings.keys import IsolationLevel
from klamm.mirror.status.comparison import Findings, Fingerprint, compare
from klamm.mirror.topics.plans import selected_topics
from klamm.mirror.topics.worker_offsets import mirrored_offsets
from klamm.protocol.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from klamm.client.transport import ConnectionSettings
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.records import Record

_PATIENCE_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.05
_DIGEST_BYTES: Final = 12
_NONE: Final = (1 << 32) - 1
"""The length of what is null; no record holds so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """What was found for one partition."""

    topic: str
    """On the source."""
    remote_topic: str
    partition: int
    mirrored: int
    """The source offset up to which the mirror says that it copied; -1: it says nothing."""
    lag: int
    """Offsets of the source behind that: not mirrored yet, and not compared."""
    findings: Findings | None
    """None: only offsets were compared."""
    problem: str
    """What is wrong, in a sentence; empty when nothing is."""


def verify_flow(
    flow: FlowSettings,
    *,
    wanted: Callable[[str], bool] = lambda _topic: True,
    read_records: bool = True,
) -> Iterator[PartitionVerdict]:
    """Compare both sides of a flow, up to where the mirror says it has copied.

    Records that the retention of one side has removed already are no difference. Nothing is written anywhere.

    Args:
        flow: as its file says.
        wanted: tells which source topics are looked at.
        read_records: False compares partitions and offsets only, without reading a record.

    Raises:
        ReadingError: a partition can not be read.
        ClusterAwayError: a cluster is away.
        ConnectionLostError: a cluster went away.
        SettingsError: a client property that can not be honoured.
    """
    settings = copy_settings(flow)
    topics = [name for name in _selected(flow) if wanted(name)]
    committed = flow.isolation_level is IsolationLevel.READ_COMMITTED
    source = TopicReader(_options(settings.source, topics, read_committed=committed))
    remote_topics = [flow.remote_topic(topic) for topic in topics]
    target = TopicReader(_options(settings.target, remote_topics, read_committed=True))
    try:
        # In this order, as the mirror may be running: what positions name is on the target by then, and what that holds
        # was read from the source before.
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
    """Return first and end offset of every partition."""
    partitions = reader.partitions()
    first, end = reader.offsets(partitions, EARLIEST), reader.offsets(partitions, LATEST)
    return {where: (first[where], end[where]) for where in partitions}


def _wait_until_decided(committed: TopicReader, options: ReadOptions) -> None:
    """Wait until transactions are over in which something was written by now, but not for ever.

    The marker of a position may be there before those of its records, which nobody sees until then: with thousands of
    partitions in a transaction a broker takes some time to write them.
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
    admin = KafkaAdmin.of(flow, "source")
    try:
        admin.check_reachable()
        return [topic.name for topic in selected_topics(admin.list_topics(), flow.selection)]
    finally:
        admin.close()


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
    flow: FlowSettings
    source: TopicReader
    target: TopicReader
    remote_bounds: Mapping[tuple[str, int], tuple[int, int]]
    mirrored: Mapping[tuple[str, int], int]

    def verdicts(
        self, bounds: Mapping[tuple[str, int], tuple[int, int]], *, read_records: bool
    ) -> Iterator[PartitionVerdict]:
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
                yield verdict.problem(f"the source ends at {end}, before what was mirrored: was the topic made anew?")
            elif not read_records:
                yield verdict.problem("")
            else:
                findings = compare(
                    _fingerprints(self.source, topic, partition, (first, end)),
                    _fingerprints(self.target, *remote, there),
                    mirrored_to=last + 1,
                )
                yield verdict.found(findings, first, there[0])


def _unmirrored(on_target: int, on_source: int) -> str:
    if on_target:
        return f"the target holds {on_target} records, but nothing says up to where they were mirrored"
    return f"{on_source} records were never mirrored" if on_source else ""


@dataclass(frozen=True, slots=True)
class _Verdict:
    topic: str
    remote: tuple[str, int]
    mirrored: int
    end: int
    may_repeat: bool
    """Whether records that only the target has are no difference: a restarted mirror may copy a heartbeat again."""

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
        """Judge findings: what stands before all the rest on one side has expired on the other, if that begins late."""
        missing = findings.missing - (findings.leading_missing if target_start else 0)
        surplus = findings.surplus - (findings.leading_surplus if source_start else 0)
        parts = []
        if missing:
            parts.append(f"missing on the target: {missing}, the first is offset {findings.first_missing}")
        if surplus and not self.may_repeat:
            where = f"{findings.first_surplus} of {self.remote[0]}"
            parts.append(f"on the target only: {surplus}, the first is offset {where}")
        return self.problem("; ".join(parts), findings)


def _fingerprints(reader: TopicReader, topic: str, partition: int, bounds: tuple[int, int]) -> Iterator[Fingerprint]:
    wanted = OffsetRange(topic=topic, partition=partition, start=bounds[0], end=bounds[1])
    for batches in reader.read(wanted):
        for batch in batches:
            for record in decode_records(batch):
                if wanted.start <= record.offset < wanted.end:
                    yield Fingerprint(record.offset, _digest(record))


def _digest(record: Record) -> bytes:
    """Return a checksum of all that a mirror keeps: key, value, headers and timestamp."""
    digest = hashlib.blake2b(record.timestamp.to_bytes(8, "big", signed=True), digest_size=_DIGEST_BYTES)
    for field in (record.key, record.value, *(part for header in record.headers for part in header)):
        data = field.encode() if isinstance(field, str) else field
        digest.update((_NONE if data is None else len(data)).to_bytes(4, "big"))
        digest.update(b"" if data is None else data)
    return digest.digest()
