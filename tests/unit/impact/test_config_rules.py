"""Predictions for topic configs: one test per effect of the table in docs/change-safely.md."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from klamm.impact.facts import (
    NO_NEED,
    ClusterFacts,
    ConfigValueFact,
    GroupFacts,
    Need,
    ObservedTopic,
    PartitionFacts,
    ProducerFact,
)
from klamm.impact.findings import Finding, Impact, ImpactLevel
from klamm.impact.prediction import config_effects, may_delete_records, needs, predict
from klamm.protocol.types import ConfigSource, TopicPartition
from tests.unit.impact.builders import (
    DAY_MS,
    NOW_MS,
    altered,
    batch,
    cluster,
    default_altered,
    of_broker,
    of_default,
    partition,
    sampled,
    topic,
)

if TYPE_CHECKING:
    from klamm.impact.changes import Change

_PRODUCER = ProducerFact(producer_id=7, last_timestamp_ms=NOW_MS - 1_000, transactional_id="payments")


def _only(change: Change, facts: ClusterFacts, kind: str) -> Finding:
    (finding,) = [finding for finding in predict([change], facts).findings if finding.kind == kind]
    return finding


def _retained_for_a_day(first_kept: int) -> PartitionFacts:
    return partition(offset_at={NOW_MS - DAY_MS: first_kept})


def test_lower_retention_ms_deletes_records_before_first_newer_one() -> None:
    facts = cluster(topic(_retained_for_a_day(400)))

    finding = _only(altered("retention.ms", str(DAY_MS)), facts, "records_deleted")

    assert finding.level is ImpactLevel.LOSS
    assert finding.figures == {
        "deleted_bytes": 40_000,
        "deleted_bytes_min": 30_000,
        "deleted_records": 400,
        "oldest_ms": NOW_MS - 10 * DAY_MS,
    }
    assert "segments are not visible from outside" in finding.message


def test_lower_retention_ms_deletes_whole_log_without_newer_record() -> None:
    facts = cluster(topic(_retained_for_a_day(-1)))

    finding = _only(altered("retention.ms", str(DAY_MS)), facts, "records_deleted")

    assert (finding.figures["deleted_bytes"], finding.figures["deleted_bytes_min"]) == (100_000, 100_000)
    assert "at least" not in finding.message


def test_retention_strands_group_and_mirror_behind_new_start() -> None:
    place = TopicPartition("orders", 0)
    facts = cluster(
        topic(_retained_for_a_day(400)),
        groups=(
            GroupFacts(name="billing", is_active=True, offsets={place: 100}),
            GroupFacts(name="ahead", is_active=True, offsets={place: 400}),
            GroupFacts(name="elsewhere", is_active=True, offsets={}),
        ),
        mirrors=(GroupFacts(name="backup", is_active=True, offsets={place: 350}),),
    )

    finding = _only(altered("retention.ms", str(DAY_MS)), facts, "records_deleted")

    assert finding.names["groups"].first == ("billing",)
    assert finding.names["mirrors"].first == ("backup",)
    assert (finding.figures["unread_records"], finding.figures["unmirrored_records"]) == (300, 50)


def test_lower_retention_bytes_keeps_at_least_its_value() -> None:
    finding = _only(altered("retention.bytes", "25000"), cluster(topic()), "records_deleted")

    assert (finding.figures["deleted_bytes"], finding.figures["deleted_bytes_min"]) == (75_000, 65_000)
    assert finding.figures["deleted_records"] == 750


def test_retention_bytes_zero_deletes_all_records() -> None:
    finding = _only(altered("retention.bytes", "0"), cluster(topic()), "records_deleted")

    assert (finding.figures["deleted_bytes_min"], finding.figures["deleted_records"]) == (100_000, 1_000)


def test_cleanup_policy_delete_applies_retention_to_compacted_topic() -> None:
    facts = cluster(topic(_retained_for_a_day(900), cleanup_policy="compact", retention_ms=str(DAY_MS)))

    finding = _only(altered("cleanup.policy", "compact,delete"), facts, "records_deleted")

    assert finding.figures["deleted_records"] == 900


@pytest.mark.parametrize(
    ("name", "value", "missing"),
    [
        ("retention.bytes", "1000000", Need.OFFSETS | Need.REMOTE_SIZES),
        ("retention.bytes", "3000000", NO_NEED),
        ("retention.ms", str(DAY_MS), Need.REMOTE_SIZES),
        ("retention.ms", str(20 * DAY_MS), NO_NEED),
    ],
    ids=["fewer bytes", "more bytes", "shorter time", "time without older records"],
)
def test_retention_of_a_remote_log_lacks_its_size(name: str, value: str, missing: Need) -> None:
    """``retention.bytes`` also counts remote segments; 100,000 bytes are local."""
    one = partition(offset_at={NOW_MS - DAY_MS: 400, NOW_MS - 20 * DAY_MS: 0})
    facts = cluster(topic(one, remote_storage_enable="true", retention_bytes="2000000", retention_ms="-1"))

    impact = predict([altered(name, value)], facts)

    assert impact.missing == missing
    assert [text.rpartition(": ")[2] for text in impact.unknown] == ["orders."] * (missing != NO_NEED)


@pytest.mark.parametrize("value", ["false", None])
def test_disabled_remote_storage_deletes_the_remote_log(value: str | None) -> None:
    facts = cluster(topic(remote_storage_enable="true"))
    changes = [altered("remote.log.delete.on.disable", "true"), altered("remote.storage.enable", value)]

    impact = predict(changes, facts)

    assert [(each.kind, each.level) for each in impact.findings] == [("remote_log_deleted", ImpactLevel.LOSS)]
    assert impact.missing == Need.OFFSETS | Need.REMOTE_SIZES
    assert may_delete_records(changes)


def test_remote_storage_changes_without_remote_records_have_no_impact() -> None:
    empty = topic(partition(end_offset=0), remote_storage_enable="true")
    assert predict([altered("remote.storage.enable", "false")], cluster(empty)) == Impact()
    assert predict([altered("remote.storage.enable", "true")], cluster(topic())) == Impact()


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("retention.ms", str(DAY_MS), str(2 * DAY_MS)),
        ("retention.ms", str(DAY_MS), "-1"),
        ("retention.bytes", "1000", "2000"),
        ("retention.bytes", "1000", "-1"),
    ],
)
def test_raised_retention_deletes_nothing(name: str, before: str, after: str) -> None:
    own_values = {name.replace(".", "_"): before}
    facts = cluster(topic(partition(offset_at={NOW_MS - DAY_MS: 500}), **own_values))

    assert predict([altered(name, after)], facts).level is ImpactLevel.NONE


def test_lower_retention_of_compacted_topic_deletes_nothing() -> None:
    facts = cluster(topic(_retained_for_a_day(500), cleanup_policy="compact"))

    assert predict([altered("retention.ms", str(DAY_MS))], facts).level is ImpactLevel.NONE


def test_invalid_value_has_no_impact() -> None:
    assert predict([altered("retention.ms", "soon")], cluster(topic())).level is ImpactLevel.NONE


def test_compaction_of_keyless_records_is_loss() -> None:
    facts = cluster(topic(sampled([batch(None, None, 5, 6)], producers=(_PRODUCER,))))

    finding = _only(altered("cleanup.policy", "compact"), facts, "keyless_records")

    assert finding.level is ImpactLevel.LOSS
    sample = {"sampled_records": 4, "keyless_records": 2, "keyless_percent": 50.0}
    assert finding.figures == {**sample, "deleted_bytes": 50_000}
    assert finding.names["producers"].first == ("payments",)


def test_compaction_removes_superseded_records() -> None:
    facts = cluster(topic(sampled([batch(1, 2), batch(1, 1)]), min_compaction_lag_ms="60000"))

    finding = _only(altered("cleanup.policy", "compact"), facts, "records_compacted")

    assert (finding.figures["superseded_records"], finding.figures["superseded_percent"]) == (2, 50.0)
    assert finding.figures["first_pass_ms"] == 60_000


def test_shorter_compaction_lag_removes_superseded_records() -> None:
    facts = cluster(topic(sampled([batch(1, None), batch(1)]), cleanup_policy="compact", min_compaction_lag_ms="60000"))

    _only(altered("min.compaction.lag.ms", None), facts, "records_compacted")
    assert may_delete_records([altered("min.compaction.lag.ms", None)])
    assert predict([altered("min.compaction.lag.ms", "60001")], facts).level is ImpactLevel.NONE


@pytest.mark.parametrize("value", ["delete\x01", "\x00delete ", "compact,delete\x1b"])
def test_blanks_that_kafka_ignores_hide_no_loss(value: str) -> None:
    facts = cluster(topic(_retained_for_a_day(900), cleanup_policy="compact", retention_ms=f"{DAY_MS}\x01"))

    _only(altered("cleanup.policy", value), facts, "records_deleted")


def test_compaction_of_unique_keys_has_no_impact() -> None:
    facts = cluster(topic(sampled([batch(1, 2), batch(3)])))

    assert predict([altered("cleanup.policy", "compact")], facts).level is ImpactLevel.NONE


@pytest.mark.parametrize(
    "fields",
    [
        {"newest_batches": (batch(1, 2),), "end_offset": 1_001},
        {"newest_batches": (batch(1, 2),), "start_offset": 1, "end_offset": 1_002},
        {"newest_batches": (replace(batch(1, 2), next_offset=999),)},
        {"newest_batches": ()},
        {"newest_batches": None},
    ],
    ids=["older records", "older records behind a later start", "newer records", "damaged", "none"],
)
def test_compaction_of_records_that_were_not_read_may_be_loss(fields: dict[str, object]) -> None:
    whole = sampled([batch(1, 2)], partition=1)
    facts = cluster(topic(partition(**fields), whole))

    finding = _only(altered("cleanup.policy", "compact"), facts, "unread_records_compacted")

    assert finding.level is ImpactLevel.LOSS
    assert finding.names["partitions"].first == ("orders-0",)
    assert finding.figures["partitions"] == 1
    assert finding.figures["deleted_bytes"] == 100_000


@pytest.mark.parametrize(
    ("change", "policy"),
    [(altered("cleanup.policy", "compact"), "delete"), (altered("min.compaction.lag.ms", "0"), "compact")],
    ids=["first", "earlier"],
)
def test_compaction_reports_unread_records_of_lagging_groups(change: Change, policy: str) -> None:
    # given
    places = [TopicPartition("orders", number) for number in range(2)]
    groups = [
        GroupFacts(name="behind", is_active=True, offsets={places[0]: 900, places[1]: 1_000}),
        GroupFacts(name="behind elsewhere", is_active=True, offsets={places[0]: 1_000, places[1]: 900}),
    ]
    partitions = sampled([batch(1, 1, 2, 3)]), sampled([batch(1, 2)], partition=1)
    facts = cluster(topic(*partitions, min_compaction_lag_ms="1", cleanup_policy=policy), groups=tuple(groups))
    # when
    impact = predict([change], facts)
    # then
    assert [finding.kind for finding in impact.findings] == ["records_compacted"]
    assert impact.findings[0].figures["unread_records"] == 100
    assert impact.stranded_groups == {"behind"}
    assert impact.deleted_bytes == 25_000
    effects = config_effects([change], facts)
    assert Need.GROUPS in needs([change], effects)["orders"]


def test_compaction_of_an_empty_topic_has_no_impact() -> None:
    facts = cluster(topic(partition(start_offset=5, end_offset=5)))

    assert predict([altered("cleanup.policy", "compact")], facts).level is ImpactLevel.NONE


def test_lower_max_message_bytes_rejects_larger_batches() -> None:
    facts = cluster(topic(sampled([batch(size=100), batch(size=2_000)], producers=(_PRODUCER,))))

    finding = _only(altered("max.message.bytes", "1000"), facts, "batches_rejected")

    assert finding.level is ImpactLevel.DISRUPTION
    assert (finding.figures["rejected_batches"], finding.figures["rejected_percent"]) == (1, 50.0)
    assert "RECORD_TOO_LARGE" in finding.message
    assert finding.names["producers"].first == ("payments",)


def test_max_message_bytes_above_every_batch_has_no_impact() -> None:
    facts = cluster(topic(sampled([batch(size=100)])))

    assert predict([altered("max.message.bytes", "1000")], facts).level is ImpactLevel.NONE


def test_max_message_bytes_above_fetch_limit_of_followers_is_noticed() -> None:
    facts = cluster(topic(), brokers={1: {"replica.fetch.max.bytes": "1048576"}, 2: {}})

    finding = _only(altered("max.message.bytes", "9000000"), facts, "follower_fetch_limit")

    assert (finding.level, finding.names["brokers"].first) == (ImpactLevel.NOTICE, ("1",))


def test_timestamp_before_limit_rejects_late_batches() -> None:
    late, on_time = batch(age_ms=5_000, spread_ms=3 * DAY_MS), batch(age_ms=4_000)
    facts = cluster(topic(sampled([on_time, late])))

    finding = _only(altered("message.timestamp.before.max.ms", str(DAY_MS)), facts, "batches_rejected")

    assert finding.figures["rejected_batches"] == 1
    assert "INVALID_TIMESTAMP" in finding.message


def test_timestamp_after_limit_rejects_batches_of_the_future() -> None:
    facts = cluster(topic(sampled([batch(age_ms=-2 * 3_600_000), batch()])))

    finding = _only(altered("message.timestamp.after.max.ms", "1800000"), facts, "batches_rejected")

    assert finding.figures["rejected_percent"] == 50.0


def test_log_append_time_is_noticed() -> None:
    finding = _only(altered("message.timestamp.type", "LogAppendTime"), cluster(topic()), "timestamps_replaced")

    assert finding.level is ImpactLevel.NOTICE


def test_min_insync_replicas_above_isr_rejects_acks_all_now() -> None:
    facts = cluster(
        topic(partition(isr=(1,), producers=(_PRODUCER,)), partition(partition=1, isr=(1, 2)), partition(partition=2))
    )

    below = _only(altered("min.insync.replicas", "2"), facts, "below_min_isr")
    at_limit = _only(altered("min.insync.replicas", "2"), facts, "at_min_isr")

    assert (below.level, below.names["partitions"].first) == (ImpactLevel.DISRUPTION, ("orders-0",))
    assert (at_limit.level, at_limit.names["partitions"].first) == (ImpactLevel.NOTICE, ("orders-1",))
    assert below.names["producers"].first == ("payments",)


def test_min_insync_replicas_below_isr_has_no_impact() -> None:
    assert predict([altered("min.insync.replicas", "2")], cluster(topic())).level is ImpactLevel.NONE


def test_lower_min_insync_replicas_weakens_durability() -> None:
    facts = cluster(topic(min_insync_replicas="2"))

    assert _only(altered("min.insync.replicas", "1"), facts, "weaker_durability").level is ImpactLevel.NOTICE


@pytest.mark.parametrize(
    ("fields", "kind", "level"),
    [
        ({"leader": -1}, "unclean_election", ImpactLevel.LOSS),
        ({"isr": (1, 2)}, "unclean_election_possible", ImpactLevel.DISRUPTION),
        ({}, "unclean_election_possible", ImpactLevel.NOTICE),
    ],
    ids=["without leader", "replica out of sync", "all in sync"],
)
def test_unclean_leader_election(fields: dict[str, object], kind: str, level: ImpactLevel) -> None:
    facts = cluster(topic(partition(**fields), unclean_leader_election_enable="false"))

    assert _only(altered("unclean.leader.election.enable", "true"), facts, kind).level is level


def test_case_of_a_boolean_is_ignored() -> None:
    facts = cluster(topic(partition(leader=-1), unclean_leader_election_enable="False"))

    assert predict([altered("unclean.leader.election.enable", "TRUE")], facts).level is ImpactLevel.LOSS
    assert predict([altered("unclean.leader.election.enable", "FALSE")], facts).level is ImpactLevel.NONE


def test_unclean_leader_election_without_replication_has_no_impact() -> None:
    facts = cluster(topic(partition(replicas=(1,), isr=(1,)), unclean_leader_election_enable="false"))

    assert predict([altered("unclean.leader.election.enable", "true")], facts).level is ImpactLevel.NONE


def test_compression_type_recompresses_other_codecs() -> None:
    facts = cluster(topic(sampled([batch(codec="zstd"), batch(codec="lz4"), batch(), batch()])))

    assert _only(altered("compression.type", "zstd"), facts, "recompression").figures["recompressed_percent"] == 75.0
    assert (
        _only(altered("compression.type", "uncompressed"), facts, "recompression").figures["recompressed_percent"] == 50
    )


def test_smaller_segments_multiply_files() -> None:
    facts = cluster(topic(partition(size=100 * 1024**3, end_offset=10**9), segment_bytes=str(1024**3)))

    finding = _only(altered("segment.bytes", str(1024**2)), facts, "segment_files")

    assert finding.level is ImpactLevel.DISRUPTION
    assert finding.figures == {"files": 3 * 102_401, "mapped_files": 2 * 102_401}


def test_smaller_index_multiplies_files() -> None:
    """A time index of 12,000 bytes is full after 999 entries: 999 intervals of 4,096 bytes."""
    facts = cluster(topic(partition(size=10**10, end_offset=10**8), segment_bytes=str(1024**3)))

    finding = _only(altered("segment.index.bytes", "12000"), facts, "segment_files")

    assert finding.figures["files"] == 3 * (1 + 10**10 // (999 * 4096))


def test_shorter_segment_ms_multiplies_files() -> None:
    facts = cluster(topic(sampled([batch()]), segment_ms=str(7 * DAY_MS)))

    finding = _only(altered("segment.ms", "60000"), facts, "segment_files")

    assert (finding.level, finding.figures["files"]) == (ImpactLevel.NOTICE, 3 * 1_001)


def test_cluster_default_concerns_topics_that_inherit_it() -> None:
    inheriting = topic(_retained_for_a_day(400), name="inheriting")
    independent = topic(_retained_for_a_day(400), name="independent", retention_ms=str(7 * DAY_MS))

    impact = predict([default_altered("log.retention.ms", str(DAY_MS))], cluster(inheriting, independent))

    assert [(f.kind, f.resource) for f in impact.findings] == [
        ("records_deleted", "topic inheriting"),
        ("inherited_by_topics", "cluster default"),
    ]
    assert impact.findings[1].names["topics"].first == ("inheriting",)


def test_less_specific_synonym_yields_to_the_more_specific_one() -> None:
    inherited = ConfigValueFact(
        name="log.retention.ms", value=str(7 * DAY_MS), source=ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    )
    each = ObservedTopic(name="orders", partitions=(partition(),), configs={"retention.ms": (inherited,)})

    assert predict([default_altered("log.retention.hours", "1")], cluster(each)).level is ImpactLevel.NONE


def test_deleted_config_falls_back_to_inherited_value() -> None:
    facts = cluster(topic(partition(offset_at={NOW_MS - 7 * DAY_MS: 300}), retention_ms="-1"))

    assert _only(altered("retention.ms", None), facts, "records_deleted").figures["deleted_records"] == 300


def test_change_of_one_broker_concerns_topics_with_a_replica_there() -> None:
    facts = cluster(topic(_retained_for_a_day(400)))

    assert predict([default_altered("log.retention.ms", str(DAY_MS), broker="3")], facts).level is ImpactLevel.LOSS
    assert predict([default_altered("log.retention.ms", str(DAY_MS), broker="9")], facts).level is ImpactLevel.NONE


@pytest.mark.parametrize("spelling", ["03", "+3"])
def test_change_of_one_broker_concerns_it_in_any_spelling_of_its_id(spelling: str) -> None:
    facts = cluster(topic(_retained_for_a_day(400)))

    assert predict([default_altered("log.retention.ms", str(DAY_MS), broker=spelling)], facts).level is ImpactLevel.LOSS


_RETENTION = "log.retention.ms"
_WEEK, _MONTH = of_default(_RETENTION, str(7 * DAY_MS)), of_broker(_RETENTION, str(30 * DAY_MS))
_BY_BROKER: dict[int, dict[str, tuple[ConfigValueFact, ...]]] = {
    1: {"retention.ms": (_WEEK,)},
    2: {"retention.ms": (_MONTH, _WEEK)},
}
"""Broker 2 sets its own retention; broker 1 has the cluster default."""


@pytest.mark.parametrize("described_by", [1, 2])
@pytest.mark.parametrize(
    ("change", "deleted"),
    [
        (default_altered(_RETENTION, str(DAY_MS)), [600]),
        (default_altered(_RETENTION, str(DAY_MS), broker="1"), [600]),
        (default_altered(_RETENTION, str(DAY_MS), broker="2"), [600]),
        (default_altered(_RETENTION, None, broker="2"), [300]),
        (default_altered(_RETENTION, str(60 * DAY_MS)), []),
    ],
)
def test_records_deleted_on_any_broker_count_whichever_described_the_topic(
    change: Change, deleted: list[int], described_by: int
) -> None:
    # given
    each = topic(partition(replicas=(1, 2), offset_at={NOW_MS - DAY_MS: 600, NOW_MS - 7 * DAY_MS: 300}))
    each = replace(each, configs={**each.configs, **_BY_BROKER[described_by]})
    # when
    impact = predict([change], cluster(each, inherited=_BY_BROKER))
    # then
    assert [f.figures["deleted_records"] for f in impact.findings if f.kind == "records_deleted"] == deleted


def test_removed_topic_config_falls_back_to_the_shortest_retention_of_a_broker() -> None:
    # given
    each = topic(
        partition(replicas=(1, 2), offset_at={NOW_MS - 7 * DAY_MS: 300, NOW_MS - 30 * DAY_MS: 100}),
        retention_ms="-1",
    )
    # when
    finding = _only(altered("retention.ms", None), cluster(each, inherited=_BY_BROKER), "records_deleted")
    # then
    assert finding.figures["deleted_records"] == 300


def test_more_than_ten_topics_are_summed_up() -> None:
    topics = [topic(_retained_for_a_day(100 + n), name=f"t{n:02}") for n in range(25)]

    impact = predict([default_altered("log.retention.ms", str(DAY_MS))], cluster(*topics))

    losses = [finding for finding in impact.findings if finding.kind == "records_deleted"]
    assert [finding.resource for finding in losses] == [*(f"topic t{n}" for n in range(24, 14, -1)), "15 more"]
    assert losses[-1].names["topics"].count == 15
    assert impact.deleted_bytes == sum(100 * (100 + n) for n in range(25))


def test_value_equal_to_the_present_one_has_no_impact() -> None:
    facts = cluster(topic(retention_ms=str(DAY_MS)))

    assert predict([altered("retention.ms", str(DAY_MS))], facts).level is ImpactLevel.NONE
