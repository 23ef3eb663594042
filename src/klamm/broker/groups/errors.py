"""Errors of the group coordinator."""

from __future__ import annotations

from klamm.protocol.errors import ErrorCode, KafkaApiError


class GroupIdNotFoundError(KafkaApiError):
    """The group does not exist."""

    error_code = ErrorCode.GROUP_ID_NOT_FOUND


class InvalidGroupIdError(KafkaApiError):
    """The group id is missing, empty where it may not be, or too long."""

    error_code = ErrorCode.INVALID_GROUP_ID


class InvalidSessionTimeoutError(KafkaApiError):
    """The session timeout is outside ``group.min.session.timeout.ms`` to ``group.max.session.timeout.ms``."""

    error_code = ErrorCode.INVALID_SESSION_TIMEOUT


class UnknownMemberIdError(KafkaApiError):
    """The group has no such member, or no longer. The client has to join again without a member id."""

    error_code = ErrorCode.UNKNOWN_MEMBER_ID


class FencedInstanceIdError(KafkaApiError):
    """Another member has taken over this ``group.instance.id``."""

    error_code = ErrorCode.FENCED_INSTANCE_ID


class IllegalGenerationError(KafkaApiError):
    """The request belongs to another generation of the group."""

    error_code = ErrorCode.ILLEGAL_GENERATION


class InconsistentGroupProtocolError(KafkaApiError):
    """The member supports no protocol that all other members support, or has another protocol type."""

    error_code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class RebalanceInProgressError(KafkaApiError):
    """A rebalance is in progress: the member has to join again, or the leader's assignment is missing."""

    error_code = ErrorCode.REBALANCE_IN_PROGRESS


class MemberIdRequiredError(KafkaApiError):
    """The client has to join again with the member id in the response (KIP-394)."""

    error_code = ErrorCode.MEMBER_ID_REQUIRED


class NonEmptyGroupError(KafkaApiError):
    """The operation is not allowed while the group has members."""

    error_code = ErrorCode.NON_EMPTY_GROUP


class NotCoordinatorError(KafkaApiError):
    """This broker does not coordinate the group. The client has to look for the coordinator and retry."""

    error_code = ErrorCode.NOT_COORDINATOR


class CoordinatorNotAvailableError(KafkaApiError):
    """The coordinator is starting or stopping. Retriable."""

    error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class FencedMemberEpochError(KafkaApiError):
    """The member epoch does not match. The member has to give up its partitions and join again (KIP-848)."""

    error_code = ErrorCode.FENCED_MEMBER_EPOCH


class StaleMemberEpochError(KafkaApiError):
    """The request has another epoch than the member. The member gets the right one with its next heartbeat."""

    error_code = ErrorCode.STALE_MEMBER_EPOCH


class UnreleasedInstanceIdError(KafkaApiError):
    """Another member still uses the ``group.instance.id``."""

    error_code = ErrorCode.UNRELEASED_INSTANCE_ID


class UnsupportedAssignorError(KafkaApiError):
    """``group.consumer.assignors`` does not contain the requested assignor."""

    error_code = ErrorCode.UNSUPPORTED_ASSIGNOR


class InvalidRegularExpressionError(KafkaApiError):
    """RE2 does not accept the regular expression of a subscription."""

    error_code = ErrorCode.INVALID_REGULAR_EXPRESSION


class GroupMaxSizeReachedError(KafkaApiError):
    """The group has as many members as ``group.consumer.max.size`` allows."""

    error_code = ErrorCode.GROUP_MAX_SIZE_REACHED


def check_group_id(group_id: str) -> None:
    """Reject an empty group id. Only OffsetCommit and OffsetFetch accept one, for clients of the oldest versions.

    Raises:
        InvalidGroupIdError: The group id is empty.
    """
    if not group_id:
        raise InvalidGroupIdError
