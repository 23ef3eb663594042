"""A mirror that keeps offsets by replay under random failures, between two clusters of three nodes.

50 rounds with one or two disturbances at the same time, as in ``test_mirror_replica_chaos.py``, which names the
variables that change that. The checker shares nothing with the mirror: librdkafka writes and reads the records.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from klamm.admin import AdminClient, OffsetSpec, TopicPartition
from klamm.protocol.errors import KafkaApiError
from tests.spark.test_mirror_replica_chaos import (
    PARTITIONS,
    PLAIN,
    TRANSACTIONAL,
    Rig,
    Transactions,
    assert_clients_read_the_same,
    create,
)
from tests.support.equal_offsets import contents
from tests.support.kafka import KafkaCluster, started
from tests.support.mirror_rig import Writer
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)


class ReplayRig(Rig):
    """Clusters whose remote topics are ordinary topics with the offsets of the source."""

    rare = ("partitions", "target", "source", "leaders moved")

    def way_of_offsets(self) -> str:
        return "klamm.offsets.by = replay"

    def target_sizes(self, topic: str, number: int) -> dict[str, int]:
        """Return the log end of a remote partition. 0: it does not exist yet."""
        remote = f"A.{topic}", number
        return {"the target": _log_ends(self.target, [remote]).get(remote, 0)}

    def source_sizes(self) -> dict[tuple[str, int], int]:
        """Return the log ends of all partitions."""
        ends: dict[tuple[str, int], int] = {}

        def are_all_led() -> bool:
            ends.update(_log_ends(self.source, self.partitions))
            return ends.keys() >= {*self.partitions}

        wait_until(are_all_led, timeout_s=120, what="leaders of the source")
        return ends

    def check_replicas(self, *, is_complete: bool = False) -> None:
        """Check that no partition has stopped. ``assert_clients_read_the_same`` compares the records at the end."""
        lines = [line for line in self.texts().splitlines() if " stopped: " in line]
        assert not [line for line in lines if PLAIN in line or TRANSACTIONAL in line]

    def level_of_source(self, level: str) -> str:
        """Return ``read_committed``: the target has gaps in place of aborted records."""
        _ = level
        return "read_committed"

    def wait_for_copy(self, topic: str) -> None:
        expected = contents(self.source.bootstrap_servers, topic, "read_committed")
        wait_until(lambda: self.copies(topic) == expected, timeout_s=120, what=f"the copy of {topic}", interval_s=0.5)

    def copies(self, topic: str) -> object:
        remote = f"A.{topic}", 0
        if remote not in _log_ends(self.target, [remote]):
            return None
        return contents(self.target.bootstrap_servers, remote[0], "read_committed")


def _log_ends(cluster: KafkaCluster, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the log ends of the partitions that exist and have a leader."""
    wanted = {TopicPartition(*each): int(OffsetSpec.LATEST) for each in partitions}
    ends = {}
    with AdminClient(cluster.bootstrap_servers) as admin:
        for partition, future in admin.list_offsets(wanted).values().items():
            try:
                ends[partition.topic, partition.partition] = future.result(300).offset
            except KafkaApiError as error:
                logger.debug("%s: %s", partition, error)
    return ends


@pytest.fixture
def clusters(java: None) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    source, target = KafkaCluster(3), KafkaCluster(3)
    with started(source, target):
        yield source, target


@pytest.mark.soak
def test_records_keep_their_offsets_after_random_failures(
    clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    """``test_mirror_equal_offsets.py`` and ``interop/test_mirror_equal_offsets.py`` are the shorter forms."""
    # given
    source, target = clusters
    address = source.bootstrap_servers
    for topic in (PLAIN, TRANSACTIONAL):
        create(address, topic, PARTITIONS)
    with Writer(address, {PLAIN: PARTITIONS}, per_second=200) as writer, Transactions(address) as transactions:
        rig = ReplayRig(source, target, writer, tmp_path)
        try:
            rig.wait_for_replicas()
            # when
            for ways in rig.plan():
                rig.disturb(ways)
            writer.finish()
            transactions.finish()
            # then
            rig.wait_for_ends()
            assert_clients_read_the_same(rig, writer, transactions)
        except BaseException:
            for cluster in clusters:
                logger.warning("The logs of its nodes are in %s", cluster.keep_logs())
            raise
        finally:
            rig.close()
            (tmp_path / "all.log").write_text(rig.texts())
    assert "Traceback" not in rig.texts()
