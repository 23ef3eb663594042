"""State of idempotent producers after a kill, depending on the timestamps of their records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data import cluster as clusters
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.data.records import write_batches
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.records import Record, encode_batch
from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker
from tests.support.long_tests import long_only
from tests.support.mirror import create_topic
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from collections.abc import Iterator

YEAR_2013: Final = 1_356_998_400_000
COUNT: Final = 3


class Writer:
    """An idempotent producer that sends one batch to each of two topics, with old and with new timestamps."""

    def __init__(self, address: str) -> None:
        settings = ConnectionSettings(bootstrap_servers=(address,), client_id="writer")
        self.old, self.new = unique("killed-old-"), unique("killed-new-")
        self._cluster = Cluster(settings, BufferPool(max_free_bytes=0))
        wait_until(self._has_producer_id, timeout_s=30, what="a producer id")
        producer_id, producer_epoch = self._producer
        self._batches = {
            topic: encode_batch(
                [Record(None, b"v", timestamp=timestamp, offset=at) for at in range(COUNT)],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=0,
            )
            for topic, timestamp in ((self.old, YEAR_2013), (self.new, int(time.time() * 1000)))
        }
        for topic in self._batches:
            create_topic(address, topic, 1, {"retention.ms": "-1"})

    def _has_producer_id(self) -> bool:
        try:
            self._producer = self._cluster.init_producer_id()
        except ConnectionLostError:
            return False  # a broker that has just started loads its state
        return True

    def send(self) -> None:
        """Send both batches, again if need be."""
        for topic in self._batches:
            wait_until(lambda topic=topic: self._is_sent(topic), timeout_s=30, what=f"records in {topic}")  # type: ignore[misc]

    def _is_sent(self, topic: str) -> bool:
        try:
            write_batches(self._cluster, topic, {0: self._batches[topic]}, timeout_s=10)
        except ConnectionLostError:
            return False
        return True

    def counts(self) -> dict[str, int]:
        """Return the number of records in each topic."""
        self._cluster.refresh(list(self._batches))
        ends = self._cluster.list_offsets([(topic, 0) for topic in self._batches], clusters.LATEST)
        return {topic: end for (topic, _), end in ends.items()}

    def close(self) -> None:
        self._cluster.close()


@pytest.fixture(params=["klamm", *long_only("kafka")])
def broker(request: pytest.FixtureRequest) -> Iterator[KafkaCluster | KlammBroker]:
    if request.param == "kafka":
        yield request.getfixturevalue("real_kafka")
    else:
        with KlammBroker() as klamm:
            yield klamm


def test_kafka_appends_duplicate_batch_with_old_timestamps_after_a_kill(
    broker: KafkaCluster | KlammBroker,
) -> None:
    """Kafka compares ``producer.id.expiration.ms`` with the timestamps of the records, klamm with the time of writing.

    So a source can hold records twice without a fault of its producer or of the mirror.
    """
    # given
    writer = Writer(broker.bootstrap_servers)
    for _ in range(2):
        writer.send()
    assert writer.counts() == {writer.old: COUNT, writer.new: COUNT}
    # when
    if isinstance(broker, KafkaCluster):
        broker.restart(kill=True)
    else:
        broker.kill()
        broker.start()
    writer.send()
    # then
    repeats = COUNT if isinstance(broker, KafkaCluster) else 0
    assert writer.counts() == {writer.old: COUNT + repeats, writer.new: COUNT}
    writer.close()
