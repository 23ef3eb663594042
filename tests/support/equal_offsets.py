"""Flows that keep offsets by replay: their topics, one copier without Spark, and what consumers read by offset."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.replay.identity import ReplaySettings
from tests.support.copiers import copy_all, copy_settings
from tests.support.mirror import create_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.mirror.copy.settings import CopySettings
    from klamm.mirror.progress.partition_progress import PartitionProgress

ISOLATION_LEVELS = ("read_committed", "read_uncommitted")


class Content(NamedTuple):
    """A record without its offset."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def contents(address: str, topic: str, isolation_level: str) -> dict[int, Content]:
    """Read partition 0 to its end and return the records by offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
            "fetch.wait.max.ms": 20,
        }
    )
    found: dict[int, Content] = {}
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(30)
            assert message is not None, f"{topic} could not be read to its end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            offset = message.offset()
            assert offset is not None
            headers = tuple((name, value) for name, value in message.headers() or [])
            found[offset] = Content(message.timestamp()[1], message.key(), message.value(), headers)
    finally:
        consumer.close()


class EqualFlow:
    """A topic with one partition, its remote topic, and copiers of it.

    Args:
        source: Address of the source cluster.
        target: Address of the target cluster.
        source_configs: Configs of the source topic, besides unlimited retention.
        target_configs: Same for the remote topic.
    """

    def __init__(
        self,
        source: str,
        target: str,
        *,
        source_configs: Mapping[str, str] | None = None,
        target_configs: Mapping[str, str] | None = None,
    ) -> None:
        self.source, self.target = source, target
        self.topic = f"equal-{uuid4().hex[:8]}"
        self.alias = f"A{self.topic}"
        self.remote_topic = f"{self.alias}.{self.topic}"
        self.partition = PartitionId(self.topic, 0, self.remote_topic)
        create_topic(source, self.topic, 1, {"retention.ms": "-1"} | dict(source_configs or {}))
        create_topic(target, self.remote_topic, 1, {"retention.ms": "-1"} | dict(target_configs or {}))
        create_topic(target, f"mm2-offsets.{self.alias}.internal", 1, {"cleanup.policy": "compact"})

    def settings(self, *, target: str = "", barrier_s: float = 0.2) -> CopySettings:
        """Return the settings of a copier. The target's address may be that of a proxy."""
        settings = copy_settings(self.source, target or self.target, alias=self.alias)
        return replace(settings, replay=ReplaySettings(id_prefix=self.alias, barrier_s=barrier_s))

    def copy(self, *, timeout_s: float = 60.0) -> PartitionProgress:
        """Copy until the partition is complete or stopped, and return its progress."""
        (row,) = copy_all(self.settings(), self.partition, timeout_s=timeout_s)
        return row

    def assert_equal(self) -> dict[int, Content]:
        """Compare what consumers read on both sides, by offset, and return it."""
        expected = contents(self.source, self.topic, "read_committed")
        for isolation_level in ISOLATION_LEVELS:
            assert contents(self.target, self.remote_topic, isolation_level) == expected, isolation_level
        return expected
