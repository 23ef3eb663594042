"""Values of entities, read and written through the admin client."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

from klamm.admin import AdminClient, ConfigResource, PolicyOverride, ResourceType
from klamm.admin.results import AlterConfigsResult, DescribeConfigsResult
from klamm.impact.changes import ClientConfigAltered
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import PolicyViolationError
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.describe_client_quotas import DescribeClientQuotasResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsResponse
from klamm.protocol.messages.describe_quorum import DescribeQuorumResponse
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from klamm.rollout.entities import Entities, RejectedSettingsError, changes_of
from klamm.rollout.record import Wave
from tests.support.stub_broker import NODE_ID, Request, StubBroker

ALIVE, DOWN = f"BROKER:{NODE_ID}", "BROKER:8"
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
        values = Entities(admin).values([ALICE]).values
    # then
    assert values == {ALICE: {"producer_byte_rate": "1000"}}


def test_values_of_other_brokers_are_read_while_one_is_down() -> None:
    # given
    broker_type, name = int(ResourceType.BROKER), str(NODE_ID)
    described = DescribeConfigsResponse.DescribeConfigsResult(
        error_message=None, resource_type=broker_type, resource_name=name, configs=[]
    )
    altered = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
        error_message=None, resource_type=broker_type, resource_name=name
    )
    apis = {int(ApiKey.DESCRIBE_CONFIGS): (1, 1), int(ApiKey.INCREMENTAL_ALTER_CONFIGS): (0, 0)}
    with StubBroker(versions=apis) as broker, AdminClient(broker.bootstrap_servers) as admin:
        broker.answer(ApiKey.DESCRIBE_CONFIGS, lambda _: DescribeConfigsResponse(results=[described]))
        broker.answer(ApiKey.INCREMENTAL_ALTER_CONFIGS, lambda _: IncrementalAlterConfigsResponse(responses=[altered]))
        # when
        present = Entities(admin).values([ALIVE, DOWN])
        with pytest.raises(RejectedSettingsError) as rejected:
            Entities(admin).write({entity: {"background.threads": "5"} for entity in (DOWN, ALIVE)})
    # then
    assert present.values == {ALIVE: {}}
    assert present.trouble == "BROKER:8 cannot be read: The cluster has no broker 8"
    assert str(rejected.value) == "BROKER:8: The cluster has no broker 8"


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionLostError("no broker responds")])
def test_cluster_that_does_not_respond_rejects_no_topic(error: Exception) -> None:
    """The roll-out continues once the cluster is back."""
    # given
    topic = ConfigResource(ResourceType.TOPIC, "t")
    described, altered = DescribeConfigsResult([topic]), AlterConfigsResult([topic])
    described.values()[topic].set_exception(error)
    altered.values()[topic].set_exception(error)
    admin = create_autospec(AdminClient, instance=True)
    admin.describe_configs.return_value = described
    admin.incremental_alter_configs.return_value = altered
    # then
    with pytest.raises(type(error)):
        Entities(admin).values(["TOPIC:t"])
    with pytest.raises(type(error)):
        Entities(admin).write({"TOPIC:t": {"retention.ms": "1"}})


def test_keys_that_a_policy_adds_are_among_the_stored_settings() -> None:
    # given
    topic = ConfigResource(ResourceType.TOPIC, "t")
    altered = AlterConfigsResult([topic])
    override = PolicyOverride(reason="set right", values={"retention.ms": "5", "min.insync.replicas": "2"})
    altered.values()[topic].set_result(override)
    admin = create_autospec(AdminClient, instance=True)
    admin.incremental_alter_configs.return_value = altered
    # when
    stored = Entities(admin).write({"TOPIC:t": {"retention.ms": "9", "flush.ms": None}}, validate_only=True)
    # then
    assert stored == {"TOPIC:t": {"retention.ms": "5", "flush.ms": None, "min.insync.replicas": "2"}}


def test_changes_of_client_configs_have_the_values_before_the_rollout() -> None:
    """A policy may remove a config that it denies."""
    waves = [Wave(name="all", settings={"USER:alice": {"acks": None}})]
    assert changes_of(waves, {"USER:alice": {"acks": "all"}}) == (
        ClientConfigAltered(entity=(("user", "alice"),), name="acks", value=None, value_before="all"),
    )


def test_rejection_has_the_stored_settings_of_the_other_entities() -> None:
    # given
    written, denied = ConfigResource(ResourceType.TOPIC, "a"), ConfigResource(ResourceType.TOPIC, "b")
    altered = AlterConfigsResult([written, denied])
    altered.values()[written].set_result(PolicyOverride(reason="too long", values={"retention.ms": "7"}))
    altered.values()[denied].set_exception(PolicyViolationError("no"))
    admin = create_autospec(AdminClient, instance=True)
    admin.incremental_alter_configs.return_value = altered
    # when
    with pytest.raises(RejectedSettingsError, match="TOPIC:b: no") as rejected:
        Entities(admin).write({"TOPIC:a": {"retention.ms": "30"}, "TOPIC:b": {"retention.ms": "30"}})
    # then
    assert rejected.value.stored == {"TOPIC:a": {"retention.ms": "7"}, "TOPIC:b": {"retention.ms": "30"}}
