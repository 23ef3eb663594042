"""Settings of the copiers of a flow, derived from the settings of the flow."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.fetch import FetchLimits
from klamm.kraft.image import BrokerEndpoint
from klamm.lazy_dataclass import dataclass
from klamm.mirror.copy.equal_offsets import ReplaySettings, ReplicaSettings
from klamm.mirror.copy.offset_sync_writer import SyncSettings
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.transactions import ShardSettings
from klamm.mirror.settings.clients import number
from klamm.mirror.settings.definitions import IsolationLevel, OnSourceLoss, SyncsLocation

if TYPE_CHECKING:
    from klamm.mirror.settings.clients import ClientProperties
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.topics.control import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySettings:
    """Settings of the copiers of one flow. Serialized to Spark's tasks."""

    flow: str
    """Name of the flow, ``A->B``."""
    source_alias: str
    connector: str
    """Name of MirrorMaker's source connector in the keys of source offsets."""
    source: ConnectionSettings
    target: ConnectionSettings
    source_offsets_topic: str
    source_offsets_interval_s: float
    read_committed: bool
    fetch_limits: FetchLimits
    buffer_bytes: int
    """Bytes that wait to be sent, over all partitions of the copier, from which on nothing is fetched."""
    auto_offset_reset: str = "earliest"
    """Start of a partition that was never mirrored: ``earliest``, ``latest``, ``by_duration`` or ``none``."""
    reset_duration_ms: int = 0
    """Age of the first record that counts with ``by_duration``."""
    join_up_to: int = 0
    """Largest size in bytes of a joined batch (``producer.batch.size``). 0: no batches are joined."""
    syncs: SyncSettings | None = None
    """Settings of the offset syncs. None: no offset syncs are written."""
    transactions: ShardSettings | None = None
    """Settings of the shard transactions (exactly once). None: at least once."""
    replay: ReplaySettings | None = None
    """Settings of a flow that keeps offsets. None: the target assigns offsets, and offset syncs translate them."""
    replica: ReplicaSettings | None = None
    """Settings of a flow that keeps offsets as a broker of the target. None: it produces."""
    continue_after_loss: bool = False
    """Whether to continue where source records are lost permanently (``klamm.on.source.loss``)."""
    shared_topics: tuple[str, ...] = ()
    """Source topics that other flows select, too, so that they may have written records to the remote topics."""


_MIB: Final = 1024 * 1024
_BUFFER_BYTES: Final = 64 * _MIB
_JOIN_UP_TO: Final = 512 * 1024
_MAX_WAIT_MS: Final = 250
"""Default of ``fetch.max.wait.ms``."""


def copy_settings(flow: FlowSettings) -> CopySettings:
    """Return the settings for the copiers of a flow.

    Raises:
        SettingsError: A client property is not supported by the data connections.
    """
    consumer, producer = flow.clients["source.consumer"], flow.clients["target.producer"]
    replays = flow.preserves_offsets and flow.replica is None
    source = ConnectionSettings.of(flow.source.bootstrap_servers, consumer, f"klamm-mirror-{flow.name}")
    return CopySettings(
        flow=flow.name,
        source_alias=flow.source_alias,
        connector=flow.connector,
        source=source,
        target=ConnectionSettings.of(flow.target.bootstrap_servers, producer, f"klamm-mirror-{flow.name}"),
        source_offsets_topic=flow.source_offsets_topic,
        source_offsets_interval_s=flow.source_offsets_interval.total_seconds(),
        read_committed=flow.replica is None and flow.isolation_level is IsolationLevel.READ_COMMITTED,
        auto_offset_reset=flow.auto_offset_reset,
        reset_duration_ms=flow.reset_duration // timedelta(milliseconds=1),
        fetch_limits=_fetch_limits(consumer, int(source.request_timeout_s * 1000)),
        buffer_bytes=_BUFFER_BYTES,
        join_up_to=number(producer, "producer", "batch.size", _JOIN_UP_TO),
        syncs=_sync_settings(flow),
        transactions=_transaction_settings(flow),
        replay=ReplaySettings(id_prefix=flow.transactional_id_prefix) if replays else None,
        replica=replica_settings(flow),
        continue_after_loss=flow.on_source_loss is OnSourceLoss.CONTINUE,
    )


def _transaction_settings(flow: FlowSettings) -> ShardSettings | None:
    if flow.exactly_once is None:
        return None
    return ShardSettings(
        id_prefix=flow.exactly_once.id_prefix,
        shards=flow.exactly_once.shards,
        shard=0,
        interval_s=flow.exactly_once.interval.total_seconds(),
        shortest_s=flow.exactly_once.shortest.total_seconds(),
        timeout_ms=int(flow.exactly_once.timeout.total_seconds() * 1000),
    )


def replica_settings(flow: FlowSettings) -> ReplicaSettings | None:
    """Return the settings of a flow that is a broker of the target, None for other flows."""
    if (broker := flow.replica) is None:
        return None
    client = flow.clients["target.controller"]
    return ReplicaSettings(
        node_id=broker.node_id,
        controllers=ConnectionSettings.of(flow.target.bootstrap_controllers, client, f"klamm-mirror-{flow.name}"),
        listeners=tuple(
            BrokerEndpoint(
                name=name, host=address.host, port=address.port, security_protocol=broker.protocols[name].value
            )
            for name, address in broker.advertised.items()
        ),
        bind=tuple(broker.listen.values()),
        configs=broker.configs,
    )


def _sync_settings(flow: FlowSettings) -> SyncSettings | None:
    if flow.syncs_topic is None:
        return None
    side = flow.syncs_location.value
    cluster = flow.source if flow.syncs_location is SyncsLocation.SOURCE else flow.target
    client = flow.clients[f"{side}.producer"]
    return SyncSettings(
        topic=flow.syncs_topic,
        connection=ConnectionSettings.of(cluster.bootstrap_servers, client, f"klamm-mirror-{flow.name}"),
        lag_max=flow.offset_lag_max,
    )


def _fetch_limits(consumer: ClientProperties, request_timeout_ms: int) -> FetchLimits:
    return FetchLimits(
        max_bytes=number(consumer, "consumer", "fetch.max.bytes", 8 * _MIB),
        partition_max_bytes=number(consumer, "consumer", "max.partition.fetch.bytes", 2 * _MIB),
        min_bytes=number(consumer, "consumer", "fetch.min.bytes", 1),
        max_wait_ms=min(number(consumer, "consumer", "fetch.max.wait.ms", _MAX_WAIT_MS), request_timeout_ms),
        rack_id=consumer.get("client.rack", ""),
    )


def partitions_of(assignment: Assignment) -> tuple[PartitionId, ...]:
    """Return the source partitions of an assignment."""
    return tuple(
        PartitionId(topic, partition, remote_topic)
        for topic, remote_topic, count in assignment
        for partition in range(count)
    )
