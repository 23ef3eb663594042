from __future__ import annotations

import pytest

from klamm.broker.groups.consumer.requests import MAX_PARTITIONS, MAX_SUBSCRIPTION_BYTES, check_heartbeat
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

JOIN: dict[str, object] = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout_ms": 1000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}
OWNED = [ConsumerGroupHeartbeatRequest.TopicPartitions(partitions=[0])]


@pytest.mark.parametrize(
    ("change", "version", "words"),
    [
        ({}, 1, None),
        ({"subscribed_topic_names": [], "server_assignor": "range"}, 1, None),
        ({"subscribed_topic_names": None, "subscribed_topic_regex": ""}, 1, None),
        ({"member_id": ""}, 0, None),
        ({"member_id": ""}, 1, "MemberId can't be empty."),
        ({"member_id": "", "member_epoch": 1}, 0, "MemberId can't be empty."),
        ({"member_id": "", "member_epoch": -1}, 0, "MemberId can't be empty."),
        ({"group_id": " "}, 1, "GroupId can't be empty."),
        ({"instance_id": ""}, 1, "InstanceId can't be empty."),
        ({"rack_id": ""}, 1, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, 1, "RebalanceTimeoutMs must be provided in first request."),
        ({"topic_partitions": None}, 1, "TopicPartitions must be empty when (re-)joining."),
        ({"topic_partitions": OWNED}, 1, "TopicPartitions must be empty when (re-)joining."),
        ({"subscribed_topic_names": None}, 1, "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null"),
        ({"member_epoch": -2}, 1, "InstanceId can't be null."),
        ({"member_epoch": -2, "instance_id": "i"}, 1, None),
        ({"member_epoch": -3}, 1, "MemberEpoch is invalid."),
        ({"subscribed_topic_names": [""] * (MAX_PARTITIONS + 1)}, 1, "The request has more than 200000"),
        ({"subscribed_topic_names": ["x" * MAX_SUBSCRIPTION_BYTES]}, 1, "The subscription of the member is larger"),
    ],
)
def test_heartbeat_requires_the_fields_of_its_purpose(
    change: dict[str, object], version: int, words: str | None
) -> None:
    request = ConsumerGroupHeartbeatRequest(**{**JOIN, **change})  # type: ignore[arg-type]

    if words is None:
        check_heartbeat(request, version, ("uniform", "range"))
        return
    with pytest.raises(KafkaApiError) as rejected:
        check_heartbeat(request, version, ("uniform", "range"))
    assert rejected.value.error_code is ErrorCode.INVALID_REQUEST
    assert (rejected.value.error_message or "").startswith(words)


def test_unknown_assignor_is_rejected() -> None:
    """K848-07."""
    request = ConsumerGroupHeartbeatRequest(**{**JOIN, "server_assignor": "sticky"})  # type: ignore[arg-type]

    with pytest.raises(
        KafkaApiError, match=r"ServerAssignor sticky is not supported. Supported assignors: range."
    ) as e:
        check_heartbeat(request, 1, ("range",))

    assert e.value.error_code is ErrorCode.UNSUPPORTED_ASSIGNOR
