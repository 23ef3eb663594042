"""Plans of promotions and demotions: what would be handed over or taken back, and what stands in the way."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm.admin import KafkaApiError, OffsetSpec, TopicPartition
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.lazy_dataclass import dataclass
from klamm.mirror.cluster_admin import admin_client, check_reachable, outcomes, topic_configs
from klamm.mirror.groups.control import group_control
from klamm.mirror.progress.flow_progress import GroupStatus
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.internal_topic import TopicGoneError
from klamm.mirror.records.source_offsets import resume_offset
from klamm.mirror.replica.obstacles import connected, finalized_features
from klamm.mirror.replica.placement import is_led_by_broker, led_by_brokers, not_mirrored
from klamm.mirror.replica.promotion import UNKNOWN_COLLISIONS, describe_collisions
from klamm.mirror.replica.target_brokers import TargetBrokers
from klamm.mirror.replica.target_nodes import target_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from klamm.admin import AdminClient, ConfigEntry, TopicDescription
    from klamm.mirror.copy.source_offset_store import StoredSourceOffsets
    from klamm.mirror.progress.flow_progress import PartitionStatus
    from klamm.mirror.settings.flow import FlowSettings

_TIMEOUT_MS: Final = 10_000
MIN_ISR: Final = "min.insync.replicas"
_ELIGIBLE_LEADERS: Final = "eligible.leader.replicas.version"
_GROUPS_S: Final = 10.0
"""Seconds in which the replicas should have the records up to the offsets of the groups."""
_GROUPS_EVERY_S: Final = 0.2
MAX_SYNC_S: Final = 20.0
"""Seconds in which group offsets should be synced. The command waits so long, and its sender waits for the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPromotion:
    """Promotion of one topic that is planned or requested."""

    topic: str
    """Source topic."""
    remote_topic: str
    partitions: int
    lag: int | None
    """Number of source offsets that are not on the target. None: not known."""
    open_transactions: int | None = None
    """Number of open transactions on the source, which would be aborted on the target. None: not known."""
    obstacles: tuple[str, ...] = ()
    warning: str = ""
    """Transactional ids of the target that should not write to the topic. Empty: none."""


def promotions(flow: FlowSettings, topics: Sequence[str], rows: Sequence[PartitionStatus]) -> list[TopicPromotion]:
    """Return the promotions of topics from the progress of their partitions."""

    def promotion(topic: str) -> TopicPromotion:
        own = [row for row in rows if row.topic == topic]
        lags = [row.lag for row in own if row.lag is not None]
        waiting = [row for row in own if row.reason and row.state is not CopyState.PROMOTED]
        return TopicPromotion(
            topic=topic,
            remote_topic=flow.remote_topic(topic),
            partitions=len(own),
            lag=sum(lags) if own and len(lags) == len(own) else None,
            obstacles=tuple(f"{row.topic}-{row.partition}: {row.reason}" for row in waiting),
        )

    return list(map(promotion, topics))


def plan(
    flow: FlowSettings, topics: Sequence[str], rows: Sequence[PartitionStatus], *, accepts_loss: bool
) -> list[TopicPromotion]:
    """Return the promotions of topics with what both clusters say about them. Nothing is changed.

    Raises:
        ConnectionError, TimeoutError, KafkaApiError: The target does not respond, or rejects a request.
    """
    planned = promotions(flow, topics, rows)
    with admin_client(flow, "target", timeout_ms=_TIMEOUT_MS) as target:
        live = {node.id for node in target.describe_cluster().result().nodes}
        described = outcomes(target.describe_topics([each.remote_topic for each in planned]))
        moving = target.list_partition_reassignments().result()
    removed = {(*partition, node_id) for partition, each in moving.items() for node_id in each.removing_replicas}
    transactions, away = ({}, ()) if accepts_loss else _open_transactions(flow, rows)
    missing = {} if accepts_loss or away else missing_partitions(flow, topics)
    warnings = _collisions(flow, described)
    return [
        replace(
            each,
            open_transactions=transactions.get(each.topic),
            obstacles=(
                *each.obstacles,
                *_of_target(each.remote_topic, described[each.remote_topic], live, removed),
                *((missing[each.topic],) if each.topic in missing else ()),
                *away,
            ),
            warning=warnings.get(each.remote_topic, ""),
        )
        for each in planned
    ]


def missing_partitions(flow: FlowSettings, topics: Sequence[str]) -> dict[str, str]:
    """Return the topics with source partitions that are not on the target yet, each with what that means.

    Empty while the source is unavailable: then the promotion waits for it.

    Raises:
        ConnectionError, TimeoutError, KafkaApiError: The target does not respond, or rejects the request.
    """
    try:
        with admin_client(flow, "source", timeout_ms=_TIMEOUT_MS) as source:
            check_reachable(source, flow.source.alias)
            here = _partition_counts(source, topics)
    except CLUSTER_ERRORS:
        return {}
    with admin_client(flow, "target", timeout_ms=_TIMEOUT_MS) as target:
        there = _partition_counts(target, list(map(flow.remote_topic, topics)))
    out = {}
    for topic, count in here.items():
        remote_topic = flow.remote_topic(topic)
        if there.get(remote_topic, 0) < count:
            out[topic] = (
                f"{topic} has {count} partitions on cluster {flow.source.alias}, and {remote_topic} has "
                f"{there.get(remote_topic, 0)}: the mirror adds them at its next refresh "
                "(refresh.topics.interval.seconds), unless the status page names a reason"
            )
    return out


def sync_groups(flow: FlowSettings, topics: Collection[str], progress: Callable[[], Iterable[PartitionStatus]]) -> str:
    """Commit the offsets that groups have on the source on the target, where the replicas have the records before them.

    Those that they do not have yet are awaited for ten seconds. Syncs that take longer than ``MAX_SYNC_S`` go on in a
    thread of their own.

    Args:
        flow: Settings of the flow.
        topics: Source topics whose offsets are awaited.
        progress: Returns the progress of the flow's partitions.

    Returns:
        Why the offsets may not be complete. Empty: they were synced.

    Raises:
        ConnectionError, TimeoutError, KafkaApiError: A cluster does not respond, or rejects a request.
    """
    if flow.groups is None:
        return ""
    with admin_client(flow, "source", timeout_ms=_TIMEOUT_MS) as source:
        check_reachable(source, flow.source.alias)
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="group-offsets")
    syncing = thread.submit(_sync_groups, flow, topics, progress)
    thread.shutdown(wait=False)
    if not wait([syncing], MAX_SYNC_S).done:
        return f"offsets of groups were not all synced again within {MAX_SYNC_S:g} s"
    syncing.result()
    return ""


def _sync_groups(
    flow: FlowSettings, topics: Collection[str], progress: Callable[[], Iterable[PartitionStatus]]
) -> None:
    status, deadline = GroupStatus(), time.monotonic() + _GROUPS_S
    with group_control(flow, status, progress) as control:
        while True:
            with contextlib.suppress(TopicGoneError):  # a broker that does not know the new topic of checkpoints yet
                control.sync()
                offsets = status.snapshot()[flow.name].offsets
                if not any(each.reason for each in offsets if each.topic in topics):
                    return
            if time.monotonic() >= deadline:
                return
            time.sleep(_GROUPS_EVERY_S)


def _partition_counts(admin: AdminClient, topics: Sequence[str]) -> dict[str, int]:
    described = outcomes(admin.describe_topics(topics))
    return {name: len(topic.partitions) for name, topic in described.items() if not isinstance(topic, KafkaApiError)}


def handed_over_topics(flow: FlowSettings, topics: Sequence[str]) -> list[str]:
    """Return the source topics whose remote topics brokers lead: all or some of their partitions.

    Raises:
        ConnectionError, TimeoutError, KafkaApiError: The target does not respond, or does not describe a topic.
    """
    return _topics_of(flow, topics, led_by_brokers)


def topics_not_mirrored(flow: FlowSettings, topics: Sequence[str]) -> list[str]:
    """Return the source topics whose remote topics klamm does not mirror: brokers lead them, or it takes them back.

    Raises:
        ConnectionError, TimeoutError, KafkaApiError: The target does not respond, or does not describe a topic.
    """
    return _topics_of(flow, topics, not_mirrored)


def _topics_of(
    flow: FlowSettings, topics: Sequence[str], rule: Callable[[AdminClient, Collection[str], int], Collection[str]]
) -> list[str]:
    node_id = -1 if flow.replica is None else flow.replica.node_id
    with admin_client(flow, "target", timeout_ms=_TIMEOUT_MS) as target:
        names = rule(target, list(map(flow.remote_topic, topics)), node_id)
    return [topic for topic in topics if flow.remote_topic(topic) in names]


def written_topics(flow: FlowSettings, topics: Sequence[str], stored: StoredSourceOffsets) -> dict[str, str]:
    """Return the promoted topics that klamm cannot take back, each with the reason.

    Args:
        flow: Settings of the flow.
        topics: Source topics whose remote topics exist.
        stored: Stored source offsets and promotions.

    Raises:
        ConnectionError, TimeoutError, KafkaApiError: The target does not respond, or does not describe a topic.
    """
    node_id = -1 if flow.replica is None else flow.replica.node_id
    names = {flow.remote_topic(topic): topic for topic in topics}
    with admin_client(flow, "target", timeout_ms=_TIMEOUT_MS) as target:
        described = target.describe_topics(sorted(names)).all().result()
        partitions = {
            TopicPartition(name, each.partition): OffsetSpec.LATEST
            for name, topic in described.items()
            for each in topic.partitions
            if is_led_by_broker(each, node_id)
        }
        ends = target.list_offsets(partitions).all().result()
    out = {}
    for remote in partitions:
        topic = names[remote.topic]
        promotion, end = stored.promotions.get(topic), ends[remote].offset
        promoted_end = resume_offset(stored.offsets.get((topic, remote.partition), -1))
        if promotion is None or promotion.topic_id != described[remote.topic].topic_id:
            out[topic] = f"klamm did not hand {remote.topic} over"
        elif end != promoted_end:
            out.setdefault(
                topic,
                f"{remote.name} ends at offset {end}, not at {promoted_end}, where klamm handed it "
                "over: records or markers of aborted transactions were written to it",
            )
    return out


def topics_at_risk(flow: FlowSettings, topics: Sequence[str]) -> list[str]:
    """Return the topics that klamm should not take back: if it died, a broker with fewer records could be elected.

    Brokers that leave the ISR can be elected where it has fewer members than ``min.insync.replicas`` then (KIP-966).

    Args:
        flow: Settings of the flow.
        topics: Source topics whose remote topics brokers lead.

    Raises:
        ConnectionError, TimeoutError, KafkaApiError: The target does not respond.
    """
    with connected(flow) as cluster:
        if not finalized_features(target_nodes(cluster).connection(cluster)).get(_ELIGIBLE_LEADERS):
            return []
    with admin_client(flow, "target", timeout_ms=_TIMEOUT_MS) as target:
        configs = topic_configs(target, map(flow.remote_topic, topics))
    return [topic for topic in topics if _min_isr(configs[flow.remote_topic(topic)]) > 1]


def _min_isr(configs: Mapping[str, ConfigEntry] | KafkaApiError) -> int:
    """Return ``min.insync.replicas``. 1 if the principal may not read it: then the task finds it out."""
    entry = None if isinstance(configs, KafkaApiError) else configs.get(MIN_ISR)
    return int(entry.value) if entry is not None and entry.value else 1


def _of_target(
    name: str, topic: TopicDescription | KafkaApiError, live: Collection[int], removed: Collection[tuple[str, int, int]]
) -> list[str]:
    """Return the partitions whose replicas are not live. Replicas that a reassignment removes do not count."""
    if isinstance(topic, KafkaApiError):
        return [f"{name}: {error_text(topic)}"]
    return [
        f"{name}-{each.partition}: replicas {', '.join(map(str, absent))} are not live"
        for each in topic.partitions
        if (
            absent := [
                node_id
                for node_id in sorted(each.replicas)
                if node_id not in live and (name, each.partition, node_id) not in removed
            ]
        )
    ]


def _open_transactions(
    flow: FlowSettings, rows: Sequence[PartitionStatus]
) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """Return the number of open transactions of each topic, and why it is not known.

    Topics that the principal may not describe are left out: their number is not known.
    """
    partitions = [TopicPartition(row.topic, row.partition) for row in rows]
    try:
        with admin_client(flow, "source", timeout_ms=_TIMEOUT_MS) as source:
            check_reachable(source, flow.source.alias)
            described = outcomes(source.describe_producers(partitions))
    except CLUSTER_ERRORS as error:
        return {}, (f"{error_text(error)}; --accept-loss promotes without cluster {flow.source.alias}",)
    counts = dict.fromkeys((row.topic for row in rows), 0)
    for partition, producers in described.items():
        if isinstance(producers, KafkaApiError):
            counts.pop(partition.topic, None)
        elif partition.topic in counts:
            counts[partition.topic] += sum(each.transaction_start_offset is not None for each in producers)
    return counts, ()


def _collisions(flow: FlowSettings, described: Mapping[str, TopicDescription | KafkaApiError]) -> dict[str, str]:
    """Return ``TopicPromotion.warning`` of remote topics that brokers do not lead yet."""
    node_id = -1 if flow.replica is None else flow.replica.node_id
    try:
        with connected(flow) as cluster:
            live = target_nodes(cluster).brokers
            brokers = TargetBrokers(cluster, node_id, lambda: live)
            places = {
                TopicPartition(name, each.partition): replica
                for name, topic in described.items()
                if not isinstance(topic, KafkaApiError)
                for each in topic.partitions
                if not is_led_by_broker(each, node_id)
                for replica in each.replicas
                if replica in live
            }
            producer_ids = defaultdict[str, set[int]](set)
            for partition, producers in brokers.producers(places).items():
                producer_ids[partition.topic] |= {each.producer_id for each in producers}
            names = brokers.transactional_ids(set[int]().union(*producer_ids.values()))
    except CLUSTER_ERRORS as error:
        return dict.fromkeys(described, f"{UNKNOWN_COLLISIONS}: {error_text(error)}")
    return {topic: describe_collisions(own, names) for topic, own in producer_ids.items()}
