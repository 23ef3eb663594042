"""Positions of a librdkafka consumer, kept outside of it so that its replacement can continue there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import confluent_kafka

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

logger = logging.getLogger(__name__)

Partition: TypeAlias = "tuple[str, int]"
_LOOK_UP_TIMEOUT_S: Final = 10.0
_RESETS_TO_THE_END: Final = frozenset({"largest", "latest", "end"})


class DeliveryProgress:
    """Positions and paused partitions of a consumer.

    librdkafka knows a position only for partitions from which a record was read. Other starting points (a seek, an
    offset in ``assign``, the end of a partition without a committed offset) are recorded here until the first record
    arrives.

    Args:
        properties: librdkafka's properties, of which ``auto.offset.reset`` is used.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.paused: set[Partition] = set()
        self._starts: dict[Partition, int] = {}
        self._begins_at_the_end = properties.get("auto.offset.reset", "largest") in _RESETS_TO_THE_END

    def begin(self, partitions: Iterable[Any]) -> None:
        """Record the offsets from which partitions are read. Partitions without an offset are skipped."""
        self._starts.update({_name(one): one.offset for one in partitions if one.offset >= 0})

    def read(self, messages: Iterable[Any]) -> None:
        """Record that messages were returned. From here on librdkafka knows the position."""
        if self._starts:
            for message in messages:
                self._starts.pop((message.topic(), message.partition()), None)

    def forget(self, partitions: Iterable[Any]) -> None:
        """Remove revoked partitions."""
        for one in partitions:
            self.paused.discard(_name(one))
            self._starts.pop(_name(one), None)

    def positions(self, consumer: Any) -> dict[Partition, int]:
        """Return the next offset of each assigned partition; negative if unknown."""
        known = {_name(one): one.offset for one in consumer.position(consumer.assignment())}
        return known | {partition: offset for partition, offset in self._starts.items() if partition in known}

    def fix_the_end(self, consumer: Any, partitions: Iterable[Any]) -> bool:
        """Give partitions that would start at their end the offset that the end has now.

        Without this, a replacement before the first record would start at a later end. Return whether there were any;
        there are none if the cluster does not answer in time.
        """
        unknown = [one for one in partitions if one.offset < 0] if self._begins_at_the_end else []
        if not unknown:
            return False
        found = False
        try:
            committed = consumer.committed(unknown, timeout=_LOOK_UP_TIMEOUT_S)
            for one, commit in zip(unknown, committed, strict=True):
                if commit.offset < 0:
                    _, one.offset = consumer.get_watermark_offsets(one, timeout=_LOOK_UP_TIMEOUT_S)
                    found = True
        except confluent_kafka.KafkaException as error:
            logger.info("End offsets of new partitions are unknown; reading starts at their end then: %s", error)
            return False
        self.begin(unknown)
        return found


def _name(partition: Any) -> Partition:
    return partition.topic, partition.partition
