"""Support for tests of policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.policy import InvalidRequestError, PolicyViolationError
from klamm.policy.testing import (
    a_config_change,
    a_deletion,
    a_topic,
    assert_allowed,
    assert_denied,
    make_policy,
    more_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.policy import DeleteTopicDetails, TopicDetails


class AtLeast:
    def configure(self, configs: Mapping[str, str]) -> None:
        self.least = int(configs["house.least"])

    def validate(self, details: TopicDetails) -> None:
        if (details.num_partitions or self.least) < self.least:
            raise PolicyViolationError(f"at least {self.least}")

    def validate_delete_topic(self, details: DeleteTopicDetails) -> None:
        raise InvalidRequestError("never")


class SaysNo:
    def validate(self, details: TopicDetails) -> bool:
        return not details.topic


def test_policy_that_returns_false_fails_its_test() -> None:
    for check in (assert_allowed, assert_denied):
        with pytest.raises(TypeError, match=r"^Create topic policy: it cannot return bool; raise PolicyViolationError"):
            check(SaysNo(), a_topic())


def test_policy_under_test_decides_as_in_a_broker() -> None:
    policy = make_policy(AtLeast, house_least="3")
    assert_allowed(policy, a_topic(num_partitions=3))
    assert_allowed(policy, a_topic(assignments={0: [1]}))
    assert_denied(policy, a_topic(num_partitions=2), match="at least 3", code="POLICY_VIOLATION")
    assert_denied(policy, a_deletion(), code="INVALID_REQUEST")


def test_failed_assertion_reports_the_actual_decision() -> None:
    policy = make_policy(AtLeast, house_least="3")
    with pytest.raises(AssertionError, match="denied with POLICY_VIOLATION: at least 3"):
        assert_allowed(policy, a_topic(num_partitions=1))
    with pytest.raises(AssertionError, match="allowed"):
        assert_denied(policy, a_topic(num_partitions=3))
    with pytest.raises(AssertionError, match="does not match"):
        assert_denied(policy, a_deletion(), match="sometimes")
    with pytest.raises(AssertionError, match="with INVALID_REQUEST, not POLICY_VIOLATION"):
        assert_denied(policy, a_deletion(), code="POLICY_VIOLATION")


def test_config_change_details_contain_result() -> None:
    change = a_config_change(sets={"a": "1"}, removes=["b"], before={"b": "2", "c": "3"})
    assert (dict(change.configs), dict(change.result)) == ({"a": "1", "b": None}, {"c": "3", "a": "1"})
    assert more_partitions(then=5, new_assignments=[[1]]).new_assignments == ((1,),)
