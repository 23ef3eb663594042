"""Requests of the mirror to its clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from klamm.mirror.cluster_admin import create_internal_topic, portions
from klamm.protocol.errors import InvalidReplicationFactorError
from tests.support.mirror_fakes import FakeCluster

if TYPE_CHECKING:
    from klamm.admin import NewTopic


def test_changes_are_split_into_portions_for_controller() -> None:
    """Apache Kafka 4.4: "Unable to perform excessively large batch operation." from 10,000 records on."""
    topics = [f"orders-{number}" for number in range(500)]
    dealt = list(portions(topics, lambda _: 21))
    assert [topic for portion in dealt for topic in portion] == topics
    assert max(21 * len(portion) for portion in dealt) < 10_000


def test_oversized_change_is_sent_alone() -> None:
    assert list(portions([1, 20_000, 2], lambda weight: weight)) == [[1], [20_000], [2]]


def test_no_changes_make_no_portion() -> None:
    assert list(portions([], lambda weight: weight)) == []


@pytest.mark.parametrize("is_there", [False, True])
def test_internal_topic_without_enough_brokers_is_rejected_unless_it_exists(*, is_there: bool) -> None:
    def place(_: NewTopic) -> NewTopic:
        raise InvalidReplicationFactorError("2 live brokers")

    target = FakeCluster(**({"offsets": 1} if is_there else {}))
    rejected = create_internal_topic(target, "offsets", replication_factor=3, place=place)
    assert (rejected is None) is is_there
    assert set(target.topics) == ({"offsets"} if is_there else set())


def test_existing_internal_topic_needs_no_controller() -> None:
    target = FakeCluster(offsets=1)
    with patch.object(target, "create_topics", side_effect=TimeoutError("no controller")):
        assert create_internal_topic(target, "offsets", replication_factor=3) is None
