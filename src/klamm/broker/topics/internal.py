"""Kafka's internal topics, ``__consumer_offsets`` and ``__transaction_state``: listed for clients and always empty.

Groups and transactions live in the metadata (ADR 4, ADR 11), and no record is ever written to these topics. They are
created as Kafka creates them, when the first client looks for a coordinator, so that tools find what they expect.
"""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.broker.topics.placement import place
from klamm.configs.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from klamm.protocol.errors import StorageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from klamm.broker.services import Services
    from klamm.broker.topics.catalog import Topic

logger: Final = logging.getLogger(__name__)

# Kafka's CompressionType ids; offsets.topic.compression.codec is one of them, and "none" is called uncompressed here.
_CODECS: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
_PREFIXES: Final[Mapping[str, str]] = MappingProxyType(
    {CONSUMER_OFFSETS: "offsets.topic", TRANSACTION_STATE: "transaction.state.log"}
)
"""The beginning of the broker configs about each internal topic that klamm creates."""


def ensure_internal_topic(name: str, services: Services) -> Topic | None:
    """Create an internal topic unless it exists; do not wait until it is on disk, since nothing is written to it.

    Returns:
        The topic; None for a name that klamm does not create, or when the metadata can no longer be written.
    """
    found = services.topics.get(name)
    if found is not None or name not in _PREFIXES:
        return found
    value, prefix, node_ids = services.configs.broker_value, _PREFIXES[name], services.cluster.node_ids
    replicas = min(len(node_ids), int(str(value(f"{prefix}.replication.factor"))))
    count = int(str(value(f"{prefix}.num.partitions")))
    partitions = place(count, replicas, node_ids=node_ids, first=0)
    try:
        topic, durable = services.topics.begin_create(
            name, partitions, configs=_configs(name, services), is_internal=True
        )
    except StorageError as error:
        logger.error("Topic %s cannot be created: %s", name, error)  # noqa: TRY400 -- the message has all there is
        return None
    durable.add_done_callback(_report)
    return topic


def _configs(name: str, services: Services) -> Mapping[str, str]:
    value = services.configs.broker_value
    segment_bytes = str(value(f"{_PREFIXES[name]}.segment.bytes"))
    if name == TRANSACTION_STATE:
        return {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(value("transaction.state.log.min.isr")),
            "segment.bytes": segment_bytes,
            "unclean.leader.election.enable": "false",
        }
    codec = int(str(value("offsets.topic.compression.codec")))
    return {
        "cleanup.policy": "compact",
        "compression.type": _CODECS[codec] if 0 < codec < len(_CODECS) else "producer",
        "segment.bytes": segment_bytes,
    }


def _report(durable: asyncio.Future[None]) -> None:
    if not durable.cancelled() and (error := durable.exception()) is not None:
        logger.error("An internal topic could not be stored and is created again later: %s", error)
