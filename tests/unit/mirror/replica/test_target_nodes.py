"""Which nodes of the target are controllers, brokers with storage, and klamms."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock
from uuid import UUID

import pytest

from klamm.kafka_client.errors import ConnectionLostError, DeniedError
from klamm.kraft.log_dirs import log_dir_of
from klamm.mirror.replica.target_nodes import target_nodes
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.describe_quorum import DescribeQuorumResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

State = DescribeQuorumResponse.ReplicaState
STORED = UUID(int=5)
OF_KLAMM = log_dir_of("cluster", 9)


def cluster(live: set[int], voters: Mapping[int, UUID], observers: Mapping[int, UUID]) -> Mock:
    def states(nodes: Mapping[int, UUID]) -> list[State]:
        return [State(replica_id=each, replica_directory_id=log_dir) for each, log_dir in nodes.items()]

    partition = DescribeQuorumResponse.PartitionData(current_voters=states(voters), observers=states(observers))
    response = DescribeQuorumResponse(topics=[DescribeQuorumResponse.TopicData(partitions=[partition])])
    out = Mock(node_ids=frozenset(live))
    out.connection.return_value.call.return_value = response
    return out


@pytest.mark.parametrize(
    ("live", "voters", "observers", "expected"),
    [
        ({1, 2, 9}, {3000}, {1: STORED, 2: STORED, 9: OF_KLAMM, 10: OF_KLAMM}, ({3000}, {1, 2}, {9, 10})),
        ({1, 9}, {1}, {9: OF_KLAMM}, ({1}, {1}, {9})),
        ({1}, {3000}, {1: STORED, 2: STORED}, ({3000}, {1}, set())),
    ],
    ids=["controllers apart", "combined node", "dead broker"],
)
def test_brokers_without_storage_are_known_by_their_log_directory(
    live: set[int], voters: set[int], observers: Mapping[int, UUID], expected: tuple[set[int], set[int], set[int]]
) -> None:
    nodes = target_nodes(cluster(live, dict.fromkeys(voters, UUID(int=0)), observers))
    assert (set(nodes.controllers), set(nodes.brokers), set(nodes.klamms)) == expected
    assert nodes.broker == 1


def test_live_broker_that_the_controllers_do_not_know_is_none_yet() -> None:
    """It could be a klamm: a controller that was just elected learns of each when it fetches."""
    with pytest.raises(ConnectionLostError, match="do not know yet whether broker 9 is one"):
        target_nodes(cluster({1, 9}, {3000: STORED}, {1: STORED}))


def test_target_with_klamms_alone_has_no_broker() -> None:
    with pytest.raises(ConnectionLostError, match="no live broker with storage"):
        target_nodes(cluster({9}, {3000: STORED}, {9: OF_KLAMM}))


def rejected(error_code: ErrorCode, partition_code: ErrorCode = ErrorCode.NONE) -> Mock:
    out = cluster({1}, {}, {})
    response = out.connection.return_value.call.return_value
    response.error_code, response.topics[0].partitions[0].error_code = error_code, partition_code
    return out


def test_controllers_that_are_not_named_need_a_right() -> None:
    with pytest.raises(DeniedError, match="expected DESCRIBE on the cluster"):
        target_nodes(rejected(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        ((ErrorCode.NOT_LEADER_OR_FOLLOWER,), "NOT_LEADER_OR_FOLLOWER"),
        ((ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER), "NOT_LEADER_OR_FOLLOWER"),
        ((ErrorCode.INVALID_REQUEST,), "INVALID_REQUEST"),
        ((ErrorCode.NONE,), "no voters"),
    ],
)
def test_controllers_without_a_leader_are_awaited(codes: tuple[ErrorCode, ...], reason: str) -> None:
    """A controller that is not the leader answers with an error and no voters, as during an election."""
    with pytest.raises(ConnectionLostError, match=rf"does not name its controllers \(DescribeQuorum\): {reason}"):
        target_nodes(rejected(*codes))


def test_klamm_that_answers_no_strangers_is_not_asked_again() -> None:
    target = cluster({0, 1}, {3000: STORED}, {0: OF_KLAMM, 1: STORED})
    answers = {0: Mock(call=Mock(side_effect=ConnectionLostError("closed"))), 1: target.connection.return_value}
    target.connection.side_effect = answers.__getitem__
    assert target_nodes(target).brokers == {1}
    target.node_ids = frozenset({0})
    with pytest.raises(ConnectionLostError, match="closed"):
        target_nodes(target)
