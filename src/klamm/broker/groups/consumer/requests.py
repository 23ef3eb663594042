"""ConsumerGroupHeartbeat requests: checks that do not depend on the group, and the topics of a regular expression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.groups.consumer.model import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH, UNCHANGED_MS
from klamm.broker.groups.errors import InvalidRegularExpressionError, UnsupportedAssignorError
from klamm.patterns import PatternError, full_matcher
from klamm.protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from klamm.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

FIRST_VERSION_WITH_OWN_MEMBER_ID: Final = 1
"""First version in which the client chooses the member id."""
MAX_SUBSCRIPTION_BYTES: Final = 1_048_588
"""Largest size of a member's ids and subscription. Kafka's limit for storing them (``message.max.bytes``)."""

MAX_PARTITIONS: Final = 200_000
"""Largest number of owned partitions, and of subscribed topics, in one request."""


def check_heartbeat(request: ConsumerGroupHeartbeatRequest, api_version: int, assignors: Sequence[str]) -> None:
    """Check the fields of a request.

    Raises:
        InvalidRequestError: A field is missing, or its value is not allowed.
        UnsupportedAssignorError: ``group.consumer.assignors`` does not contain the assignor.
    """
    epoch = request.member_epoch
    needs_id = api_version >= FIRST_VERSION_WITH_OWN_MEMBER_ID or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
    _reject_blank(request.member_id if needs_id else None, "MemberId can't be empty.")
    _reject_blank(request.group_id, "GroupId can't be empty.")
    _reject_blank(request.instance_id, "InstanceId can't be empty.")
    _reject_blank(request.rack_id, "RackId can't be empty.")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise InvalidRequestError("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise InvalidRequestError("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise UnsupportedAssignorError(
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}."
        )
    owned = sum(len(topic.partitions) for topic in request.topic_partitions or ())
    if max(owned, len(request.topic_partitions or ()), len(request.subscribed_topic_names or ())) > MAX_PARTITIONS:
        raise InvalidRequestError(f"The request has more than {MAX_PARTITIONS} partitions or topics.")
    texts = (request.member_id, request.instance_id, request.rack_id, request.subscribed_topic_regex)
    size = sum(len(text) for text in (*texts, *(request.subscribed_topic_names or ())) if text)
    if size > MAX_SUBSCRIPTION_BYTES:
        raise InvalidRequestError(f"The subscription of the member is larger than {MAX_SUBSCRIPTION_BYTES} bytes.")


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == UNCHANGED_MS:
        raise InvalidRequestError("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidRequestError("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidRequestError(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        )


def _reject_blank(text: str | None, message: str) -> None:
    if text is not None and not text.strip():
        raise InvalidRequestError(message)


def matching_topics(pattern: str, names: Iterable[str], may_describe: Callable[[str], bool]) -> frozenset[str]:
    """Return the topics that match a regular expression and that the principal may describe.

    Raises:
        InvalidRegularExpressionError: RE2 does not accept the expression, or it is too complex.
    """
    try:
        matches = full_matcher(pattern, is_from_client=True)
    except PatternError as error:
        raise InvalidRegularExpressionError(
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error.reason}."
        ) from error
    return frozenset(name for name in names if matches(name) and may_describe(name))
