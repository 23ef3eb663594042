"""Facts for the impact of a change, which policies may read, from the broker's own topics, logs, groups and configs.

Other requests are served between topics and partitions, so the facts are not those of one moment. What takes long for
many topics or records runs in a thread.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.impact.effective import with_inherited
from klamm.impact.facts import (
    BatchFact,
    ClusterFacts,
    ConfigValueFact,
    GroupFacts,
    Need,
    ObservedTopic,
    PartitionFacts,
    ProducerFact,
)
from klamm.impact.findings import counted, size
from klamm.impact.prediction import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    concerns_inheriting_topics,
    config_effects,
    cutoffs,
    is_changed,
    needs,
    predict,
    topics_of,
)
from klamm.impact.samples import (
    MAX_PARTITION_BYTES,
    MAX_SAMPLED_BYTES,
    NEWEST_RECORDS,
    batch_facts,
    mirror_of,
    synced_offsets,
)
from klamm.protocol.errors import StorageError
from klamm.protocol.records import NO_TIMESTAMP
from klamm.protocol.types import ResourceType, TopicPartition
from klamm.server.time_slice import TimeSlice
from klamm.storage.log import offset_for_timestamp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence

    from klamm.broker.context import Services
    from klamm.broker.topics.catalog import Topic
    from klamm.impact.changes import Change
    from klamm.impact.findings import Impact
    from klamm.impact.prediction import ConfigEffects
    from klamm.storage.log import PartitionLog

Item = TypeVar("Item")
_OLDEST: Final = 0
"""Timestamp that every record with one has reached."""


async def predict_impact(changes: Sequence[Change], timeout_s: float, services: Services) -> Impact:
    """Predict what changes would do if they were made together, with every finding.

    Args:
        changes: Changes of topics, topic configs and broker configs.
        timeout_s: Time limit for the facts, in seconds.
        services: Services of the broker.

    Raises:
        TimeoutError: Some facts were not read in time. The text names them.
        KafkaApiError: A log cannot be read.
    """
    facts = await _Collector(services, timeout_s).facts(changes)
    return await asyncio.to_thread(predict, changes, facts, sums_up=False)


class _Collector:
    """One collection of facts. Used on the event loop only."""

    def __init__(self, services: Services, timeout_s: float) -> None:
        self._services = services
        self._slices = TimeSlice()
        self._ends_at = time.monotonic() + timeout_s
        self._now_ms = services.now_ms()
        self._unknown: list[str] = []
        self._missing = Need(0)

    async def facts(self, changes: Sequence[Change]) -> ClusterFacts:
        catalog, everything = self._services.topics, concerns_inheriting_topics(changes)
        concerned = catalog.all() if everything else [catalog.get(name) for name in sorted(topics_of(changes))]
        topics = {topic.name: topic for topic in concerned if topic is not None}
        observed = {
            topic.name: self._observed(topic)
            async for topic in self._each("configs", topics.values())
            if not self._is_deleted(topic)
        }
        facts = ClusterFacts(
            now_ms=self._now_ms, topics=observed, topic_names=frozenset(topic.name for topic in catalog.all())
        )
        effects = await asyncio.to_thread(config_effects, changes, facts)
        self._slices.restart()
        needed = needs(changes, effects)
        if any(is_changed(effects, name, "max.message.bytes") for name in effects):
            facts = replace(facts, brokers=self._brokers())
        some = [topic for name, topic in topics.items() if needed.get(name)]
        observed |= {
            topic.name: await self._with_partitions(topic, observed[topic.name], needed[topic.name], effects)
            async for topic in self._each("log offsets", some)
        }
        observed = await self._with_batches(observed, [t for t in some if Need.BATCHES in needed[t.name]])
        if readers := [topic for topic in some if Need.GROUPS in needed[topic.name]]:
            facts = replace(facts, groups=await self._groups(readers), mirrors=await self._mirrors())
        return replace(facts, topics=observed, unknown=tuple(self._unknown), missing=self._missing)

    async def _each(self, fact: str, items: Collection[Item]) -> AsyncIterator[Item]:
        """Iterate with pauses for other requests, until the time limit.

        Raises:
            TimeoutError: The limit was reached.
        """
        done = 0
        async for item in self._slices.over(items):
            if time.monotonic() >= self._ends_at:
                raise TimeoutError(f"{fact} of {len(items) - done:,} of {len(items):,}")
            yield item
            done += 1

    def _is_deleted(self, topic: Topic) -> bool:
        """Return whether a topic was deleted while other requests were served."""
        return self._services.topics.by_id(topic.topic_id) is None

    def _observed(self, topic: Topic) -> ObservedTopic:
        cluster = self._services.cluster
        described = self._services.configs.describe(
            ResourceType.TOPIC, topic.name, TOPIC_CONFIGS, node_id=cluster.node_ids[0]
        )
        defaults = self._services.configs.topic_defaults()
        return ObservedTopic(
            name=topic.name,
            partitions=tuple(
                PartitionFacts(
                    partition=index,
                    leader=cluster.leader(replicas),
                    replicas=replicas,
                    isr=tuple(cluster.live_replicas(replicas)),
                )
                for index, replicas in enumerate(topic.partitions)
            ),
            configs={
                config.name: with_inherited(
                    config.name,
                    tuple(
                        ConfigValueFact(name=each.name, value=each.value, source=each.source)
                        for each in config.synonyms
                    ),
                    defaults.get(config.name),
                )
                for config in described
            },
            config_brokers=frozenset(cluster.node_ids[:1]),
        )

    async def _with_partitions(
        self, topic: Topic, observed: ObservedTopic, need: Need, effects: ConfigEffects
    ) -> ObservedTopic:
        times = cutoffs(effects, topic.name, self._now_ms)
        names = self._transactional_ids() if Need.PRODUCERS in need else {}
        partitions = []
        async for partition in self._each(f"log offsets of topic {topic.name}", observed.partitions):
            log = self._log(topic, partition.partition)
            if log is None:
                if self._is_deleted(topic):
                    break
                self._note(
                    Need.OFFSETS, f"log offsets of {topic.name}-{partition.partition}: it has no leader, or no log"
                )
                partitions.append(partition)
                continue
            facts = partition
            if Need.OFFSETS in need:
                facts = await _with_offsets(partition, log, times)
            if Need.PRODUCERS in need:
                facts = replace(facts, producers=_producers(log, names))
            partitions.append(facts)
        return replace(observed, partitions=tuple(partitions))

    def _note(self, need: Need, fact: str) -> None:
        self._unknown.append(fact)
        self._missing |= need

    def _log(self, topic: Topic, partition: int) -> PartitionLog | None:
        """Return a log; None while the topic is being created or deleted, and if the partition has no leader."""
        if self._services.cluster.leader(topic.partitions[partition]) < 0:
            return None
        try:
            return self._services.logs.get(topic.topic_id, partition)
        except OSError as error:
            raise StorageError(f"Cannot open {topic.name}-{partition}: {error}") from error

    def _transactional_ids(self) -> dict[int, str]:
        return {each.producer_id: each.transactional_id for each in self._services.transactions.all()}

    async def _with_batches(
        self, observed: Mapping[str, ObservedTopic], topics: Sequence[Topic]
    ) -> dict[str, ObservedTopic]:
        """Read the newest batches of topics, within the limit of bytes."""
        left, left_out, changed = MAX_SAMPLED_BYTES, 0, dict(observed)
        async for topic in self._each("the newest batches", topics):
            partitions = []
            for partition in changed[topic.name].partitions:
                batches: tuple[BatchFact, ...] | None = None
                if partition.record_count and left <= 0:
                    left_out += 1
                elif partition.record_count:
                    start = max(partition.start_offset, partition.end_offset - NEWEST_RECORDS)
                    records = self._read(topic, partition.partition, start)
                    left -= len(records)
                    batches = await asyncio.to_thread(lambda data: tuple(batch_facts(data)), records)
                    self._slices.restart()
                partitions.append(replace(partition, newest_batches=batches))
            changed[topic.name] = replace(changed[topic.name], partitions=tuple(partitions))
        if left_out:
            limit = size(MAX_SAMPLED_BYTES)
            self._note(
                Need.BATCHES, f"the newest batches of {counted(left_out, 'partition')}: reading ended at {limit}"
            )
        return changed

    def _read(self, topic: Topic, partition: int, offset: int) -> bytes:
        log = self._log(topic, partition)
        if log is None:
            return b""
        # Compaction or retention may have moved the start since the offsets were read.
        return log.read(max(offset, log.log_start_offset), MAX_PARTITION_BYTES)

    async def _groups(self, topics: Sequence[Topic]) -> tuple[GroupFacts, ...]:
        groups = self._services.groups
        names = {topic.topic_id: topic.name for topic in topics}
        facts = []
        async for group in self._each("committed offsets of groups", await self._slices.listed(groups.list_groups())):
            committed = groups.offsets.of_group(group.group_id)
            offsets = {
                TopicPartition(names[topic_id], index): commit.offset
                for topic_id, commits in committed.items()
                if topic_id in names
                for index, commit in commits.items()
            }
            facts.append(GroupFacts(name=group.group_id, is_active=group.member_count > 0, offsets=offsets))
        return tuple(facts)

    async def _mirrors(self) -> tuple[GroupFacts, ...]:
        """Return the flows whose offset syncs are in this cluster, with the newest source offset of each partition."""
        flows = [(topic, alias) for topic in self._services.topics.all() if (alias := mirror_of(topic.name))]
        mirrors = []
        async for topic, alias in self._each("progress of mirrors", flows):
            log = self._log(topic, 0)
            start = 0 if log is None else max(log.log_start_offset, log.high_watermark - NEWEST_RECORDS)
            records = self._read(topic, 0, start)
            offsets = await asyncio.to_thread(synced_offsets, records)
            mirrors.append(GroupFacts(name=alias, is_active=True, offsets=offsets))
        return tuple(mirrors)

    def _brokers(self) -> dict[int, Mapping[str, str]]:
        configs = self._services.configs
        return {
            node_id: {name: str(configs.broker_value(name, node_id=node_id)) for name in BROKER_CONFIGS}
            for node_id in self._services.cluster.node_ids
        }


async def _with_offsets(partition: PartitionFacts, log: PartitionLog, times: Sequence[int]) -> PartitionFacts:
    oldest = await offset_for_timestamp(log, _OLDEST)
    offset_at = {at: (await offset_for_timestamp(log, max(at, 0))).offset for at in times}
    return replace(
        partition,
        start_offset=log.log_start_offset,
        end_offset=log.high_watermark,
        size=log.size,
        oldest_ms=None if oldest.timestamp == NO_TIMESTAMP else oldest.timestamp,
        offset_at=offset_at,
    )


def _producers(log: PartitionLog, names: Mapping[int, str]) -> tuple[ProducerFact, ...]:
    return tuple(
        ProducerFact(
            producer_id=producer_id,
            last_timestamp_ms=state.last_timestamp,
            transactional_id=names.get(producer_id),
            is_in_transaction=log.producers.open_offset_of(producer_id) >= 0,
        )
        for producer_id, state in log.producers.items()
    )
