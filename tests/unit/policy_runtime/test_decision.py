"""A policy has checked exactly what is applied, despite concurrent changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from klamm.policy import Override, PolicyFailedError
from klamm.policy_runtime.decision import TWICE, Revision, decide_and_check
from klamm.protocol.errors import KafkaApiError, PolicyViolationError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from collections.abc import Callable


class DecidedValues:
    """Values that a decision depends on, and a policy. ``meanwhile`` runs during the policy's first call."""

    def __init__(self, values: dict[str, int], meanwhile: Callable[[DecidedValues], None] = lambda _: None) -> None:
        self.values = values
        self.revision = Revision()
        self.decided = 0
        self.asked: list[tuple[str, int]] = []
        self._meanwhile: Callable[[DecidedValues], None] | None = meanwhile

    def change(self, name: str, value: int | None) -> None:
        self.revision.advance()
        if value is None:
            del self.values[name]
        else:
            self.values[name] = value

    def decide(self, *names: str) -> list[tuple[str, int] | KafkaApiError]:
        self.decided += 1
        return [(name, self.values[name]) if name in self.values else UnknownTopicOrPartitionError() for name in names]

    async def check(self, details: tuple[str, int], overridden: Override | None = None) -> None:
        self.asked.append(details)
        await asyncio.sleep(0)
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile(self)
        if details[1] < 0:
            raise PolicyViolationError("no")

    def run(self, *names: str) -> list[tuple[str, int] | KafkaApiError]:
        return asyncio.run(
            decide_and_check(lambda: self.decide(*names), lambda decision: decision, self.check, self.revision)
        )


def test_unchanged_state_is_decided_and_checked_once() -> None:
    decided_values = DecidedValues({"a": 1, "b": 2})
    assert decided_values.run("a", "b") == [("a", 1), ("b", 2)]
    assert (decided_values.decided, decided_values.asked) == (1, [("a", 1), ("b", 2)])


def test_concurrent_change_repeats_decision_and_checks_only_differences() -> None:
    decided_values = DecidedValues({"a": 1, "b": 2}, lambda decided_values: decided_values.change("a", 3))
    assert decided_values.run("a", "b") == [("a", 3), ("b", 2)]
    assert (decided_values.decided, decided_values.asked) == (2, [("a", 1), ("b", 2), ("a", 3)])


def test_unrelated_change_does_not_repeat_the_check() -> None:
    decided_values = DecidedValues({"a": 1}, lambda decided_values: decided_values.change("c", 3))
    assert decided_values.run("a") == [("a", 1)]
    assert (decided_values.decided, decided_values.asked) == (2, [("a", 1)])


def test_denial_is_dropped_when_its_decision_changes() -> None:
    decided_values = DecidedValues({"a": -1, "b": -2}, lambda decided_values: decided_values.change("a", 1))
    first, second = decided_values.run("a", "b")
    assert first == ("a", 1)
    assert isinstance(second, PolicyViolationError)
    assert second.__traceback__ is None, "it would keep the frames of the request alive until a garbage collection"
    assert decided_values.asked == [("a", -1), ("b", -2), ("a", 1)]


class OverriddenValues(DecidedValues):
    """DecidedValues whose policy lowers values above 10 to 10."""

    def __init__(self, values: dict[str, int]) -> None:
        super().__init__(values)
        self.overridden: list[Override | None] = []
        self.names = tuple(values)

    async def judge(self, details: tuple[str, int], overridden: Override | None) -> Override | None:
        await self.check(details)
        self.overridden.append(overridden)
        name, value = details
        return None if value <= 10 else Override(reason=f"{name} is too large", num_partitions=10)

    async def apply(self, index: int, override: Override) -> None:
        self.values[self.names[index]] = override.num_partitions or 0

    def run_with_overrides(self) -> list[tuple[str, int] | KafkaApiError]:
        decide = lambda: self.decide(*self.names)  # noqa: E731
        return asyncio.run(decide_and_check(decide, lambda each: each, self.judge, self.revision, self.apply))


def test_overridden_decision_is_decided_and_checked_again() -> None:
    decided_values = OverriddenValues({"a": 1, "b": 20})
    assert decided_values.run_with_overrides() == [("a", 1), ("b", 10)]
    assert (decided_values.decided, decided_values.asked) == (2, [("a", 1), ("b", 20), ("b", 10)])
    assert decided_values.overridden == [None, None, Override(reason="b is too large", num_partitions=10)]


def test_policy_checks_the_result_of_an_override_that_changes_nothing() -> None:
    decided_values = OverriddenValues({"a": 1})
    override = Override(reason="as it is", num_partitions=1)

    async def judge(details: tuple[str, int], overridden: Override | None) -> Override | None:
        await decided_values.judge(details, overridden)
        if overridden is not None:
            raise PolicyFailedError(TWICE)
        return override

    decide = lambda: decided_values.decide("a")  # noqa: E731
    (outcome,) = asyncio.run(
        decide_and_check(decide, lambda each: each, judge, decided_values.revision, decided_values.apply)
    )
    assert isinstance(outcome, PolicyFailedError)
    assert decided_values.overridden == [None, override]


def test_failed_decision_is_not_passed_to_policy() -> None:
    decided_values = DecidedValues({"a": 1}, lambda decided_values: decided_values.change("a", None))
    (outcome,) = decided_values.run("a")
    assert isinstance(outcome, UnknownTopicOrPartitionError)
    assert decided_values.asked == [("a", 1)]
