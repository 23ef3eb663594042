"""Errors that end a membership or an observer. Another attempt fails in the same way until an operator acts."""

from __future__ import annotations

from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.errors import ErrorCode, error_name


class MembershipError(Exception):
    """The controller rejects this member, or the cluster is not the expected one."""


class ClusterActionDeniedError(MembershipError):
    """The principal lacks CLUSTER_ACTION on the cluster, the right of brokers."""


class WrongClusterError(MembershipError):
    """The cluster id is not the expected one."""


class DuplicateBrokerError(MembershipError):
    """Another process is registered under the same node id and sends heartbeats."""


class StaleBrokerError(MembershipError):
    """The registration was removed, or another process has replaced it.

    The member must not register again: its partitions may have been given to other brokers.
    """


class UnsupportedFeaturesError(MembershipError):
    """The cluster requires a feature level that is missing in the ranges with which the member registers."""


class UnsupportedRecordError(MembershipError):
    """The metadata log holds a record in a version newer than this program can read."""


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
