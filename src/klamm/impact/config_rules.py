"""Predictions for effective topic configs that change, one function per row of the table in docs/change-safely.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from klamm.impact.findings import Finding, ImpactLevel, Names, counted, duration, percent, size
from klamm.impact.records import active_producers, removal, unread, whole_log
from klamm.impact.samples import NEWEST_RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from klamm.impact.effective import TopicConfigs
    from klamm.impact.facts import BatchFact, ClusterFacts, PartitionFacts

SEGMENT_KEYS: Final = ("segment.bytes", "segment.ms", "segment.index.bytes")
INDEX_ENTRY_BYTES: Final = 12
"""Bytes of an entry of the time index, which is full earlier than the offset index with its entries of 8 bytes."""
FILES_PER_SEGMENT: Final = 3
"""Files per segment: the log, the offset index and the time index."""
MAX_MAPPED_FILES: Final = 65_530
"""Default of Linux's ``vm.max_map_count``. A Kafka broker maps the two index files of every segment."""
_NOTED_FILES: Final = 1_000


def retention(configs: TopicConfigs, facts: ClusterFacts) -> Iterator[Finding]:
    """Predict the records that retention deletes at its next check.

    Kafka deletes whole segments (``UnifiedLog.deleteOldSegments``). By time, a segment goes when its newest timestamp
    is too old; the segment with the first newer record stays, and its size is not visible from outside.
    By size, segments go while the rest is still at least ``retention.bytes``.
    """
    if "delete" not in configs.policies() or not _is_retention_lowered(configs):
        return
    segment = configs.number("segment.bytes")
    starts: dict[int, tuple[int, int]] = {}
    min_bytes = 0
    for partition in configs.topic.partitions:
        start, deleted = _retained_from(partition, configs, facts.now_ms)
        if start > partition.start_offset >= 0:
            starts[partition.partition] = start, deleted
            is_all = start >= partition.end_offset
            min_bytes += deleted if is_all else max(0, deleted - segment)
    going = removal(configs.topic, starts, min_bytes)
    if going is None:
        return
    text, parts = unread(configs.topic, going.new_starts, facts)
    yield Finding(
        kind="records_deleted",
        level=ImpactLevel.LOSS,
        resource=configs.resource,
        message=f"{going.text} go at the next retention check.{text}",
        figures={**going.figures, **parts["figures"]},
        names={"topics": Names.of([configs.topic.name]), **parts["names"]},
    )


def _is_retention_lowered(configs: TopicConfigs) -> bool:
    return "delete" not in configs.policies_before() or any(
        is_limit_lowered(configs, name) for name in ("retention.ms", "retention.bytes")
    )


def is_limit_lowered(configs: TopicConfigs, name: str) -> bool:
    """Return whether a limit becomes stricter. Negative values mean no limit."""
    return configs.number(name) >= 0 and not 0 <= configs.number_before(name) <= configs.number(name)


def _retained_from(partition: PartitionFacts, configs: TopicConfigs, now_ms: int) -> tuple[int, int]:
    """Return the highest possible start offset afterwards, and the bytes before it."""
    start, deleted = partition.start_offset, 0
    limit_ms, limit_bytes = configs.number("retention.ms"), configs.number("retention.bytes")
    if limit_ms >= 0:
        first_kept = partition.offset_at.get(now_ms - limit_ms, partition.start_offset)
        start, deleted = whole_log(partition) if first_kept < 0 else (first_kept, partition.bytes_before(first_kept))
    if limit_bytes >= 0 and partition.size is not None and (surplus := partition.size - limit_bytes) > deleted:
        deleted = surplus
        start = max(start, partition.start_offset + -(-partition.record_count * surplus // max(partition.size, 1)))
    return start, deleted


def remote_log(configs: TopicConfigs, _: ClusterFacts) -> Iterator[Finding]:
    """Predict that a log in remote storage is deleted: the log then starts at its local start offset."""
    if configs.is_remote_log_deleted() and any(p.record_count for p in configs.topic.partitions):
        yield Finding(
            kind="remote_log_deleted",
            level=ImpactLevel.LOSS,
            resource=configs.resource,
            message="all records that are only in remote storage are deleted.",
            names={"topics": Names.of([configs.topic.name])},
        )


def compaction(configs: TopicConfigs, facts: ClusterFacts) -> Iterator[Finding]:
    """Predict what a compaction does: keyless records are dropped and rejected, older values of keys go.

    It is the first one of the topic, or one that a shorter ``min.compaction.lag.ms`` lets begin earlier. The newest
    records show only what goes among themselves. Records that were not read may go unseen.
    """
    partitions = configs.topic.partitions
    lag_ms, lag_before_ms = configs.number("min.compaction.lag.ms"), configs.number_before("min.compaction.lag.ms")
    is_first = "compact" not in configs.policies_before()
    if "compact" not in configs.policies() or not (is_first or lag_ms < lag_before_ms):
        return
    keys = [key for partition in partitions for key in _keys(partition)]
    keyless = keys.count(None)
    if keyless and is_first:
        producers = active_producers(configs.topic, facts.now_ms)
        share = percent(keyless, len(keys))
        text, parts = _compacted(configs, {p.partition: _share(p, _keyless(p)) for p in partitions}, facts)
        yield Finding(
            kind="keyless_records",
            level=ImpactLevel.LOSS,
            resource=configs.resource,
            message=f"{share} % of the {len(keys):,} newest records have no key. A compacted topic rejects such records"
            f" (INVALID_RECORD), and the log cleaner removes those that exist.{text}",
            figures={
                "sampled_records": len(keys),
                "keyless_records": keyless,
                "keyless_percent": share,
                **parts["figures"],
            },
            names={"topics": Names.of([configs.topic.name]), "producers": producers, **parts["names"]},
        )
    if hidden := sum(map(_superseded, partitions)):
        text, parts = _compacted(configs, {p.partition: _share(p, _superseded(p)) for p in partitions}, facts)
        yield Finding(
            kind="records_compacted",
            level=ImpactLevel.LOSS,
            resource=configs.resource,
            message=f"{percent(hidden, len(keys))} % of the {len(keys):,} newest records are followed by another one"
            " with the same key and will be removed. The first pass starts when the active segment is rolled"
            f" (segment.ms={duration(configs.number('segment.ms'))}) and records are older than {duration(lag_ms)}."
            f"{text}",
            figures={
                "sampled_records": len(keys),
                "superseded_records": hidden,
                "superseded_percent": percent(hidden, len(keys)),
                "first_pass_ms": lag_ms,
                **parts["figures"],
            },
            names={"topics": Names.of([configs.topic.name]), **parts["names"]},
        )
    if unseen := [partition for partition in partitions if not _is_read(partition)]:
        records = sum(partition.record_count for partition in unseen)
        text, parts = _compacted(configs, {p.partition: 1.0 for p in unseen}, facts)
        yield Finding(
            kind="unread_records_compacted",
            level=ImpactLevel.LOSS,
            resource=configs.resource,
            message=f"not all of {counted(records, 'record')} in {counted(len(unseen), 'partition')} were read. The log"
            f" cleaner removes others, too, if they have no key or are followed by one with the same key.{text}",
            figures={"partitions": len(unseen), "records": records, **parts["figures"]},
            names={"partitions": _named(configs, unseen), **parts["names"]},
        )


def _compacted(
    configs: TopicConfigs, shares: Mapping[int, float], facts: ClusterFacts
) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """Return a sentence, and ``figures`` and ``names``, about bytes and unread records that a compaction removes.

    All are upper bounds: whether a group has read just those records that go is not visible.

    Args:
        configs: Configs of the topic.
        shares: Share of the records of a log that goes, by partition.
        facts: Facts of the cluster.
    """
    going = [partition for partition in configs.topic.partitions if shares.get(partition.partition)]
    text, parts = unread(configs.topic, {p.partition: p.end_offset for p in going}, facts, at_most=True)
    deleted = sum(round((p.size or 0) * shares[p.partition]) for p in going)
    return text, {"figures": {"deleted_bytes": deleted, **parts["figures"]}, "names": parts["names"]}


def _share(partition: PartitionFacts, count: int) -> float:
    """Return the share of a number of sampled records in a log. 0 if not all was read: that log counts as a whole."""
    return count / len(_keys(partition)) if count and _is_read(partition) else 0.0


def _keys(partition: PartitionFacts) -> list[int | None]:
    return [key for batch in partition.newest_batches or () for key in batch.keys]


def _keyless(partition: PartitionFacts) -> int:
    return _keys(partition).count(None)


def _superseded(partition: PartitionFacts) -> int:
    """Return the number of sampled records that are followed by another one with the same key."""
    keys = [key for key in _keys(partition) if key is not None]
    return len(keys) - len(set(keys))


def _is_read(partition: PartitionFacts) -> bool:
    """Return whether the newest batches are all batches of a log."""
    if not partition.record_count:
        return True
    batches = partition.newest_batches or ()
    is_to_end = bool(batches) and batches[-1].next_offset >= partition.end_offset
    return is_to_end and partition.record_count <= NEWEST_RECORDS


def batch_size(configs: TopicConfigs, facts: ClusterFacts) -> Iterator[Finding]:
    """Predict batches that are rejected as too large, and followers whose fetch limit is smaller than a batch."""
    name = "max.message.bytes"
    limit, before = configs.number(name), configs.number_before(name)
    if limit < before:
        batches = _batches(configs)
        yield from _rejected(
            configs, facts, [b for b in batches if b.size > limit], "RECORD_TOO_LARGE", f"{name}={limit}"
        )
    elif limit > before:
        small = [
            str(n) for n, values in facts.brokers.items() if int(values.get("replica.fetch.max.bytes", limit)) < limit
        ]
        if small and any(len(p.replicas) > 1 for p in configs.topic.partitions):
            yield Finding(
                kind="follower_fetch_limit",
                level=ImpactLevel.NOTICE,
                resource=configs.resource,
                message=f"replica.fetch.max.bytes of {counted(len(small), 'broker')} ({Names.of(small)}) is below"
                f" {size(limit)}: followers fetch such batches one at a time.",
                names={"brokers": Names.of(small)},
            )


def timestamps(configs: TopicConfigs, facts: ClusterFacts) -> Iterator[Finding]:
    """Predict records whose timestamps are rejected or replaced."""
    if configs.is_changed("message.timestamp.type"):
        yield Finding(
            kind="timestamps_replaced",
            level=ImpactLevel.NOTICE,
            resource=configs.resource,
            message=f"new records get timestamps by {configs.after['message.timestamp.type']}. Retention by time,"
            " searches by time and windows of stream processors follow them.",
            names={"topics": Names.of([configs.topic.name])},
        )
    if configs.after.get("message.timestamp.type") == "LogAppendTime":
        return
    for name in ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"):
        limit = configs.number(name)
        if limit < configs.number_before(name):
            outside = _too_old(configs, facts, limit) if ".before." in name else _too_new(configs, facts, limit)
            yield from _rejected(configs, facts, outside, "INVALID_TIMESTAMP", f"{name}={limit}")


def _too_old(configs: TopicConfigs, facts: ClusterFacts, limit_ms: int) -> list[BatchFact]:
    """Return batches whose oldest record is older than the newest record before it by more than a limit.

    The time of the append is not visible. It was not before the newest timestamp that the log already had.
    """
    late: list[BatchFact] = []
    for partition in configs.topic.partitions:
        newest = 0
        for batch in partition.newest_batches or ():
            newest = max(newest, min(batch.max_timestamp_ms, facts.now_ms))
            if newest - batch.first_timestamp_ms > limit_ms:
                late.append(batch)
    return late


def _too_new(configs: TopicConfigs, facts: ClusterFacts, limit_ms: int) -> list[BatchFact]:
    return [batch for batch in _batches(configs) if batch.max_timestamp_ms > facts.now_ms + limit_ms]


def _rejected(
    configs: TopicConfigs, facts: ClusterFacts, rejected: list[BatchFact], error: str, limit: str
) -> Iterator[Finding]:
    if not rejected:
        return
    batches = len(_batches(configs))
    share = percent(len(rejected), batches)
    producers = active_producers(configs.topic, facts.now_ms)
    seen = f" Active producers: {producers}." if producers.count else ""
    yield Finding(
        kind="batches_rejected",
        level=ImpactLevel.DISRUPTION,
        resource=configs.resource,
        message=f"{share} % of the {batches:,} newest batches would be rejected with {error} ({limit}).{seen}",
        figures={"sampled_batches": batches, "rejected_batches": len(rejected), "rejected_percent": share},
        names={"topics": Names.of([configs.topic.name]), "producers": producers},
    )


def in_sync_replicas(configs: TopicConfigs, facts: ClusterFacts) -> Iterator[Finding]:
    """Predict partitions that reject producers with acks=all, now or with one broker less.

    A partition never needs more replicas in sync than it has (``Partition.effectiveMinIsr``).
    """
    needed, before = configs.number("min.insync.replicas"), configs.number_before("min.insync.replicas")
    partitions = [p for p in configs.topic.partitions if p.leader >= 0]
    if needed < before and any(len(p.replicas) > 1 for p in partitions):
        yield Finding(
            kind="weaker_durability",
            level=ImpactLevel.NOTICE,
            resource=configs.resource,
            message=f"a record counts as committed with {counted(needed, 'replica')} in sync instead of {before}.",
        )
    if needed <= before:
        return
    replicas = min((len(p.replicas) for p in partitions), default=needed)
    if replicas < needed:
        yield Finding(
            kind="min_isr_above_replicas",
            level=ImpactLevel.NOTICE,
            resource=configs.resource,
            message=f"min.insync.replicas={needed} exceeds the {counted(replicas, 'replica')} of a partition. Kafka 4"
            " then needs all of them in sync; older releases may reject every producer with acks=all.",
            figures={"replicas": replicas, "min_insync_replicas": needed},
            names={"topics": Names.of([configs.topic.name])},
        )
    below = [p for p in partitions if len(p.isr) < min(needed, len(p.replicas))]
    at_limit = [p for p in partitions if len(p.replicas) > 1 and len(p.isr) == min(needed, len(p.replicas))]
    producers = active_producers(configs.topic, facts.now_ms)
    seen = f" Idempotent producers on them: {producers}." if producers.count else ""
    for level, some, when, kind in (
        (ImpactLevel.DISRUPTION, below, "now", "below_min_isr"),
        (ImpactLevel.NOTICE, at_limit, "with one broker less", "at_min_isr"),
    ):
        if some:
            yield Finding(
                kind=kind,
                level=level,
                resource=configs.resource,
                message=f"{counted(len(some), 'partition')} of {len(partitions)} would reject producers with acks=all"
                f" (NOT_ENOUGH_REPLICAS) {when}.{seen}",
                figures={"partitions": len(some), "min_insync_replicas": needed},
                names={"partitions": _named(configs, some), "producers": producers},
            )


def unclean_election(configs: TopicConfigs, _: ClusterFacts) -> Iterator[Finding]:
    """Predict partitions that elect a leader that may lack committed records."""
    if not configs.is_enabled("unclean.leader.election.enable"):
        return
    replicated = [p for p in configs.topic.partitions if len(p.replicas) > 1]
    leaderless = [p for p in replicated if p.leader < 0]
    lagging = [p for p in replicated if p.leader >= 0 and len(p.isr) < len(p.replicas)]
    if leaderless:
        yield Finding(
            kind="unclean_election",
            level=ImpactLevel.LOSS,
            resource=configs.resource,
            message=f"{counted(len(leaderless), 'partition')} without a leader would elect a replica that may lack"
            " committed records, within unclean.leader.election.interval.ms. How many is not visible from outside.",
            figures={"partitions": len(leaderless)},
            names={"partitions": _named(configs, leaderless)},
        )
    elif replicated:
        behind = f" {counted(len(lagging), 'partition')} have replicas out of sync now." if lagging else ""
        yield Finding(
            kind="unclean_election_possible",
            level=ImpactLevel.DISRUPTION if lagging else ImpactLevel.NOTICE,
            resource=configs.resource,
            message=f"committed records may be lost when all in-sync replicas of a partition fail.{behind}",
            figures={"partitions": len(lagging)},
            names={"partitions": _named(configs, lagging)},
        )


def compression(configs: TopicConfigs, _: ClusterFacts) -> Iterator[Finding]:
    """Predict the batches that the broker compresses again, which costs CPU and copies."""
    kind = configs.after.get("compression.type") or "producer"
    if not configs.is_changed("compression.type") or kind == "producer":
        return
    codec = "none" if kind == "uncompressed" else kind
    batches = _batches(configs)
    other = [batch for batch in batches if batch.codec != codec]
    if other:
        share = percent(len(other), len(batches))
        yield Finding(
            kind="recompression",
            level=ImpactLevel.NOTICE,
            resource=configs.resource,
            message=f"the broker would compress {share} % of the newest batches again, to {kind}.",
            figures={"sampled_batches": len(batches), "recompressed_percent": share},
            names={"topics": Names.of([configs.topic.name])},
        )


def segments(configs: TopicConfigs, _: ClusterFacts) -> Iterator[Finding]:
    """Predict the number of segment files per broker once the logs consist of new segments."""
    if not any(configs.number(name) < configs.number_before(name) for name in SEGMENT_KEYS):
        return
    per_broker: dict[int, int] = {}
    for partition in configs.topic.partitions:
        count = _segment_count(partition, configs)
        for node in partition.replicas:
            per_broker[node] = per_broker.get(node, 0) + FILES_PER_SEGMENT * count
    files = max(per_broker.values(), default=0)
    maps = files * 2 // FILES_PER_SEGMENT
    if files >= _NOTED_FILES:
        yield Finding(
            kind="segment_files",
            level=ImpactLevel.DISRUPTION if maps > MAX_MAPPED_FILES else ImpactLevel.NOTICE,
            resource=configs.resource,
            message=f"a log of today's size would have {files:,} files on one broker, of which it maps {maps:,}. Linux"
            f" allows {MAX_MAPPED_FILES:,} maps by default (vm.max_map_count); the broker's limits are not visible.",
            figures={"files": files, "mapped_files": maps},
            names={"topics": Names.of([configs.topic.name])},
        )


def _segment_count(partition: PartitionFacts, configs: TopicConfigs) -> int:
    # an index that is full ends its segment; it has an entry per index.interval.bytes
    index_entries = max(1, configs.number("segment.index.bytes") // INDEX_ENTRY_BYTES - 1)
    by_index = index_entries * max(1, configs.number("index.interval.bytes"))
    by_size = min((partition.size or 0) // min(configs.number("segment.bytes"), by_index), partition.record_count)
    newest = max((b.max_timestamp_ms for b in partition.newest_batches or ()), default=0)
    span_ms = 0 if partition.oldest_ms is None else max(0, newest - partition.oldest_ms)
    # a segment of one interval needs at least one record
    by_time = min(span_ms // configs.number("segment.ms"), partition.record_count)
    return 1 + max(by_size, by_time)


def _batches(configs: TopicConfigs) -> list[BatchFact]:
    return [batch for partition in configs.topic.partitions for batch in partition.newest_batches or ()]


def _named(configs: TopicConfigs, partitions: list[PartitionFacts]) -> Names:
    return Names.of(f"{configs.topic.name}-{partition.partition}" for partition in partitions)
