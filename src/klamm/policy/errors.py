"""Errors of the policies themselves."""

from __future__ import annotations

from klamm.protocol.errors import ErrorCode, KafkaApiError


class PolicyLoadError(Exception):
    """A configured policy cannot be loaded, so the broker must not start. The message names the property."""


class PolicyFailedError(KafkaApiError):
    """A policy failed instead of deciding. The client receives no details; the cause is in the log."""

    error_code = ErrorCode.UNKNOWN_SERVER_ERROR


class PolicyTimeoutError(KafkaApiError):
    """A policy exceeded its time limit, so the request was not applied. The code is one that clients do not retry."""

    error_code = ErrorCode.UNKNOWN_SERVER_ERROR


class ImpactUnknownError(KafkaApiError):
    """The impact of a change could not be determined, so a policy that depends on it denies the change.

    The message says which facts are missing.
    """

    error_code = ErrorCode.POLICY_VIOLATION


class ImpactNeeded(BaseException):
    """A policy has read ``details.impact``, which is not set. The server collects the facts and calls it again.

    In a test of a policy, pass ``impact`` to the functions of ``klamm.policy.testing``.
    """

    def __init__(self) -> None:
        super().__init__("details.impact is not set: in a test, make the details with impact=Impact(...)")
