"""What keeps klamm from being a broker of the target."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from klamm.kraft.errors import ClusterActionDeniedError
from klamm.mirror.progress.flow_progress import FlowFailedError
from klamm.mirror.replica import obstacles
from klamm.mirror.replica.remote_topics import ReplicaTopics
from klamm.mirror.replica.state import TopicStateStore
from klamm.mirror.settings.mirror import parse_settings
from klamm.properties import parse_properties
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.describe_quorum import DescribeQuorumResponse

FILE = """
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
B.bootstrap.controllers = c:9093
A->B.enabled = true
klamm.offsets = preserve
klamm.offsets.by = replica
klamm.replica.experimental = true
klamm.replica.node.id = 9
klamm.replica.listeners = klamm:9192
"""
(FLOW,) = parse_settings(parse_properties(FILE)).flows


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A target with the broker 1 and metadata.version 4.3, whose controllers accept the principal."""
    cluster = Mock(node_ids=frozenset({1}), topics={})
    cluster.connection.return_value.call.side_effect = [finalized(30), quorum(3000)]
    monkeypatch.setattr(obstacles, "connect", lambda _flow: cluster)
    cluster.channel = Mock()
    monkeypatch.setattr(obstacles, "ControllerChannel", lambda _settings: cluster.channel)
    return cluster


def finalized(level: int) -> ApiVersionsResponse:
    feature = ApiVersionsResponse.FinalizedFeatureKey(
        name="metadata.version", max_version_level=level, min_version_level=level
    )
    return ApiVersionsResponse(finalized_features=[feature])


def quorum(voter: int) -> DescribeQuorumResponse:
    voters = [DescribeQuorumResponse.ReplicaState(replica_id=voter)]
    partition = DescribeQuorumResponse.PartitionData(current_voters=voters)
    return DescribeQuorumResponse(topics=[DescribeQuorumResponse.TopicData(partitions=[partition])])


def test_node_id_of_a_controller_fails_the_flow(target: Mock) -> None:
    target.connection.return_value.call.side_effect = [finalized(30), quorum(9)]
    with pytest.raises(FlowFailedError, match=r"klamm.replica.node.id=9: a controller of cluster B has this id"):
        ReplicaTopics(FLOW, Mock(), 9).check_supported()


def test_target_that_allows_a_replica_has_no_obstacle(target: Mock) -> None:
    assert obstacles.obstacles(FLOW) == {}
    target.channel.close.assert_called_once_with()


def test_metadata_version_before_4_3_fails_the_flow(target: Mock) -> None:
    target.connection.return_value.call.side_effect = [finalized(29), quorum(3000)] * 2
    reason = obstacles.obstacles(FLOW)[""]
    assert reason.startswith("cluster B has metadata.version=29: expected 30 (4.3) or more")
    with pytest.raises(FlowFailedError, match=r"metadata.version=29"):
        ReplicaTopics(FLOW, Mock(), 9).check_supported()


def test_principal_without_cluster_action_is_named(target: Mock) -> None:
    target.channel.connection.side_effect = ClusterActionDeniedError("denied")
    expected = "the principal lacks CLUSTER_ACTION on cluster B, which brokers need"
    assert obstacles.obstacles(FLOW) == {"": expected}


def test_node_id_of_another_broker_is_named(target: Mock) -> None:
    target.node_ids = frozenset({1, 9})
    expected = "klamm.replica.node.id=9: another broker of cluster B has this id"
    assert obstacles.obstacles(FLOW) == {"": expected}


def test_node_id_of_klamm_itself_is_no_obstacle(target: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    target.node_ids = frozenset({1, 9})
    target.topics = {"mm2-offsets.A.internal": Mock()}
    monkeypatch.setattr(TopicStateStore, "read", lambda _self, cluster: Mock() if cluster is target else None)
    assert obstacles.obstacles(FLOW) == {}
    target.close.assert_called_once_with()
