"""Facts for predictions, read through the admin client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from unittest.mock import Mock
from uuid import UUID

import pytest

from klamm.admin import AdminClient
from klamm.admin.impact import impact_of
from klamm.impact.changes import ConfigAltered
from klamm.impact.facts import NO_NEED
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.describe_quorum import DescribeQuorumResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.types import ConfigSource, ResourceType
from tests.support.stub_broker import Request, StubBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.protocol.schema import Message

COMMITTED: Final = 10
CHANGE: Final = ConfigAltered(
    resource_type=ResourceType.TOPIC, resource_name="new", name="message.timestamp.type", value="LogAppendTime"
)
"""A change whose impact needs no facts but the topic and its configs."""


def described(_: Request) -> Message:
    result = DescribeConfigsResponse.DescribeConfigsResult(
        error_message=None, resource_type=int(ResourceType.TOPIC), resource_name="new", configs=[]
    )
    return DescribeConfigsResponse(results=[result])


class LaggingBroker(StubBroker):
    """A broker that applies the creation of its topic only while a client waits for committed metadata."""

    def __init__(self, *, knows_topic: bool = False, quorum_error: ErrorCode = ErrorCode.NONE) -> None:
        super().__init__(versions={ApiKey.DESCRIBE_QUORUM: (0, 1), ApiKey.DESCRIBE_CONFIGS: (1, 1)}, topic="new")
        self._knows_topic = knows_topic
        self._applied = iter([COMMITTED - 2, COMMITTED - 1])
        versions, metadata = self.handler(ApiKey.API_VERSIONS), self.handler(ApiKey.METADATA)

        def announced(request: Request) -> object:
            response = versions(request)
            assert isinstance(response, ApiVersionsResponse)
            if self.requests(ApiKey.DESCRIBE_QUORUM):
                response.finalized_features_epoch = next(self._applied, COMMITTED)
                self._knows_topic = response.finalized_features_epoch >= COMMITTED - 1
            return response

        def known(request: Request) -> object:
            response = metadata(request)
            assert isinstance(response, MetadataResponse)
            if not self._knows_topic:
                wanted = request.read(MetadataRequest)
                assert isinstance(wanted, MetadataRequest)
                response.topics = [
                    MetadataResponse.MetadataResponseTopic(
                        name=topic.name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    )
                    for topic in wanted.topics or []
                ]
            return response

        def quorum(_: Request) -> object:
            partition = DescribeQuorumResponse.PartitionData(high_watermark=COMMITTED)
            topic = DescribeQuorumResponse.TopicData(topic_name="__cluster_metadata", partitions=[partition])
            return DescribeQuorumResponse(error_code=quorum_error, topics=[topic])

        self.answer(ApiKey.API_VERSIONS, announced)
        self.answer(ApiKey.METADATA, known)
        self.answer(ApiKey.DESCRIBE_QUORUM, quorum)
        self.answer(ApiKey.DESCRIBE_CONFIGS, described)


@pytest.fixture
def denied(request: pytest.FixtureRequest) -> Iterator[AdminClient]:
    """A client that may not describe the cluster, of a broker that knows the topic or not."""
    error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    with (
        LaggingBroker(knows_topic=request.param, quorum_error=error) as broker,
        AdminClient(broker.bootstrap_servers) as admin,
    ):
        yield admin


def test_topic_that_a_lagging_broker_does_not_know_yet_has_its_impact() -> None:
    with LaggingBroker() as broker, AdminClient(broker.bootstrap_servers) as admin:
        impact = impact_of([CHANGE], admin)

    assert [finding.kind for finding in impact.findings] == ["timestamps_replaced"]
    assert (impact.missing, impact.unknown) == (NO_NEED, ())


@pytest.mark.parametrize("denied", [True], indirect=True)
def test_principal_without_describe_cluster_gets_the_impact_that_any_broker_knows(denied: AdminClient) -> None:
    impact = impact_of([CHANGE], denied)

    assert [finding.kind for finding in impact.findings] == ["timestamps_replaced"]
    assert impact.missing == NO_NEED
    assert [text.partition(" (")[0] for text in impact.unknown] == ["changes of topics in the last moments"]


@pytest.mark.parametrize("denied", [False], indirect=True)
def test_topic_unknown_to_any_broker_is_a_missing_fact_without_describe_cluster(denied: AdminClient) -> None:
    impact = impact_of([CHANGE], denied)

    assert impact.findings == ()
    assert impact.missing == ~NO_NEED


_TIMESTAMP_TYPE: Final = "log.message.timestamp.type"


def configured(node_id: int, own: str | None) -> StubBroker:
    """Return a broker with a replica of the topic that may set the timestamp type for itself."""
    values = {ConfigSource.DYNAMIC_BROKER_CONFIG: own, ConfigSource.DEFAULT_CONFIG: "CreateTime"}
    broker = StubBroker(versions={ApiKey.DESCRIBE_CONFIGS: (1, 1)}, topic="new")

    def describe(request: Request) -> Message:
        wanted = request.read(DescribeConfigsRequest)
        assert isinstance(wanted, DescribeConfigsRequest)
        results = []
        for resource in wanted.resources:
            is_topic = resource.resource_type == ResourceType.TOPIC
            assert is_topic or resource.resource_name == str(node_id)
            synonyms = [
                DescribeConfigsResponse.DescribeConfigsSynonym(name=_TIMESTAMP_TYPE, value=value, source=int(source))
                for source, value in values.items()
                if value is not None
            ]
            config = DescribeConfigsResponse.DescribeConfigsResourceResult(
                name="message.timestamp.type" if is_topic else _TIMESTAMP_TYPE,
                value=synonyms[0].value,
                config_source=synonyms[0].source,
                synonyms=synonyms,
            )
            results.append(
                DescribeConfigsResponse.DescribeConfigsResult(
                    error_message=None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=[config],
                )
            )
        return DescribeConfigsResponse(results=results)

    broker.answer(ApiKey.DESCRIBE_CONFIGS, describe)
    return broker


@pytest.mark.parametrize(("first", "second"), [("LogAppendTime", None), (None, "LogAppendTime")])
def test_removed_value_of_a_broker_has_its_impact_whichever_broker_describes_the_topic(
    first: str | None, second: str | None
) -> None:
    # given
    with configured(1, first) as one, configured(2, second) as two:
        brokers = {1: one, 2: two}
        partition = MetadataResponse.MetadataResponsePartition(leader_id=1, replica_nodes=[1, 2], isr_nodes=[1, 2])
        metadata = MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=broker.port)
                for node_id, broker in brokers.items()
            ],
            cluster_id="stub",
            controller_id=1,
            topics=[MetadataResponse.MetadataResponseTopic(name="new", topic_id=UUID(int=1), partitions=[partition])],
        )
        for broker in brokers.values():
            broker.answer(ApiKey.METADATA, lambda _: metadata)
        change = ConfigAltered(
            resource_type=ResourceType.BROKER, resource_name="1" if first else "2", name=_TIMESTAMP_TYPE, value=None
        )
        # when
        with AdminClient(one.bootstrap_servers) as admin:
            impact = impact_of([change], admin)
    # then
    assert [finding.kind for finding in impact.findings] == ["inherited_by_topics", "timestamps_replaced"]
    assert (impact.missing, impact.unknown) == (NO_NEED, ())


def test_brokers_that_cannot_be_listed_are_a_missing_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    change = ConfigAltered(
        resource_type=ResourceType.TOPIC, resource_name="new", name="max.message.bytes", value="10000"
    )
    with LaggingBroker(knows_topic=True) as broker, AdminClient(broker.bootstrap_servers) as admin:
        late = Mock(result=Mock(side_effect=TimeoutError("no broker answers")))
        monkeypatch.setattr(admin, "describe_cluster", lambda: late)
        impact = impact_of([change], admin)

    assert "the list of brokers (no broker answers)" in impact.unknown
