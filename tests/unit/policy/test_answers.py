"""Check of the values that a policy answers with, and notes of overrides in responses."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.policy import Override, Throttle
from klamm.policy.answers import PolicyOverride, answer_fault
from klamm.policy.kinds import ALTER_CONFIG, CREATE_PARTITIONS, CREATE_TOPIC, FLOW, PolicyKind

WRONG: list[tuple[PolicyKind, Any, str]] = [
    (FLOW, Throttle(delay_ms=2**40, reason=""), r"Throttle\(delay_ms=1099511627776\): expected an integer from 0 to"),
    (FLOW, Throttle(delay_ms=-1, reason=""), "delay_ms=-1"),
    (FLOW, Throttle(delay_ms=1.5, reason=""), r"delay_ms=1\.5"),  # type: ignore[arg-type]
    (FLOW, Throttle(delay_ms=1, reason=None), r"Throttle\(reason=None\): expected a string"),  # type: ignore[arg-type]
    (FLOW, Override(acks=7, reason=""), r"Override\(acks=7\): expected -1 or 1"),
    (FLOW, Override(acks=0, reason=""), "expected -1 or 1"),
    (FLOW, Override(acks=True, reason=""), "acks=True"),
    (FLOW, Override(num_partitions=3, reason=""), "Override of num_partitions: here acks can be overridden"),
    (FLOW, Override(reason=""), "Override of nothing: here acks can be overridden"),
    (CREATE_TOPIC, Override(num_partitions=2**31, reason=""), "num_partitions=2147483648"),
    (CREATE_TOPIC, Override(num_partitions="6", reason=""), "num_partitions='6'"),  # type: ignore[arg-type]
    (CREATE_TOPIC, Override(replication_factor=2**15, reason=""), "expected an integer from 1 to 32767"),
    (CREATE_TOPIC, Override(acks=1, reason=""), "here configs, num_partitions, replication_factor can be overridden"),
    (CREATE_TOPIC, Override(num_partitions=3, reason="\ud800"), "reason="),
    (CREATE_TOPIC, Override(num_partitions=3, reason="a" * 2**15), "at most 32767 bytes"),
    (ALTER_CONFIG, Override(configs={"flush.ms": 5}, reason=""), "'flush.ms': 5"),  # type: ignore[dict-item]
    (ALTER_CONFIG, Override(configs={"flush.ms": "\ud800"}, reason=""), "expected strings, or None as value"),
    (ALTER_CONFIG, Override(configs={1: "5"}, reason=""), "{1: '5'}"),  # type: ignore[dict-item]
    (ALTER_CONFIG, Throttle(delay_ms=5, reason=""), "it cannot return Throttle"),
    (CREATE_PARTITIONS, Override(num_partitions=3, reason=""), "it cannot return Override"),
    (CREATE_TOPIC, True, "it cannot return bool"),
]


@pytest.mark.parametrize(("kind", "answer", "fault"), WRONG)
def test_fault_names_invalid_answer(kind: PolicyKind, answer: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        raise ValueError(answer_fault(answer, kind.answers, kind.overridable))


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (FLOW, Throttle(delay_ms=2**31 - 1, reason="")),
        (FLOW, Override(acks=-1, reason="all")),
        (CREATE_TOPIC, Override(configs={"flush.ms": None}, num_partitions=1, replication_factor=3, reason="")),
        (ALTER_CONFIG, Override(configs={"flush.ms": "5"}, reason="")),
    ],
)
def test_answer_within_the_limits_has_no_fault(kind: PolicyKind, answer: Any) -> None:
    assert answer_fault(answer, kind.answers, kind.overridable) is None


def test_note_has_reason_and_stored_values() -> None:
    override = Override(reason="set right (stored instead: 1)", configs={"a": "x)", "b": None}, num_partitions=3)
    values = {"partitions": "3", "a": "x)", "b": None}
    assert PolicyOverride.of(override.note) == PolicyOverride(reason=override.reason, values=values)
    assert PolicyOverride.of("") is None


@pytest.mark.parametrize(
    "note", ["changed", "x (stored instead: 5)", "x (stored instead: {)", f"x (stored instead: {'[' * 9_000})"]
)
def test_note_in_another_format_has_no_values(note: str) -> None:
    assert PolicyOverride.of(note) == PolicyOverride(reason=note, values={})
