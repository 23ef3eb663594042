"""Errors that end a membership or an observer. Another attempt fails in the same way until an operator acts."""

from __future__ import annotations

from typing import ClassVar

from klamm.protocol.errors import ErrorCode


class MembershipError(Exception):
    """The controller rejects this member, or the cluster is not the expected one."""

    error_code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    """Error code of the controller that caused it."""


class ClusterActionDeniedError(MembershipError):
    """The principal lacks CLUSTER_ACTION on the cluster, the right of brokers."""

    error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class WrongClusterError(MembershipError):
    """The cluster id is not the expected one."""

    error_code = ErrorCode.INCONSISTENT_CLUSTER_ID


class DuplicateBrokerError(MembershipError):
    """Another process is registered under the same node id and sends heartbeats."""

    error_code = ErrorCode.DUPLICATE_BROKER_REGISTRATION


class StaleBrokerError(MembershipError):
    """The registration was removed, or another process has replaced it.

    The member must not register again: whoever removed it may have given its partitions to other brokers.
    """

    error_code = ErrorCode.STALE_BROKER_EPOCH


class UnsupportedFeaturesError(MembershipError):
    """The cluster requires a feature level that is missing in the ranges with which the member registers."""

    error_code = ErrorCode.UNSUPPORTED_VERSION


class UnsupportedRecordError(MembershipError):
    """The metadata log holds a record in a version newer than this program can read."""

    error_code = ErrorCode.UNSUPPORTED_VERSION
