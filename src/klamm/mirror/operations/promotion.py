"""Plan of a promotion: what would be handed over to the brokers of the target, and what stands in the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from klamm.admin import KafkaApiError, TopicPartition
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.mirror.cluster_admin import admin_client, check_reachable, outcomes
from klamm.mirror.progress.partition_progress import CopyState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.admin import TopicDescription
    from klamm.mirror.progress.flow_progress import PartitionStatus
    from klamm.mirror.settings.flow import FlowSettings

_TIMEOUT_MS: Final = 10_000


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
    transactions, away = ({}, ()) if accepts_loss else _open_transactions(flow, rows)
    return [
        replace(
            each,
            open_transactions=transactions.get(each.topic),
            obstacles=(*each.obstacles, *_of_target(each.remote_topic, described[each.remote_topic], live), *away),
        )
        for each in planned
    ]


def led_by_brokers(flow: FlowSettings, topics: Sequence[str]) -> str:
    """Return the first remote topic of which brokers lead a partition. Empty: klamm leads all that exist.

    Raises:
        ConnectionError, TimeoutError, KafkaApiError: The target does not respond, or rejects a request.
    """
    node_id = -1 if flow.replica is None else flow.replica.node_id
    with admin_client(flow, "target", timeout_ms=_TIMEOUT_MS) as target:
        described = outcomes(target.describe_topics(list(map(flow.remote_topic, topics))))
    for name, topic in described.items():
        if not isinstance(topic, KafkaApiError) and any(node_id not in each.replicas for each in topic.partitions):
            return name
    return ""


def _of_target(name: str, topic: TopicDescription | KafkaApiError, live: Collection[int]) -> list[str]:
    if isinstance(topic, KafkaApiError):
        return [f"{name}: {error_text(topic)}"]
    return [
        f"{name}-{each.partition}: replicas {', '.join(map(str, absent))} are not live"
        for each in topic.partitions
        if (absent := sorted(set(each.replicas) - set(live)))
    ]


def _open_transactions(
    flow: FlowSettings, rows: Sequence[PartitionStatus]
) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """Return the number of open transactions of each topic, and why it is not known."""
    partitions = [TopicPartition(row.topic, row.partition) for row in rows]
    try:
        with admin_client(flow, "source", timeout_ms=_TIMEOUT_MS) as source:
            check_reachable(source, flow.source.alias)
            described = outcomes(source.describe_producers(partitions))
    except CLUSTER_ERRORS as error:
        return {}, (f"{error_text(error)}; --accept-loss promotes without cluster {flow.source.alias}",)
    counts = dict.fromkeys((row.topic for row in rows), 0)
    for partition, producers in described.items():
        if not isinstance(producers, KafkaApiError):
            counts[partition.topic] += sum(each.transaction_start_offset is not None for each in producers)
    return counts, ()
