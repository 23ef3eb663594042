"""Errors that end a membership or an observer. Another attempt fails in the same way until an operator acts."""

from __future__ import annotations

from typing import ClassVar

from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.errors import ErrorCode, error_name


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

    The member must not register again: its partitions may have been given to other brokers.
    """

    error_code = ErrorCode.STALE_BROKER_EPOCH


class UnsupportedFeaturesError(MembershipError):
    """The cluster requires a feature level that is missing in the ranges with which the member registers."""

    error_code = ErrorCode.UNSUPPORTED_VERSION


class UnsupportedRecordError(MembershipError):
    """The metadata log holds a record in a version newer than this program can read."""

    error_code = ErrorCode.UNSUPPORTED_VERSION


def raise_for_metadata(error_code: int) -> None:
    """Raise the error of a response about the metadata log, unless the code is 0.

    Raises:
        MembershipError: The controller rejects the observer.
        ConnectionLostError: The controller is not the active one, or cannot respond at present.
    """
    match error_code:
        case ErrorCode.NONE:
            return
        case ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise ClusterActionDeniedError("Reading the metadata log requires CLUSTER_ACTION on the cluster")
        case ErrorCode.INCONSISTENT_CLUSTER_ID:
            raise WrongClusterError("The controllers belong to a cluster with another cluster id")
        case _:
            raise ConnectionLostError(f"Metadata log: {error_name(error_code)}")
