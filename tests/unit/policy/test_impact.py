"""Rules on the predicted impact of a change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from klamm.impact.changes import ConfigAltered, PartitionsAdded, TopicDeleted
from klamm.impact.facts import NO_NEED, GroupFacts, Need
from klamm.impact.findings import Finding, Impact, ImpactLevel, Names
from klamm.impact.prediction import predict
from klamm.policy import AlterConfigDetails, DeleteTopicDetails, ImpactUnknownError
from klamm.policy.errors import ImpactNeeded
from klamm.policy.impact import changes_of
from klamm.policy.rule import RuleFileError
from klamm.policy.rule_file import parse_rules
from klamm.policy.rules import RulesPolicy
from klamm.policy.testing import (
    a_config_change,
    a_deletion,
    assert_allowed,
    assert_denied,
    make_policy,
    more_partitions,
)
from klamm.protocol.types import ResourceType, TopicPartition
from tests.unit.impact.builders import altered, batch, cluster, partition, topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from klamm.policy.impact import ImpactDetails


@pytest.fixture
def rules_policy(tmp_path: Path) -> Callable[..., RulesPolicy]:
    """Return a function that makes the policy of one rule with a condition and other keys."""

    def make(condition: str, **others: str) -> RulesPolicy:
        path = tmp_path / "rules.yaml"
        keys = "".join(f', {key}: "{value}"' for key, value in others.items())
        path.write_text(f"rules: [{{name: the rule, {condition}{keys}}}]")
        return make_policy(RulesPolicy, policy_rules_file=str(path))  # type: ignore[no-any-return]

    return make


def deletion(size: int = 2_000, *, topic: str = "orders", groups: tuple[str, ...] = ()) -> Finding:
    """Return the finding that a topic's records are deleted, and that groups have not read them."""
    return Finding(
        kind="records_deleted",
        level=ImpactLevel.LOSS,
        resource=f"topic {topic}",
        message=f"{size} bytes go at the next retention check.",
        figures={"deleted_bytes": size, **({"unread_records": 5} if groups else {})},
        names={"topics": Names.of([topic]), **({"groups": Names.of(groups)} if groups else {})},
    )


REBALANCE = Finding(kind="groups_rebalance", level=ImpactLevel.NOTICE, resource="topic orders", message="A rebalance.")
KEYS_MOVE = Finding(kind="keys_move", level=ImpactLevel.DISRUPTION, resource="topic orders", message="Keys move.")


def retention(*findings: Finding, missing: Need = NO_NEED, name: str = "orders") -> AlterConfigDetails:
    unknown = ("log sizes of 1 (TimeoutError)",) if missing else ()
    impact = Impact(findings=findings, missing=missing, unknown=unknown)
    return a_config_change(name, sets={"retention.ms": "1"}, impact=impact)


def growth(*findings: Finding) -> ImpactDetails:
    return more_partitions(then=4, impact=Impact(findings=findings))


def deleted(*findings: Finding, missing: Need = NO_NEED) -> DeleteTopicDetails:
    return a_deletion(impact=Impact(findings=findings, missing=missing, unknown=("consumer groups (denied)",)))


@pytest.mark.parametrize("change", [retention, deleted])
@pytest.mark.parametrize(
    ("condition", "denied", "allowed"),
    [
        ("data_loss: forbidden", deletion(), REBALANCE),
        ("max_deleted: 10 kB", deletion(10_001), deletion(10_000)),
        ("max_deleted: 0", deletion(1), REBALANCE),
        ("strands_groups: forbidden", deletion(groups=("billing",)), deletion()),
        ("max_impact: none", REBALANCE, None),
        ("max_impact: notice", KEYS_MOVE, REBALANCE),
        ("max_impact: disruption", deletion(), KEYS_MOVE),
    ],
)
def test_impact_beyond_a_condition_is_denied(
    condition: str,
    denied: Finding,
    allowed: Finding | None,
    change: Callable[..., ImpactDetails],
    rules_policy: Callable[..., RulesPolicy],
) -> None:
    policy = rules_policy(condition)
    assert_denied(policy, change(denied), match=denied.message.rstrip("."), code="POLICY_VIOLATION")
    assert_allowed(policy, change(*([] if allowed is None else [allowed])))


@pytest.mark.parametrize("condition", ["data_loss: forbidden", "max_deleted: 0", "strands_groups: forbidden"])
@pytest.mark.parametrize("keys", [(None,), (1, 1), None], ids=["keyless", "superseded", "not read"])
def test_every_condition_on_loss_denies_the_compaction_of_unread_records(
    keys: tuple[int | None, ...] | None, condition: str, rules_policy: Callable[..., RulesPolicy]
) -> None:
    # given
    batches = None if keys is None else (batch(*keys),)
    behind = GroupFacts(name="billing", is_active=True, offsets={TopicPartition("orders", 0): 5})
    facts = cluster(topic(partition(newest_batches=batches)), groups=(behind,))
    impact = predict([altered("cleanup.policy", "compact")], facts)
    # when
    change = a_config_change("orders", sets={"cleanup.policy": "compact"}, impact=impact)
    # then
    assert_denied(rules_policy(condition), change, match="orders", code="POLICY_VIOLATION")


def test_max_impact_concerns_added_partitions(rules_policy: Callable[..., RulesPolicy]) -> None:
    policy = rules_policy("max_impact: notice")
    assert_denied(policy, growth(KEYS_MOVE), match="adding partitions to topic orders has the impact disruption")
    assert_allowed(policy, growth(REBALANCE))


def test_max_deleted_adds_up_the_topics_of_a_default(rules_policy: Callable[..., RulesPolicy]) -> None:
    policy = rules_policy("max_deleted: 3 kB")
    each = [deletion(1_000, topic=f"t{n}") for n in range(4)]
    change = default_altered(Impact(findings=tuple(each)))
    assert_denied(policy, change, match=r"delete up to 3\.9 KiB, above the maximum 2\.9 KiB: .*\(3 more findings\)")


def default_altered(impact: Impact) -> AlterConfigDetails:
    return a_config_change("", resource_type="BROKER", sets={"log.retention.ms": "1"}, impact=impact)


def test_topics_of_a_rule_select_the_findings_of_a_changed_default(rules_policy: Callable[..., RulesPolicy]) -> None:
    policy = rules_policy("data_loss: forbidden", topics="billing-.*")
    assert_allowed(policy, default_altered(Impact(findings=(deletion(topic="orders"),))))
    both = Impact(findings=(deletion(topic="orders"), deletion(topic="billing-eu")))
    assert_denied(policy, default_altered(both), match="topic billing-eu")


@pytest.mark.parametrize(
    ("condition", "missing", "is_denied"),
    [
        ("data_loss: forbidden", Need.OFFSETS, True),
        ("data_loss: forbidden", Need.BATCHES, True),
        ("data_loss: forbidden", Need.GROUPS | Need.PRODUCERS, False),
        ("max_deleted: 1 GiB", Need.OFFSETS, True),
        ("max_deleted: 1 GiB", Need.GROUPS, False),
        ("max_deleted: 1 GiB", Need.REMOTE_SIZES, True),
        ("data_loss: forbidden", Need.REMOTE_SIZES, False),
        ("strands_groups: forbidden", Need.GROUPS, True),
        ("strands_groups: forbidden", Need.PRODUCERS, False),
        ("max_impact: disruption", Need.PRODUCERS, True),
    ],
)
def test_missing_fact_of_a_condition_denies_the_change(
    condition: str, missing: Need, is_denied: bool, rules_policy: Callable[..., RulesPolicy]
) -> None:
    policy = rules_policy(condition)
    if is_denied:
        assert_denied(
            policy, retention(missing=missing), match=r"cannot be determined.*log sizes of 1 \(TimeoutError\)"
        )
        assert_denied(policy, deleted(missing=missing), match=r"facts about .* are missing: consumer groups \(denied\)")
    else:
        assert_allowed(policy, retention(missing=missing))


def test_disabled_remote_storage_is_checked(rules_policy: Callable[..., RulesPolicy]) -> None:
    loss = Finding(kind="remote_log_deleted", level=ImpactLevel.LOSS, resource="topic orders", message="Remote.")
    configs = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    before = {"remote.storage.enable": "true"}
    change = a_config_change(sets=configs, before=before, impact=Impact(findings=(loss,)))

    assert_denied(rules_policy("data_loss: forbidden"), change, match="would lose data: topic orders: Remote")


def test_unknown_impact_denies_the_change_with_reason(rules_policy: Callable[..., RulesPolicy]) -> None:
    change = replace(retention(), prediction=ImpactUnknownError("log sizes could not be read within 2000 ms"))
    assert_denied(
        rules_policy("data_loss: forbidden"),
        change,
        match="Rule 'the rule': the impact of the change of topic orders cannot be determined: log sizes could not be"
        " read within 2000 ms; try again later",
    )


def test_remedy_of_the_rule_replaces_the_advice(rules_policy: Callable[..., RulesPolicy]) -> None:
    policy = rules_policy("data_loss: forbidden", remedy="ask finance")
    assert_denied(policy, retention(deletion()), match="retention check; ask finance")


@pytest.mark.parametrize("condition", ["data_loss: forbidden", "max_deleted: 0", "strands_groups: forbidden"])
def test_impact_is_not_predicted_for_harmless_changes(condition: str, rules_policy: Callable[..., RulesPolicy]) -> None:
    policy = rules_policy(condition)
    assert_allowed(policy, a_config_change(sets={"max.message.bytes": "1"}))
    assert_allowed(policy, a_config_change(sets={"retention.ms": "1"}, before={"retention.ms": "1"}))
    assert_allowed(policy, a_config_change("c", resource_type="GROUP", sets={"consumer.session.timeout.ms": "1"}))
    assert_allowed(policy, more_partitions())


def test_impact_is_not_read_if_another_condition_denies_the_change(rules_policy: Callable[..., RulesPolicy]) -> None:
    policy = rules_policy("data_loss: forbidden, deletion: forbidden")
    assert_denied(policy, a_deletion(), match="must not be deleted")


def test_reading_an_unset_impact_raises_impact_needed(rules_policy: Callable[..., RulesPolicy]) -> None:
    with pytest.raises(ImpactNeeded, match="make the details with impact="):
        rules_policy("data_loss: forbidden").validate_delete_topic(a_deletion())


def test_changes_of_details_omit_unchanged_values() -> None:
    before = {"retention.ms": "5", "retention.bytes": "7", "segment.ms": "9"}
    change = a_config_change(sets={"retention.ms": "5", "retention.bytes": "1"}, removes=["segment.ms"], before=before)
    expected = [("retention.bytes", "1"), ("segment.ms", None)]
    assert changes_of(change) == tuple(
        ConfigAltered(resource_type=ResourceType.TOPIC, resource_name="orders", name=name, value=value)
        for name, value in expected
    )
    assert changes_of(a_deletion()) == (TopicDeleted(topic="orders"),)
    assert changes_of(more_partitions(now=1, then=3)) == (PartitionsAdded(topic="orders", total_count=3),)
    assert changes_of(more_partitions(now=2, then=2)) == ()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("data_loss: never", "data_loss: expected forbidden or allowed, got 'never'"),
        ("data_loss: allowed", "the rule checks nothing"),
        ("max_impact: loss", "the rule checks nothing"),
        ("max_impact: terrible", "max_impact: expected notice or none or loss or disruption"),
        ("max_deleted: -1", "max_deleted: expected a number of bytes from 0 on, got -1"),
        ("max_deleted: 1.5", "max_deleted: expected a number of bytes from 0 on, got 1.5"),
        ("max_deleted: 10 parsecs", "max_deleted: expected a number, or one with a unit: B"),
        ("data_loss: forbidden, effect: override", "effect: override cannot set this right"),
        ("data_loss: forbidden, actions: [create]", "data_loss: is checked for the actions alter, delete only"),
        (
            "max_impact: none, actions: [produce]",
            "max_impact: is checked for the actions alter, partitions, delete only",
        ),
    ],
)
def test_conditions_on_the_impact_that_make_no_sense_are_rejected(entry: str, message: str) -> None:
    with pytest.raises(RuleFileError, match=message):
        parse_rules(f"rules: [{{name: a, {entry}}}]", source="rules.yaml")


def test_details_with_an_impact_equal_those_without() -> None:
    assert replace(a_deletion(), prediction=Impact()) == a_deletion()
