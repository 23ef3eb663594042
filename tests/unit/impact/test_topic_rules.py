"""Predictions for added partitions, deleted topics and deleted records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.impact.changes import PartitionsAdded, RecordsDeleted, TopicDeleted
from klamm.impact.facts import NO_NEED, GroupFacts, Need, ProducerFact
from klamm.impact.findings import ImpactLevel
from klamm.impact.prediction import predict
from klamm.protocol.types import TopicPartition
from tests.unit.impact.builders import NOW_MS, batch, cluster, partition, sampled, topic

if TYPE_CHECKING:
    from klamm.impact.changes import Change
    from klamm.impact.facts import ClusterFacts
    from klamm.impact.findings import Finding

_READER = GroupFacts(name="billing", is_active=True, offsets={TopicPartition("orders", 0): 600})


def _of(change: Change, facts: ClusterFacts) -> dict[str, Finding]:
    return {finding.kind: finding for finding in predict([change], facts).findings}


def test_added_partitions_move_keys_of_default_partitioner() -> None:
    facts = cluster(topic(sampled([batch(0, 2, 4, 6)]), sampled([batch(1, 3, 5, 7)], partition=1)))

    finding = _of(PartitionsAdded(topic="orders", total_count=4), facts)["keys_move"]

    assert finding.level is ImpactLevel.DISRUPTION
    assert finding.figures == {"sampled_keys": 8, "moved_keys_percent": 50.0}


def test_added_partitions_may_move_keys_of_another_partitioner() -> None:
    facts = cluster(topic(sampled([batch(1, 3)]), sampled([batch(2, 4)], partition=1)))

    assert "another partitioner" in _of(PartitionsAdded(topic="orders", total_count=4), facts)["keys_move"].message


def test_added_partitions_of_keyless_topic_only_rebalance_groups() -> None:
    facts = cluster(topic(sampled([batch(None, None)])), groups=(_READER,))

    findings = _of(PartitionsAdded(topic="orders", total_count=4), facts)

    assert list(findings) == ["groups_rebalance"]
    assert findings["groups_rebalance"].names["groups"].first == ("billing",)


def test_added_partitions_of_unused_topic_have_no_impact() -> None:
    facts = cluster(topic(partition(end_offset=0, newest_batches=())))

    assert _of(PartitionsAdded(topic="orders", total_count=4), facts) == {}


def test_added_partitions_stop_streams_application_that_reads_the_topic() -> None:
    internal = "billing-KSTREAM-AGGREGATE-0003-changelog"
    facts = cluster(topic(), groups=(_READER,), topic_names=frozenset({"orders", internal}))

    finding = _of(PartitionsAdded(topic="orders", total_count=4), facts)["streams_partitions"]

    assert (finding.level, finding.names["applications"].first) == (ImpactLevel.DISRUPTION, ("billing",))


def test_added_partitions_of_repartition_topic_name_its_application() -> None:
    facts = cluster(topic(name="billing-by-user-repartition"))

    finding = _of(PartitionsAdded(topic="billing-by-user-repartition", total_count=4), facts)["streams_partitions"]

    assert finding.names["applications"].count == 1


def test_deleted_topic_loses_records_and_names_its_users() -> None:
    producer = ProducerFact(producer_id=3, last_timestamp_ms=NOW_MS - 60_000)
    idle = ProducerFact(producer_id=4, last_timestamp_ms=NOW_MS - 3_600_000)
    mirror = GroupFacts(name="backup", is_active=True, offsets={TopicPartition("orders", 0): 1_000})
    facts = cluster(topic(partition(producers=(producer, idle))), groups=(_READER,), mirrors=(mirror,))

    findings = _of(TopicDeleted(topic="orders"), facts)

    lost, used = findings["records_deleted"], findings["topic_in_use"]
    assert (lost.level, lost.figures["deleted_bytes"], lost.figures["unread_records"]) == (
        ImpactLevel.LOSS,
        100_000,
        400,
    )
    assert used.level is ImpactLevel.DISRUPTION
    assert {kind: names.first for kind, names in used.names.items()} == {
        "groups": ("billing",),
        "producers": ("producer id 3",),
        "mirrors": ("backup",),
    }


def test_deleted_empty_topic_without_users_has_no_impact() -> None:
    assert _of(TopicDeleted(topic="orders"), cluster(topic(partition(end_offset=0, size=0)))) == {}


def test_deleted_records_strand_group_behind_the_offset() -> None:
    facts = cluster(topic(), groups=(_READER,))

    finding = _of(RecordsDeleted(topic="orders", partition=0, before_offset=700), facts)["records_deleted"]

    assert (finding.figures["deleted_records"], finding.figures["unread_records"]) == (700, 100)


def test_impact_of_deletion_up_to_high_watermark_counts_all_records() -> None:
    finding = _of(RecordsDeleted(topic="orders", partition=0, before_offset=-1), cluster(topic()))["records_deleted"]

    assert finding.figures["deleted_records"] == 1_000


def test_missing_topic_has_no_impact() -> None:
    assert _of(TopicDeleted(topic="missing"), cluster()) == {}


@pytest.mark.parametrize(
    "change", [TopicDeleted(topic="orders"), RecordsDeleted(topic="orders", partition=0, before_offset=5)]
)
@pytest.mark.parametrize(("is_remote", "missing"), [("true", Need.REMOTE_SIZES), ("false", NO_NEED)])
def test_deleted_bytes_lack_those_of_a_remote_log(change: Change, is_remote: str, missing: Need) -> None:
    facts = cluster(topic(remote_storage_enable=is_remote))

    assert predict([change], facts).missing == missing
