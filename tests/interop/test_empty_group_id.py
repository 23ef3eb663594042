"""The empty group id in every request that names a group: the codes of real Kafka and of klamm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import uuid4

import klamm
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tests.support.internal_topics import GROUP, InternalTopicsAsker
from tests.support.processes import wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from tests.support.kafka import KafkaCluster

_NOT_YET: Final = frozenset({"COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"})


def codes(address: str) -> dict[str, str]:
    with WireClient(address) as client:
        InternalTopicsAsker(client, client).use(GROUP)
        topic_name = f"empty-group-id-{uuid4().hex}"
        client.create_topic(topic_name)
        wait_until(lambda: topic_name in client.topic_ids(), timeout_s=60, what="the broker to know the topic")
        deleted = OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name=topic_name, partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)]
        )
        committed = OffsetCommitRequest.OffsetCommitRequestTopic(
            name=topic_name,
            partitions=[OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
        )
        pending = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
            name=topic_name,
            partitions=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                    partition_index=0, committed_offset=1, committed_metadata=None
                )
            ],
        )
        in_transaction = TxnOffsetCommitRequest(
            transactional_id="t", group_id="", producer_id=1, producer_epoch=0, topics=[pending]
        )
        sync = SyncGroupRequest(group_id="", generation_id=1, member_id="m", assignments=[])
        answers = {
            "OffsetDelete": client.ask(
                OffsetDeleteRequest(group_id="", topics=[deleted]), OffsetDeleteResponse, 0
            ).error_code,
            "OffsetCommit": client.ask(OffsetCommitRequest(group_id="", topics=[committed]), OffsetCommitResponse, 2)
            .topics[0]
            .partitions[0]
            .error_code,
            "TxnOffsetCommit": client.ask(in_transaction, TxnOffsetCommitResponse, 2)
            .topics[0]
            .partitions[0]
            .error_code,
            "DescribeGroups": client.ask(DescribeGroupsRequest(groups=[""]), DescribeGroupsResponse, 0)
            .groups[0]
            .error_code,
            "Heartbeat": client.ask(
                HeartbeatRequest(group_id="", generation_id=1, member_id="m"), HeartbeatResponse, 0
            ).error_code,
            "SyncGroup": client.ask(sync, SyncGroupResponse, 0).error_code,
            "LeaveGroup": client.ask(LeaveGroupRequest(group_id="", member_id="m"), LeaveGroupResponse, 0).error_code,
            "DeleteGroups": client.ask(DeleteGroupsRequest(groups_names=[""]), DeleteGroupsResponse, 0)
            .results[0]
            .error_code,
        }
    return {name: ErrorCode(code).name for name, code in answers.items()}


def test_empty_group_id_gets_kafkas_error_codes(real_kafka: KafkaCluster) -> None:
    answers: list[dict[str, str]] = []

    def is_settled() -> bool:
        """Return whether the coordinator of the empty group id is loaded. Kafka loads each partition separately."""
        answers.append(codes(real_kafka.bootstrap_servers))
        return not _NOT_YET & set(answers[-1].values())

    wait_until(is_settled, timeout_s=30, what="the coordinator of the empty group id")
    theirs = answers[-1]
    with klamm.Broker() as broker:
        assert codes(broker.bootstrap_servers) == theirs
    assert theirs["OffsetDelete"] == theirs["TxnOffsetCommit"] == "INVALID_GROUP_ID"
