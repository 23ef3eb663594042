"""DeleteRecords in a compacted topic: the configs of the topic during the call and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.replay import target_log
from klamm.mirror.replay.target_log import delete_before
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.types import ConfigOperation, ConfigSource

if TYPE_CHECKING:
    from collections.abc import Mapping

BROKERS = {"cleanup.policy": "delete", "retention.ms": "1000", "retention.bytes": "5"}
"""Configs of the brokers, which apply to a topic without configs of its own."""
PURGEABLE = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "-1"}


class Leader:
    """Leader of the partition, in place of its connection."""

    def __init__(self, own: Mapping[str, str]) -> None:
        self.own = dict(own)
        """Configs set on the topic."""
        self.may_describe = True
        self.calls_left = 10**9
        """Calls until the connection is lost."""
        self.deleted_with: list[dict[str, str]] = []
        """Configs of the topic at each DeleteRecords that was accepted."""

    def call(self, request: Any, _response: object, *, timeout_s: float) -> Any:
        assert timeout_s > 0
        self.calls_left -= 1
        if self.calls_left < 0:
            raise ConnectionLostError("power cut")
        if isinstance(request, DeleteRecordsRequest):
            return self._delete()
        if isinstance(request, DescribeConfigsRequest):
            return self._describe(request)
        assert isinstance(request, IncrementalAlterConfigsRequest)
        (resource,) = request.resources
        for config in resource.configs:
            if config.config_operation == ConfigOperation.DELETE:
                self.own.pop(config.name, None)
            else:
                assert config.value is not None
                self.own[config.name] = config.value
        resource_class = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
        return IncrementalAlterConfigsResponse(responses=[resource_class(error_code=0, error_message=None)])

    def _delete(self) -> DeleteRecordsResponse:
        is_allowed = "delete" in self.own["cleanup.policy"]
        if is_allowed:
            self.deleted_with.append(dict(self.own))
        code = ErrorCode.NONE if is_allowed else ErrorCode.POLICY_VIOLATION
        partition = DeleteRecordsResponse.DeleteRecordsPartitionResult(partition_index=0, error_code=code)
        return DeleteRecordsResponse(
            topics=[DeleteRecordsResponse.DeleteRecordsTopicResult(name="t", partitions=[partition])]
        )

    def _describe(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        result_class = DescribeConfigsResponse.DescribeConfigsResult
        if not self.may_describe:
            return DescribeConfigsResponse(results=[result_class(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)])
        entries = [
            DescribeConfigsResponse.DescribeConfigsResourceResult(
                name=name,
                value=self.own.get(name, BROKERS[name]),
                config_source=ConfigSource.DYNAMIC_TOPIC_CONFIG if name in self.own else ConfigSource.DEFAULT_CONFIG,
            )
            for name in request.resources[0].configuration_keys or ()
        ]
        return DescribeConfigsResponse(results=[result_class(error_code=0, resource_name="t", configs=entries)])


def delete(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_log, "leader_of", lambda *_: leader)
    cluster: Any = None
    delete_before(cluster, ("t", 0), 5)


@pytest.mark.parametrize(
    "own",
    [
        {"cleanup.policy": "compact"},
        {"cleanup.policy": "compact", "retention.ms": "7", "segment.bytes": "9"},
        {"cleanup.policy": "compact", "retention.ms": "7", "retention.bytes": "8"},
    ],
)
def test_compacted_topic_has_its_configs_again(own: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(own)
    delete(leader, monkeypatch)
    assert leader.deleted_with == [own | PURGEABLE]
    assert leader.own == own


def test_topic_with_policy_delete_keeps_its_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"cleanup.policy": "delete", "retention.ms": "7"}
    leader = Leader(own)
    delete(leader, monkeypatch)
    assert leader.deleted_with == [own]


@pytest.mark.parametrize("calls", range(5))
def test_compacted_topic_never_has_a_limited_retention(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"cleanup.policy": "compact", "retention.ms": "7"}
    leader = Leader(own)
    leader.calls_left = calls
    with pytest.raises(ConnectionLostError, match="power cut"):
        delete(leader, monkeypatch)
    assert leader.own in (own, own | PURGEABLE)


def test_topic_whose_configs_are_not_visible_is_compacted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader({"cleanup.policy": "compact", "retention.ms": "7"})
    leader.may_describe = False
    delete(leader, monkeypatch)
    assert leader.own == {"cleanup.policy": "compact"}
