"""Client quotas in a running broker (KIP-546), by raw requests."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from klamm.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from tests.support.kafka_tools import run_tool
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from pathlib import Path

Entity = tuple[tuple[str, str | None], ...]
ANNA: Entity = (("user", "anna"),)


def alter(
    client: WireClient, *entries: tuple[Entity, dict[str, float | None]], validate_only: bool = False, version: int = 1
) -> list[tuple[int, str | None]]:
    request = AlterClientQuotasRequest(
        validate_only=validate_only,
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[
                    AlterClientQuotasRequest.EntityData(entity_type=entity_type, entity_name=name)
                    for entity_type, name in entity
                ],
                ops=[
                    AlterClientQuotasRequest.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in quotas.items()
                ],
            )
            for entity, quotas in entries
        ],
    )
    answer = client.ask(request, AlterClientQuotasResponse, version)
    return [(entry.error_code, entry.error_message) for entry in answer.entries]


def describe(client: WireClient, *, version: int = 1) -> dict[Entity, dict[str, float]]:
    answer = client.ask(DescribeClientQuotasRequest(components=[], strict=False), DescribeClientQuotasResponse, version)
    assert answer.error_code == 0
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {v.key: v.value for v in entry.values}
        for entry in answer.entries or ()
    }


def test_quotas_are_described_and_survive_a_kill(tmp_path: Path) -> None:
    both: Entity = (("client-id", None), ("user", "anna"))
    with klamm.Broker(data_dir=tmp_path) as broker:
        with WireClient(broker.bootstrap_servers) as client:
            assert (
                alter(
                    client,
                    (ANNA, {"producer_byte_rate": 1024.0, "request_percentage": 12.5}),
                    (both, {"consumer_byte_rate": 5.0}),
                    ((("ip", "10.0.0.1"),), {"connection_creation_rate": 3.0}),
                )
                == [(0, None)] * 3
            )
            assert alter(client, (ANNA, {"request_percentage": None}), version=0) == [(0, None)]
            assert alter(client, (ANNA, {"producer_byte_rate": 7.0}), validate_only=True) == [(0, None)]
        broker.kill()
        broker.start()
        with WireClient(broker.bootstrap_servers) as client:
            assert (
                describe(client)
                == describe(client, version=0)
                == {
                    ANNA: {"producer_byte_rate": 1024.0},
                    (("user", "anna"), ("client-id", None)): {"consumer_byte_rate": 5.0},
                    (("ip", "10.0.0.1"),): {"connection_creation_rate": 3.0},
                }
            )


def test_rejected_quota_entity_does_not_affect_others() -> None:
    with klamm.Broker() as broker, WireClient(broker.bootstrap_servers) as client:
        answers = alter(
            client,
            (ANNA, {"producer_byte_rate": 1.0}),
            ((("user", "ben"),), {"producer_byte_rate": 1.0, "acks": 1.0}),
            ((("user", "cleo"),), {"producer_byte_rate": 1.0}),
            ((("user", "cleo"),), {"producer_byte_rate": 2.0}),
        )
        assert [code for code, _ in answers] == [0, 42, 42, 42]
        assert answers[1][1] == "Invalid configuration key acks"
        assert describe(client) == {ANNA: {"producer_byte_rate": 1.0}}


def test_quotas_and_client_configs_are_separate() -> None:
    """K649-28: Quota keys of the same entity never appear here, and client configs never appear in
    DescribeClientQuotas.
    """
    with klamm.Broker() as broker, WireClient(broker.bootstrap_servers) as client:
        assert alter(client, (ANNA, {"session.timeout.ms": 6000.0})) == [
            (42, "Invalid configuration key session.timeout.ms")
        ]
        assert alter(client, (ANNA, {"producer_byte_rate": 1.0})) == [(0, None)]
        resource = DescribeConfigsRequest.DescribeConfigsResource(resource_type=4, resource_name="1")
        answer = client.ask(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, 4)
        assert not {config.name for config in answer.results[0].configs} & {"producer_byte_rate"}


def test_kafkas_own_tool_sets_and_shows_quotas() -> None:
    with klamm.Broker() as broker:

        def tool(*flags: str) -> str:
            return run_tool("kafka.admin.ConfigCommand", "--bootstrap-server", broker.bootstrap_servers, *flags).strip()

        quotas = "producer_byte_rate=1024,request_percentage=50"
        assert (
            tool("--alter", "--entity-type", "users", "--entity-name", "anna", "--add-config", quotas)
            == "Completed updating config for user anna."
        )
        shown = tool("--describe", "--entity-type", "users")
        prefix, _, values = shown.partition(" are ")
        assert prefix == "Quota configs for user-principal 'anna'"
        assert set(values.split(", ")) == {"producer_byte_rate=1024.0", "request_percentage=50.0"}
        with pytest.raises(subprocess.CalledProcessError) as rejected:
            tool(
                "--alter", "--entity-type", "ips", "--entity-name", "::1", "--add-config", "connection_creation_rate=0"
            )
        assert "InvalidRequestException: Quota connection_creation_rate must be greater than 0" in rejected.value.stderr
