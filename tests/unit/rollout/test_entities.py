"""Values of entities, read and written through the admin client."""

from __future__ import annotations

from klamm.admin import AdminClient
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.describe_client_quotas import DescribeClientQuotasResponse
from klamm.protocol.messages.describe_quorum import DescribeQuorumResponse
from klamm.rollout.entities import Entities
from tests.support.stub_broker import Request, StubBroker

ALICE = "QUOTA:user=alice"
COMMITTED = 10


def rate(value: float) -> DescribeClientQuotasResponse:
    entry = DescribeClientQuotasResponse.EntryData(
        entity=[DescribeClientQuotasResponse.EntityData(entity_type="user", entity_name="alice")],
        values=[DescribeClientQuotasResponse.ValueData(key="producer_byte_rate", value=value)],
    )
    return DescribeClientQuotasResponse(error_message=None, entries=[entry])


def test_quotas_are_those_of_the_committed_metadata() -> None:
    # given
    applied, offsets = 3, iter([3, 9, COMMITTED - 1])
    partition = DescribeQuorumResponse.PartitionData(high_watermark=COMMITTED)
    topic = DescribeQuorumResponse.TopicData(topic_name="__cluster_metadata", partitions=[partition])
    apis = {int(ApiKey.DESCRIBE_QUORUM): (0, 1), int(ApiKey.DESCRIBE_CLIENT_QUOTAS): (0, 1)}
    with StubBroker(versions=apis) as broker, AdminClient(broker.bootstrap_servers) as admin:
        admin.describe_cluster().result(60)
        announced = broker.handler(ApiKey.API_VERSIONS)

        def versions(request: Request) -> object:
            nonlocal applied
            response = announced(request)
            assert isinstance(response, ApiVersionsResponse)
            applied = response.finalized_features_epoch = next(offsets)
            return response

        broker.answer(ApiKey.API_VERSIONS, versions)
        broker.answer(ApiKey.DESCRIBE_QUORUM, lambda _: DescribeQuorumResponse(topics=[topic]))
        broker.answer(ApiKey.DESCRIBE_CLIENT_QUOTAS, lambda _: rate(1000 if applied == COMMITTED - 1 else 500))
        # when
        values = Entities(admin).values([ALICE])
    # then
    assert values == {ALICE: {"producer_byte_rate": "1000"}}
