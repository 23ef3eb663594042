"""The demo's topic policy."""

from __future__ import annotations

import pytest

from examples.demo.policy import FewPartitions
from klamm.policy import PolicyViolationError, TopicDetails


def test_twelve_partitions_are_allowed() -> None:
    FewPartitions().validate(TopicDetails("flights", 12, 1, None, {}))


def test_denial_names_topic_partitions_and_limit() -> None:
    with pytest.raises(PolicyViolationError, match="topic flights asks for 13 partitions; at most 12 are allowed here"):
        FewPartitions().validate(TopicDetails("flights", 13, 1, None, {}))


def test_partitions_given_by_assignment_are_counted() -> None:
    with pytest.raises(PolicyViolationError, match="13 partitions"):
        FewPartitions().validate(TopicDetails("flights", None, None, dict.fromkeys(range(13), (1,)), {}))
