"""Decisions of a rules file about planned changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.resources.diff import Ownership, plan_resources
from klamm.resources.model import CurrentValue, Declared, Existing, Kind, ResourceKey
from klamm.resources.rules import RulesFile

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.resources.execute import ChangeOutcomes

ORDERS = ResourceKey(Kind.TOPIC, "orders")


def judged(tmp_path: Path, rules: str, declared: Declared, existing: Existing, ownership: Ownership) -> ChangeOutcomes:
    (file := tmp_path / "rules.yaml").write_text(f"rules:\n  - {rules}\n")
    resources = {ORDERS: existing}
    return RulesFile(file, "User:anna").judge(plan_resources([declared], resources, ownership), resources)


def test_removed_config_is_judged_by_inherited_value(tmp_path: Path) -> None:
    # given
    own = CurrentValue(value="1000", origin="topic", is_own=True, inherited="604800000")
    # when
    outcomes = judged(
        tmp_path,
        "{name: short, configs: {retention.ms: {max: 1d}}}",
        Declared(kind=Kind.TOPIC, name="orders"),
        Existing(values={"retention.ms": own}, replicas=((1,),)),
        Ownership(prune_keys=True),
    )
    # then
    assert "retention.ms=604800000 (the broker's default)" in str(outcomes.errors[ORDERS])


@pytest.mark.parametrize(
    ("rules", "values", "denial"),
    [
        ("{name: safe, replication_factor: {min: 2}}", {"replication_factor": "1"}, "replication factor=1"),
        ("{name: safe, replication_factor: {min: 2}}", {"replication_factor": "2"}, None),
        ("{name: safe, spare_replicas: {min: 1}}", {"replication_factor": "2"}, "min.insync.replicas 2"),
        (
            "{name: safe, spare_replicas: {min: 1}}",
            {"replication_factor": "2", "min.insync.replicas": "1", "partitions": "4"},
            None,
        ),
        (
            "{name: safe, spare_replicas: {min: 1}}\n"
            "  - {name: two, effect: override, configs: {min.insync.replicas: {min: 2}}}",
            {"replication_factor": "2", "min.insync.replicas": "1"},
            "min.insync.replicas 2",
        ),
        ("{name: safe, spare_replicas: {min: 0, max: 1}}", {"replication_factor": "5"}, "replication factor 5"),
    ],
)
def test_changed_replication_factor_is_judged_as_a_gateway_judges_the_reassignment(
    rules: str, values: dict[str, str], denial: str | None, tmp_path: Path
) -> None:
    # given
    own = CurrentValue(value="2", origin="topic", is_own=True, inherited="1")
    factor = CurrentValue(value="3", origin="cluster", is_own=True)
    existing = Existing(
        values={"min.insync.replicas": own, "replication_factor": factor}, replicas=((1, 2, 3), (1, 2, 3))
    )
    # when
    outcomes = judged(tmp_path, rules, Declared(kind=Kind.TOPIC, name="orders", values=values), existing, Ownership())
    # then
    assert len(outcomes.errors) == (denial is not None)
    assert (denial or "") in "".join(map(str, outcomes.errors.values()))
