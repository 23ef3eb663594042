"""Config changes as keyword arguments become the operations of KIP-339."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from klamm.admin import AdminClient, AlterConfigOp, ConfigEntry, ConfigResource, NewTopic, OpType, ResourceType
from klamm.admin._calls import operations
from klamm.admin.results import PerKeyResult

if TYPE_CHECKING:
    import klamm


def test_keyword_arguments_become_operations() -> None:
    changes = operations(
        set={"retention.ms": 60_000, "preallocate": False},
        append={"cleanup.policy": ["compact", "delete"]},
        subtract={"cleanup.policy": "delete"},
        delete=["segment.ms"],
    )
    assert changes == [
        AlterConfigOp(ConfigEntry("retention.ms", "60000"), OpType.SET),
        AlterConfigOp(ConfigEntry("preallocate", "false"), OpType.SET),
        AlterConfigOp(ConfigEntry("cleanup.policy", "compact,delete"), OpType.APPEND),
        AlterConfigOp(ConfigEntry("cleanup.policy", "delete"), OpType.SUBTRACT),
        AlterConfigOp(ConfigEntry("segment.ms", None), OpType.DELETE),
    ]


def test_single_string_as_delete_list_raises_type_error() -> None:
    with pytest.raises(TypeError, match=r"delete=\['retention\.ms'\]"):
        operations(set={}, append={}, subtract={}, delete="retention.ms")


@pytest.mark.parametrize("value", [None, b"5", {"5": 1}, ["5", None], timedelta(days=1)])
def test_value_that_cannot_be_a_config_raises_type_error_with_its_key(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^Invalid value for retention\.ms: expected a string, a number, a boolean or"):
        operations(set={"retention.ms": value}, append={}, subtract={}, delete=[])


async def test_result_is_awaitable_and_supports_blocking_wait() -> None:
    # given
    result: PerKeyResult[str, int] = PerKeyResult(["a", "b"])

    def settle() -> None:
        result.succeed("a", 1)
        result.succeed("b", 2)

    timer = threading.Timer(0.05, settle)
    timer.start()

    # then
    assert (await result, await result.values()["b"]) == ({"a": 1, "b": 2}, 2)
    assert result.result(0) == {"a": 1, "b": 2}
    timer.join()


async def test_awaited_result_raises_the_first_error() -> None:
    result: PerKeyResult[str, int] = PerKeyResult(["a"])
    result.fail("a", ValueError("no"))

    with pytest.raises(ValueError, match="no"):
        await result


@pytest.mark.process
def test_topic_and_broker_configs_are_changed_by_keyword(klamm_broker: klamm.Broker) -> None:
    with AdminClient(klamm_broker.bootstrap_servers) as admin:
        # given
        admin.create_topics([NewTopic(name="orders", num_partitions=1)]).result()
        # when
        admin.alter_topic_configs("orders", set={"retention.ms": 1000}, append={"cleanup.policy": "compact"}).result()
        admin.alter_topic_configs("orders", delete=["retention.ms"], validate_only=True).result()
        admin.alter_broker_configs(None, set={"log.retention.ms": 5000}).result()
        # then
        configs = admin.topic_configs("orders").result()
        assert (configs["retention.ms"].value, configs["cleanup.policy"].value) == ("1000", "delete,compact")
        assert (
            admin.describe_configs([ConfigResource(ResourceType.BROKER, "")])
            .result()[ConfigResource(ResourceType.BROKER, "")]["log.retention.ms"]
            .value
            == "5000"
        )


@pytest.mark.process
def test_any_mapping_selects_keys_to_describe(klamm_broker: klamm.Broker) -> None:
    resource = ConfigResource(ResourceType.TOPIC, "orders")
    with AdminClient(klamm_broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name="orders", num_partitions=1)]).result()
        described = admin.describe_configs(MappingProxyType({resource: ["retention.ms"]})).result()
    assert set(described[resource]) == {"retention.ms"}
