"""Kafka's internal topics ``__consumer_offsets`` and ``__transaction_state``: visible to clients, but always empty.

Groups and transactions are stored in the metadata (ADR 4, ADR 11), and no record is ever written to these topics. As in
Kafka, they are created when the first client looks for a coordinator, so that tools find the topics they expect.
"""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.broker.topics.placement import place
from klamm.configs.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from klamm.protocol.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.broker.context import Services
    from klamm.broker.topics.catalog import Topic

logger: Final = logging.getLogger(__name__)

# Names by Kafka's CompressionType id, the value of offsets.topic.compression.codec. Id 0 ("none") is the value
# "uncompressed" of compression.type.
_CODECS: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


class _Shape(NamedTuple):
    """Names of the broker configs for the size of an internal topic."""

    partitions: str
    replicas: str
    segment_bytes: str


_SHAPES: Final[Mapping[str, _Shape]] = MappingProxyType(
    {
        CONSUMER_OFFSETS: _Shape(
            "offsets.topic.num.partitions", "offsets.topic.replication.factor", "offsets.topic.segment.bytes"
        ),
        TRANSACTION_STATE: _Shape(
            "transaction.state.log.num.partitions",
            "transaction.state.log.replication.factor",
            "transaction.state.log.segment.bytes",
        ),
    }
)
"""The internal topics that klamm creates."""


async def ensure_internal_topic(name: str, services: Services) -> Topic | None:
    """Create an internal topic if it does not exist, with its logs: the next request may ask for their offsets.

    Returns:
        The topic; None for a name that klamm does not create, or if the topic cannot be stored.
    """
    existing = services.topics.get(name)
    if existing is not None or name not in _SHAPES:
        return existing
    configs, shape, node_ids = services.configs, _SHAPES[name], services.cluster.node_ids
    replicas = min(len(node_ids), configs.int_value(shape.replicas))
    partitions = place(configs.int_value(shape.partitions), replicas, node_ids=node_ids, first=0)
    try:
        return await services.topics.create(name, partitions, configs=_configs(name, services), is_internal=True)
    except StorageError as error:
        logger.error("Topic %s could not be stored and will be created again later: %s", name, error)  # noqa: TRY400 -- the message is complete
        return None


def _configs(name: str, services: Services) -> Mapping[str, str]:
    value = services.configs.broker_value
    segment_bytes = str(value(_SHAPES[name].segment_bytes))
    if name == TRANSACTION_STATE:
        return {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(value("transaction.state.log.min.isr")),
            "segment.bytes": segment_bytes,
            "unclean.leader.election.enable": "false",
        }
    codec = services.configs.int_value("offsets.topic.compression.codec")
    return {
        "cleanup.policy": "compact",
        "compression.type": _CODECS[codec] if 0 < codec < len(_CODECS) else "producer",
        "segment.bytes": segment_bytes,
    }
