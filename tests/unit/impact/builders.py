"""Facts for tests of predictions, with defaults of one topic of one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.impact.changes import ConfigAltered
from klamm.impact.facts import BatchFact, ClusterFacts, ConfigValueFact, ObservedTopic, PartitionFacts
from klamm.protocol.types import ConfigSource, ResourceType

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


def own(name: str, value: str) -> tuple[ConfigValueFact, ...]:
    """Return the value of a config that the topic sets itself."""
    return (ConfigValueFact(name=name, value=value, source=ConfigSource.DYNAMIC_TOPIC_CONFIG),)


def of_broker(name: str, value: str) -> ConfigValueFact:
    """Return a value that one broker sets dynamically for itself."""
    return ConfigValueFact(name=name, value=value, source=ConfigSource.DYNAMIC_BROKER_CONFIG)


def of_default(name: str, value: str) -> ConfigValueFact:
    """Return a value of the dynamic cluster default."""
    return ConfigValueFact(name=name, value=value, source=ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def partition(**fields: object) -> PartitionFacts:
    """Return partition 0 with 1,000 records of 100 bytes, led by broker 1 with followers 2 and 3 in sync."""
    present: dict[str, object] = {
        "partition": 0,
        "leader": 1,
        "replicas": (1, 2, 3),
        "isr": (1, 2, 3),
        "start_offset": 0,
        "end_offset": 1_000,
        "size": 100_000,
        "oldest_ms": NOW_MS - 10 * DAY_MS,
    }
    return PartitionFacts(**{**present, **fields})  # type: ignore[arg-type]  # fields of the dataclass, by name


def topic(*partitions: PartitionFacts, name: str = "orders", **configs: str) -> ObservedTopic:
    """Return a topic; configs are its own values, with underscores for dots."""
    values = {key.replace("_", "."): value for key, value in configs.items()}
    defaults = {"cleanup.policy": "delete", "segment.bytes": "10000"}
    return ObservedTopic(
        name=name,
        partitions=partitions or (partition(),),
        configs={key: own(key, value) for key, value in {**defaults, **values}.items()},
    )


def cluster(*topics: ObservedTopic, **fields: object) -> ClusterFacts:
    """Return the facts of a cluster with these topics."""
    facts = {each.name: each for each in topics}
    present: dict[str, object] = {"now_ms": NOW_MS, "topics": facts, "topic_names": frozenset(facts)}
    return ClusterFacts(**{**present, **fields})  # type: ignore[arg-type]  # fields of the dataclass, by name


def batch(*keys: int | None, size: int = 200, codec: str = "none", age_ms: int = 0, spread_ms: int = 0) -> BatchFact:
    """Return a batch, up to the end of the partition, whose newest record has an age."""
    return BatchFact(
        size=size,
        codec=codec,
        first_timestamp_ms=NOW_MS - age_ms - spread_ms,
        max_timestamp_ms=NOW_MS - age_ms,
        next_offset=1_000,
        keys=keys,
    )


def sampled(batches: Sequence[BatchFact], **fields: object) -> PartitionFacts:
    """Return a partition whose newest batches were read."""
    return partition(newest_batches=tuple(batches), **fields)


def altered(name: str, value: str | None, topic_name: str = "orders") -> ConfigAltered:
    """Return the change of a topic's own config."""
    return ConfigAltered(resource_type=ResourceType.TOPIC, resource_name=topic_name, name=name, value=value)


def default_altered(name: str, value: str | None, broker: str = "") -> ConfigAltered:
    """Return the change of the cluster default, or of one broker."""
    return ConfigAltered(resource_type=ResourceType.BROKER, resource_name=broker, name=name, value=value)
