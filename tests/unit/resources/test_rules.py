"""Decisions of a rules file about planned changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def test_removed_config_is_judged_by_the_value_that_is_inherited_then(tmp_path: Path) -> None:
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
