"""Collection of the facts of a cluster through the admin client, and the impact of changes predicted from them.

The number of requests does not depend on the number of topics: each call goes once to every broker
concerned. Reading the newest batches is limited in bytes and time. A fact that the principal may not see, or that
the cluster does not serve, becomes a sentence in ``Impact.unknown``.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from klamm.admin.types import ConfigResource, OffsetSpec
from klamm.client_configs.description import EntityFilter, FilterComponent
from klamm.client_configs.entities import EntityType
from klamm.configs.definitions import topic_synonyms
from klamm.impact.changes import ClientConfigAltered, ConfigAltered, QuotaAltered
from klamm.impact.effective import topic_keys, with_inherited
from klamm.impact.facts import (
    NO_NEED,
    ClientFacts,
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
from klamm.kafka_client.errors import ConnectionLostError, error_text
from klamm.protocol.errors import (
    ClusterAuthorizationError,
    InvalidTopicError,
    KafkaApiError,
    UnknownTopicOrPartitionError,
)
from klamm.protocol.records import NO_TIMESTAMP
from klamm.protocol.types import ConfigSource, ResourceType, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from klamm.admin.client import AdminClient
    from klamm.admin.results import PerKeyResult
    from klamm.admin.types import TopicListing
    from klamm.impact.changes import Change
    from klamm.impact.findings import Impact
    from klamm.impact.prediction import ConfigEffects
    from klamm.kafka_client.pool.calls import Outcome

_MAX_SAMPLING_S: Final = 5.0
"""Time after which no further batches are requested, in seconds."""
_MAX_RESPONSE_BYTES: Final = 16 * MAX_PARTITION_BYTES
_PARTITIONS_PER_FETCH: Final = 64
_INACTIVE: Final = frozenset({"Empty", "Dead", None})
_WITH_OFFSETS: Final = frozenset({"", "consumer", "streams"})
"""Protocol types of groups that commit offsets: without a type, of consumers, and of Kafka Streams (KIP-1071)."""
_FAILURES: Final = (KafkaApiError, TimeoutError, ConnectionLostError)
_Topics: TypeAlias = "Mapping[str, ObservedTopic]"
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def impact_of(
    changes: Sequence[Change],
    admin: AdminClient,
    *,
    timeout_s: float | None = None,
    sums_up: bool = True,
) -> Impact:
    """Predict what changes would do to a cluster if they were made together, and change nothing.

    Args:
        changes: The changes. Those of resources that do not exist have no impact.
        admin: Client of the cluster: klamm, its gateway, or Apache Kafka (tested with 3.9 and 4.4).
        timeout_s: Time limit in seconds. Facts that are missing then are listed in ``Impact.unknown``. None means that
            each request has the time limit of ``admin``.
        sums_up: Whether findings of one kind and level beyond ten are summed up in one.

    Raises:
        KafkaApiError, TimeoutError, ConnectionError: The topics or their configs cannot be described.
    """
    collector = _Collector(admin, timeout_s)
    return predict(changes, collector.facts(changes), sums_up=sums_up)


class _Collector:
    """One collection of facts."""

    def __init__(self, admin: AdminClient, timeout_s: float | None) -> None:
        self._admin = admin
        self._timeout_s = timeout_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._now_ms = int(time.time() * 1000)
        self._unknown: list[str] = []
        self._missing = NO_NEED
        self._is_current = True
        """Whether topics are read from a broker that has applied all committed changes. On another one, a topic that
        exists may be unknown, as if a change of it had no impact."""
        self._leaders: dict[TopicPartition, int] = {}
        """Leaders of the partitions concerned, looked up once."""

    def facts(self, changes: Sequence[Change]) -> ClusterFacts:
        names, facts = frozenset[str](), ClusterFacts(now_ms=self._now_ms)
        concerned = topics_of(changes)
        if concerned or concerns_inheriting_topics(changes):
            names = self._names(concerned)
            self._note_hidden(concerned - names)
            everything = concerns_inheriting_topics(changes)
            topics = self._topics(names if everything else concerned & names)
            self._leaders = {
                TopicPartition(name, p.partition): p.leader
                for name, topic in topics.items()
                for p in topic.partitions
                if p.leader >= 0
            }
            inherited = self._inherited(changes) if topics else {}
            facts = replace(facts, topics=topics, topic_names=names, inherited=inherited)
            effects = config_effects(changes, facts)
            topics = self._with_offsets(topics, needs(changes, effects), effects)
            facts = self._with_clients(replace(facts, topics=topics), needs(changes, effects))
            if any(is_changed(effects, name, "max.message.bytes") for name in effects):
                facts = replace(facts, brokers=self._brokers())
        if any(isinstance(change, QuotaAltered) for change in changes):
            quotas = self._optional("the present quotas", NO_NEED, self._admin.describe_client_quotas())
            facts = replace(facts, quotas={entity.parts: values for entity, values in (quotas or {}).items()})
        if any(isinstance(change, ClientConfigAltered) for change in changes):
            facts = replace(facts, clients=self._registered())
        return replace(facts, unknown=tuple(self._unknown), missing=self._missing)

    def _left_s(self) -> float | None:
        """Return the seconds until the time limit; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _note(self, need: Need, fact: str) -> None:
        """Record that facts are missing."""
        self._unknown.append(fact)
        self._missing |= need

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError) and self._left_s() == 0:
            return f"not read within {self._timeout_s:g} s"
        return error_text(error)

    def _names(self, concerned: Collection[str]) -> frozenset[str]:
        """Return the names of all topics that the principal may describe.

        Which changes are committed may be read only with DESCRIBE on the cluster. Without it any broker is asked, and a
        topic concerned that it does not know is a missing fact.
        """
        try:
            return frozenset(self._listed())
        except ClusterAuthorizationError as error:
            self._is_current = False
            names = frozenset(self._listed())
            need = NO_NEED if names.issuperset(concerned) else ~NO_NEED
            self._note(need, f"changes of topics in the last moments ({self._reason(error)})")
            return names

    def _listed(self) -> Mapping[str, TopicListing]:
        listed = self._admin.list_topics(include_internal=True, is_current=self._is_current)
        return listed.result(self._left_s())

    def _note_hidden(self, names: Collection[str]) -> None:
        """Record topics that are not listed although they exist, because the principal may not describe them."""
        for name, described in self._admin.describe_topics(names, is_current=self._is_current).values().items():
            try:
                described.result(self._left_s())
            except (UnknownTopicOrPartitionError, InvalidTopicError):
                continue
            except _FAILURES as error:
                self._note(~NO_NEED, f"topic {name} ({self._reason(error)})")

    def _optional(self, fact: str, need: Need, outcome: Outcome[_Value]) -> _Value | None:
        """Wait for a result that may be missing."""
        try:
            return outcome.result(self._left_s())
        except _FAILURES as error:
            self._note(need, f"{fact} ({self._reason(error)})")
            return None

    def _available(self, fact: str, need: Need, result: PerKeyResult[_Key, _Value]) -> dict[_Key, _Value]:
        """Wait for the results of all keys, and return those without an error."""
        values: dict[_Key, _Value] = {}
        errors: dict[str, _Key] = {}
        for key, outcome in result.values().items():
            try:
                values[key] = outcome.result(self._left_s())
            except _FAILURES as error:
                errors.setdefault(self._reason(error), key)
        for reason, key in list(errors.items())[:1]:
            self._note(need, f"{fact} of {key} ({reason})")
        return values

    def _topics(self, names: Collection[str]) -> _Topics:
        resources = {ConfigResource(ResourceType.TOPIC, name): TOPIC_CONFIGS for name in names}
        described = self._admin.describe_topics(names, is_current=self._is_current)
        configs = self._admin.describe_configs(resources, include_synonyms=True, is_current=self._is_current).result(
            self._left_s()
        )
        return {
            name: ObservedTopic(
                name=name,
                partitions=tuple(
                    PartitionFacts(partition=p.partition, leader=p.leader, replicas=p.replicas, isr=p.isr)
                    for p in topic.partitions
                ),
                configs={
                    key: with_inherited(
                        key,
                        tuple(ConfigValueFact(name=s.name, value=s.value, source=s.source) for s in entry.synonyms),
                        None if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG else entry.value,
                    )
                    for key, entry in configs[ConfigResource(ResourceType.TOPIC, name)].items()
                },
            )
            for name, topic in described.result(self._left_s()).items()
        }

    def _inherited(self, changes: Sequence[Change]) -> dict[int, Mapping[str, tuple[ConfigValueFact, ...]]]:
        """Return the values that topics inherit from each broker, of configs whose inherited value counts or changes.

        A topic is described by any broker, with the values of that one. Kafka leaves out those that only a synonym in
        another unit has.
        """
        keys = {
            key
            for change in changes
            if isinstance(change, ConfigAltered)
            if change.resource_type == ResourceType.BROKER or change.value is None
            for key in topic_keys(change)
            if key in TOPIC_CONFIGS and key in topic_synonyms()
        }
        if not keys:
            return {}
        names = {key: [synonym.name for synonym in topic_synonyms()[key]] for key in sorted(keys)}
        wanted = [name for several in names.values() for name in several]
        described = self._available(
            "broker configs",
            ~NO_NEED,
            self._admin.describe_configs(
                dict.fromkeys(self._nodes(~NO_NEED), wanted), include_synonyms=True, is_current=self._is_current
            ),
        )
        return {
            int(node.name): {
                key: tuple(
                    ConfigValueFact(name=name, value=each.value, source=each.source)
                    for name in several
                    if name in entries
                    for each in (entries[name].synonyms or (entries[name],))
                    if each.name == name
                )
                for key, several in names.items()
            }
            for node, entries in described.items()
        }

    def _with_offsets(self, topics: _Topics, needed: Mapping[str, Need], effects: ConfigEffects) -> _Topics:
        wanted = _places(topics, needed, Need.OFFSETS)
        places = [place for place in wanted if place in self._leaders]
        if len(places) < len(wanted):
            self._note(
                Need.OFFSETS, f"log offsets of {counted(len(wanted) - len(places), 'partition')} without a leader"
            )
        if not places:
            return topics
        times = {place: cutoffs(effects, place.topic, self._now_ms) for place in places}
        offsets = {
            spec: self._admin.list_offsets(dict.fromkeys(places, spec), leaders=self._leaders)
            for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST, 0)
        }
        by_time = [
            self._admin.list_offsets(
                {place: max(each[number], 0) for place, each in times.items() if number < len(each)},
                leaders=self._leaders,
            )
            for number in range(max(map(len, times.values())))
        ]
        starts, ends, oldest = (self._available("log offsets", Need.OFFSETS, each) for each in offsets.values())
        kept = [self._available("log offsets by time", Need.OFFSETS, each) for each in by_time]
        sizes = self._sizes()

        def with_offsets(topic: str, p: PartitionFacts) -> PartitionFacts:
            place = TopicPartition(topic, p.partition)
            if place not in starts or place not in ends:
                return p
            first = oldest.get(place)
            return replace(
                p,
                start_offset=starts[place].offset,
                end_offset=ends[place].offset,
                size=sizes.get(place, {}).get(p.leader),
                oldest_ms=None if first is None or first.timestamp == NO_TIMESTAMP else first.timestamp,
                offset_at={
                    at: found[place].offset for at, found in zip(times[place], kept, strict=False) if place in found
                },
            )

        return _mapped(topics, with_offsets)

    def _sizes(self) -> dict[TopicPartition, dict[int, int]]:
        """Return the size of each replica in bytes, by partition and node id."""
        leaders = set(self._leaders.values())
        sizes: dict[TopicPartition, dict[int, int]] = {}
        described = self._admin.describe_log_dirs(leaders)
        for node, directories in self._available("log sizes", Need.OFFSETS, described).items():
            for directory in directories.values():
                for place, replica in directory.replicas.items():
                    if not replica.is_future:
                        sizes.setdefault(place, {})[node] = replica.size
        return sizes

    def _with_clients(self, facts: ClusterFacts, needed: Mapping[str, Need]) -> ClusterFacts:
        topics = facts.topics
        if places := _places(topics, needed, Need.PRODUCERS):
            topics = self._with_producers(topics, [place for place in places if place in self._leaders])
        if places := _places(topics, needed, Need.BATCHES):
            topics = self._with_batches(topics, places)
        facts = replace(facts, topics=topics)
        if places := _places(topics, needed, Need.GROUPS):
            facts = replace(facts, groups=self._groups(places), mirrors=self._mirrors(facts.topic_names))
        return facts

    def _with_producers(self, topics: _Topics, places: list[TopicPartition]) -> _Topics:
        described = self._admin.describe_producers(places, leaders=self._leaders)
        names = self._optional("transactional ids", Need.PRODUCERS, self._admin.list_transactions()) or {}
        producers = self._available("active producers", Need.PRODUCERS, described)

        def with_producers(topic: str, p: PartitionFacts) -> PartitionFacts:
            states = producers.get(TopicPartition(topic, p.partition))
            if states is None:
                return p
            return replace(
                p,
                producers=tuple(
                    ProducerFact(
                        producer_id=state.producer_id,
                        last_timestamp_ms=state.last_timestamp_ms,
                        transactional_id=names.get(state.producer_id),
                        is_in_transaction=state.transaction_start_offset is not None,
                    )
                    for state in states
                ),
            )

        return _mapped(topics, with_producers)

    def _with_batches(self, topics: _Topics, places: list[TopicPartition]) -> _Topics:
        """Read the newest batches of partitions, round by round, within the limits."""
        wanted = {
            place: max(p.start_offset, p.end_offset - NEWEST_RECORDS)
            for place in places
            if place in self._leaders and (p := topics[place.topic].partitions[place.partition]).record_count
        }
        read, left, left_s = dict[TopicPartition, memoryview](), MAX_SAMPLED_BYTES, self._left_s()
        max_s = _MAX_SAMPLING_S if left_s is None else min(_MAX_SAMPLING_S, left_s)
        deadline = time.monotonic() + max_s
        queue = list(wanted)
        while queue and left > 0 and time.monotonic() < deadline:
            # A leader fills its response in the order of the request. Partitions that got nothing are asked again.
            some = queue[:_PARTITIONS_PER_FETCH]
            leaders = {self._leaders[place] for place in some}
            limit_ms = max(1, int((deadline - time.monotonic()) * 1000))
            fetched = self._available(
                "the newest batches",
                Need.BATCHES,
                self._admin.fetch_batches(
                    {place: wanted[place] for place in some},
                    max_bytes=min(left // len(leaders), _MAX_RESPONSE_BYTES),
                    partition_max_bytes=MAX_PARTITION_BYTES,
                    leaders=self._leaders,
                    timeout_ms=limit_ms,
                ),
            )
            got = {place: records for place, records in fetched.items() if len(records)}
            left -= sum(map(len, got.values()))
            read |= got
            queue = [*(place for place in some if place in fetched and place not in got), *queue[len(some) :]]
            if not got:
                break
        if len(read) < len(wanted):
            left_out = counted(len(wanted) - len(read), "partition")
            limits = f"{size(MAX_SAMPLED_BYTES)} or {max_s:.3g} s"
            self._note(Need.BATCHES, f"the newest batches of {left_out}: reading ended at {limits}")

        def with_batches(topic: str, p: PartitionFacts) -> PartitionFacts:
            records = read.get(TopicPartition(topic, p.partition))
            return p if records is None else replace(p, newest_batches=tuple(batch_facts(records)))

        return _mapped(topics, with_batches)

    def _groups(self, places: Collection[TopicPartition]) -> tuple[GroupFacts, ...]:
        listed = self._optional("consumer groups", Need.GROUPS, self._admin.list_groups()) or ()
        states = {group.group_id: group.state for group in listed if group.protocol_type in _WITH_OFFSETS}
        committed = self._available(
            "committed offsets", Need.GROUPS, self._admin.list_group_offsets(dict.fromkeys(states))
        )
        wanted = frozenset(places)
        return tuple(
            GroupFacts(
                name=name,
                is_active=states[name] not in _INACTIVE,
                offsets={place: commit.offset for place, commit in offsets.items() if place in wanted},
            )
            for name, offsets in committed.items()
        )

    def _mirrors(self, names: Iterable[str]) -> tuple[GroupFacts, ...]:
        """Return the flows whose offset syncs are in this cluster, with the newest source offset of each partition."""
        syncs = {TopicPartition(name, 0): target for name in names if (target := mirror_of(name)) is not None}
        if not syncs:
            return ()
        fact = "progress of mirrors", Need.GROUPS
        ends = self._available(*fact, self._admin.list_offsets(dict.fromkeys(syncs, OffsetSpec.LATEST)))
        starts = self._available(*fact, self._admin.list_offsets(dict.fromkeys(ends, OffsetSpec.EARLIEST)))
        wanted = {place: max(start.offset, ends[place].offset - NEWEST_RECORDS) for place, start in starts.items()}
        fetched = self._available(
            *fact,
            self._admin.fetch_batches(wanted, max_bytes=_MAX_RESPONSE_BYTES, partition_max_bytes=MAX_PARTITION_BYTES),
        )
        return tuple(
            GroupFacts(name=syncs[place], is_active=True, offsets=synced_offsets(records))
            for place, records in fetched.items()
        )

    def _nodes(self, need: Need) -> Sequence[ConfigResource]:
        """Return the brokers as config resources; none if no broker answers, which is noted."""
        cluster = self._optional("the list of brokers", need, self._admin.describe_cluster())
        return [ConfigResource(ResourceType.BROKER, str(node.id)) for node in cluster.nodes] if cluster else []

    def _brokers(self) -> dict[int, Mapping[str, str]]:
        resources = dict.fromkeys(self._nodes(NO_NEED), BROKER_CONFIGS)
        configs = self._available("broker configs", NO_NEED, self._admin.describe_configs(resources))
        return {
            int(resource.name): {name: entry.value for name, entry in entries.items() if entry.value is not None}
            for resource, entries in configs.items()
        }

    def _registered(self) -> tuple[ClientFacts, ...] | None:
        """Return each client that has registered. Which of its versions runs is not known, so all of them count."""
        of_clients = (
            FilterComponent.of_entity_type(EntityType.USER),
            FilterComponent.of_entity_type(EntityType.CLIENT_ID),
        )
        descriptions = self._optional(
            "registered clients",
            NO_NEED,
            self._admin.describe_client_configs(EntityFilter(components=of_clients, strict=True)),
        )
        return (
            None
            if descriptions is None
            else tuple(
                ClientFacts(
                    user=each.entity.user,
                    client_id=each.entity.client_id,
                    supported_configs=frozenset(
                        key for version in each.compatibility for key in version.supported_configs
                    ),
                )
                for each in descriptions
                if each.compatibility
            )
        )


def _places(topics: _Topics, needed: Mapping[str, Need], need: Need) -> list[TopicPartition]:
    return [
        TopicPartition(name, p.partition)
        for name, topic in topics.items()
        if need in needed.get(name, NO_NEED)
        for p in topic.partitions
    ]


def _mapped(topics: _Topics, change: Callable[[str, PartitionFacts], PartitionFacts]) -> _Topics:
    return {
        name: replace(topic, partitions=tuple(change(name, p) for p in topic.partitions))
        for name, topic in topics.items()
    }
