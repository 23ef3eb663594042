"""Details that a policy receives."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from klamm.policy import (
    AlterConfigDetails,
    CreatePartitionsDetails,
    InvalidRequestError,
    InvalidRequestException,
    PolicyViolationError,
    PolicyViolationException,
    RequestMetadata,
    TopicDetails,
)


def test_details_are_built_in_the_order_of_the_kip() -> None:
    """K108-04: TopicDetails carries topic, numPartitions, replicationFactor, replicasAssignments (partition -> broker
    ids), configs.
    """
    details = TopicDetails("orders", 3, 2, None, {"retention.ms": "5"})
    assert (details.topic, details.num_partitions, details.replication_factor) == ("orders", 3, 2)
    assert details.replicas_assignments is None
    assert details.configs == {"retention.ms": "5"}
    assert RequestMetadata is TopicDetails


def test_denial_exceptions_have_kip_names() -> None:
    """K108-03: Interface CreateTopicPolicy.validate(TopicDetails) raises InvalidRequestException to deny."""
    assert (InvalidRequestException, PolicyViolationException) == (InvalidRequestError, PolicyViolationError)


def test_details_are_immutable() -> None:
    """K108-20: The policy cannot change the request (read-only maps)."""
    configs, assignments = {"retention.ms": "5"}, {0: [1, 2]}
    details = TopicDetails("orders", None, None, assignments, configs)
    with pytest.raises(TypeError):
        details.configs["retention.ms"] = "6"  # type: ignore[index]
    with pytest.raises(TypeError):
        details.replicas_assignments[0] = [3]  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        details.topic = "other"  # type: ignore[misc]
    configs["retention.ms"] = "7"
    assignments[0].append(3)
    assert details.configs == {"retention.ms": "5"}
    assert details.replicas_assignments == {0: (1, 2)}


@pytest.mark.parametrize(
    ("details", "names"),
    [
        (TopicDetails("t", 1, 1, None, {}, defaults={}), ("configs", "defaults")),
        (
            AlterConfigDetails("BROKER", "1", {}, {}, defaults={}, before={}),
            ("configs", "result", "defaults", "before"),
        ),
        (
            CreatePartitionsDetails(topic="t", num_partitions=1, new_num_partitions=2, configs={}, defaults={}),
            ("configs", "defaults"),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_mapping_of_the_details_can_be_changed(details: object, names: tuple[str, ...]) -> None:
    """K108-20: The policy cannot change the request (read-only maps)."""
    for name in names:
        with pytest.raises(TypeError):
            getattr(details, name)["retention.ms"] = "6"
