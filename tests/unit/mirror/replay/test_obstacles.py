"""What keeps a flow from keeping offsets by replay."""

from __future__ import annotations

import contextlib
from unittest.mock import Mock

import pytest

from klamm.kafka_client.errors import ConnectionLostError, DeniedError
from klamm.mirror.replay import obstacles
from klamm.mirror.settings.mirror import parse_settings
from klamm.protocol.messages.describe_cluster import DescribeClusterResponse
from klamm.security.acls import AclOperation

(FLOW,) = parse_settings(
    {
        "clusters": "A,B",
        "A.bootstrap.servers": "a:9092",
        "B.bootstrap.servers": "b:9092",
        "A->B.enabled": "true",
        "klamm.offsets": "preserve",
    }
).flows


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A target with the broker 1, whose principal may do everything."""
    cluster = Mock(node_ids=frozenset({1}), topics={})
    may_alter = DescribeClusterResponse(cluster_authorized_operations=1 << AclOperation.ALTER)
    cluster.connection.return_value.call.return_value = may_alter
    connected = Mock(connected=lambda *_: contextlib.nullcontext(cluster))
    monkeypatch.setattr(obstacles, "Cluster", connected)
    return cluster


def test_target_without_any_transaction_so_far_is_no_obstacle(target: Mock) -> None:
    target.coordinator.side_effect = ConnectionLostError("The coordinator is not available.")
    assert obstacles.obstacles(FLOW, {"orders": 1}, {}) == {}


def test_principal_without_rights_is_named(target: Mock) -> None:
    target.connection.return_value.call.return_value = DescribeClusterResponse(cluster_authorized_operations=0)
    expected = "the principal lacks ALTER on the cluster, which markers in gaps need"
    assert obstacles.obstacles(FLOW, {"orders": 1}, {}) == {"": expected}
    target.coordinator.side_effect = DeniedError("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    with pytest.raises(DeniedError):
        obstacles.obstacles(FLOW, {"orders": 1}, {})
