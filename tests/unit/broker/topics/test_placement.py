"""Placement of replicas, without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.topics.placement import UNSET, Placement, place_added_partitions, place_new_topic
from klamm.protocol.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    KafkaApiError,
    PolicyViolationError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def place(
    num_partitions: int = UNSET,
    replication_factor: int = UNSET,
    assignments: Mapping[int, Sequence[int]] | None = None,
    node_ids: Sequence[int] = (1, 2, 3),
) -> Placement:
    return place_new_topic(
        num_partitions=num_partitions,
        replication_factor=replication_factor,
        assignments=assignments,
        default_num_partitions=4,
        default_replication_factor=2,
        node_ids=node_ids,
        first=0,
    )


def test_unset_partitions_and_replication_factor_use_broker_defaults() -> None:
    """K108-17: No assignment: numbers filled (defaults resolved when -1), replicasAssignments None."""
    placement = place()
    assert (len(placement.partitions), placement.replication_factor, placement.is_manual) == (4, 2, False)


@given(count=st.integers(1, 50), replicas=st.integers(1, 5), first=st.integers(0, 4))
def test_leaders_are_spread_evenly_and_replicas_differ(count: int, replicas: int, first: int) -> None:
    placement = place_new_topic(
        num_partitions=count,
        replication_factor=replicas,
        assignments=None,
        default_num_partitions=1,
        default_replication_factor=1,
        node_ids=(1, 2, 3, 4, 5),
        first=first,
    )
    leaders = [brokers[0] for brokers in placement.partitions]
    counts = [leaders.count(node) for node in (1, 2, 3, 4, 5)]
    assert max(counts) - min(counts) <= 1
    assert all(len(set(brokers)) == replicas for brokers in placement.partitions)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"num_partitions": 0}, InvalidPartitionsError),
        ({"num_partitions": -2}, InvalidPartitionsError),
        ({"num_partitions": 10_000}, PolicyViolationError),
        ({"replication_factor": 0}, InvalidReplicationFactorError),
        ({"replication_factor": 4}, InvalidReplicationFactorError),
        ({"num_partitions": 1, "assignments": {0: [1]}}, InvalidRequestError),
        ({"replication_factor": 1, "assignments": {0: [1]}}, InvalidRequestError),
        ({"assignments": {0: [9]}}, InvalidReplicaAssignmentError),
        ({"assignments": {0: [1, 1]}}, InvalidReplicaAssignmentError),
        ({"assignments": {0: []}}, InvalidReplicaAssignmentError),
        ({"assignments": {0: [1], 1: [1, 2]}}, InvalidReplicaAssignmentError),
        ({"assignments": {0: [1], 2: [1]}}, InvalidReplicaAssignmentError),
    ],
)
def test_impossible_placements_are_rejected(arguments: dict[str, object], error: type[KafkaApiError]) -> None:
    """K108-08: numPartitions/replicationFactor together with replicaAssignments -> 42 before the policy runs."""
    with pytest.raises(error):
        place(**arguments)  # type: ignore[arg-type]


def test_manual_assignment_is_unchanged() -> None:
    """K108-16: Manual assignment: replicasAssignments filled, the two numbers unset."""
    placement = place(assignments={1: [2, 3], 0: [3, 1]})
    assert placement.partitions == ((3, 1), (2, 3))
    assert placement.is_manual


def test_added_partitions_continue_where_the_topic_ended() -> None:
    added = place_added_partitions(topic="t", current=[(1,), (2,)], count=4, assignments=None, node_ids=(1, 2, 3))
    assert added == ((3,), (1,))


@pytest.mark.parametrize(
    ("count", "assignments", "message"),
    [
        (2, None, "Topic already has 2 partition"),
        (1, None, "1 would not be an increase"),
        (4, [[1]], "only 1 assignment"),
        (3, [[1, 2]], "not consistent"),
        (10_003, None, "Excessively large number of additional partitions per request"),
    ],
)
def test_invalid_added_partitions_are_rejected(count: int, assignments: list[list[int]] | None, message: str) -> None:
    with pytest.raises(KafkaApiError, match=message):
        place_added_partitions(
            topic="t", current=[(1,), (2,)], count=count, assignments=assignments, node_ids=(1, 2, 3)
        )
