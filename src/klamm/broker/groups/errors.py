"""Refusals of the group coordinator."""

from __future__ import annotations

from klamm.protocol.errors import ErrorCode, KafkaApiError


class GroupIdNotFoundError(KafkaApiError):
    """No such group."""

    error_code = ErrorCode.GROUP_ID_NOT_FOUND


class InvalidGroupIdError(KafkaApiError):
    """The group id is missing, empty where it may not be, or too long to keep."""

    error_code = ErrorCode.INVALID_GROUP_ID


class InvalidSessionTimeoutError(KafkaApiError):
    """The session timeout is outside what ``group.min.session.timeout.ms`` and ``max`` allow."""

    error_code = ErrorCode.INVALID_SESSION_TIMEOUT


class UnknownMemberIdError(KafkaApiError):
    """The group does not have this member (any more): it has to join anew without an id."""

    error_code = ErrorCode.UNKNOWN_MEMBER_ID


class FencedInstanceIdError(KafkaApiError):
    """Another member has taken over this ``group.instance.id``."""

    error_code = ErrorCode.FENCED_INSTANCE_ID


class IllegalGenerationError(KafkaApiError):
    """The request belongs to another generation of the group."""

    error_code = ErrorCode.ILLEGAL_GENERATION


class InconsistentGroupProtocolError(KafkaApiError):
    """The member's protocol is not the group's."""

    error_code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class RebalanceInProgressError(KafkaApiError):
    """The group waits for its leader's assignment."""

    error_code = ErrorCode.REBALANCE_IN_PROGRESS


class NonEmptyGroupError(KafkaApiError):
    """The group has members, so this may not be done to it."""

    error_code = ErrorCode.NON_EMPTY_GROUP


class NotCoordinatorError(KafkaApiError):
    """Ask again where the group's coordinator is."""

    error_code = ErrorCode.NOT_COORDINATOR


class CoordinatorNotAvailableError(KafkaApiError):
    """The coordinator is about to stop: ask again in a while."""

    error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE


def check_group_id(group_id: str) -> None:
    """Reject the empty group id. OffsetCommit and OffsetFetch alone accept it, for clients of the oldest versions.

    Raises:
        InvalidGroupIdError: The group id is empty.
    """
    if not group_id:
        raise InvalidGroupIdError
