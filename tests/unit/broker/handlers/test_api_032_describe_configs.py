"""DescribeConfigs on the wire."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from klamm.broker.handlers.api_032_describe_configs import API, handle
from klamm.configs.definitions import broker_configs
from klamm.configs.describe import documentation
from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.types import ResourceType
from klamm.storage.metadata.changes import PutConfig
from tests.support.configs import ANNA, SET, MemoryConfigStore, make_context, make_service, message_of, operation, topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.configs.service import ConfigService
    from klamm.configs.describe import DescribedConfig

Resource = DescribeConfigsRequest.DescribeConfigsResource


def describe(
    *resources: DescribeConfigsRequest.DescribeConfigsResource,
    service: ConfigService | None = None,
    synonyms: bool = False,
    documentation: bool = False,
) -> list[DescribeConfigsResponse.DescribeConfigsResult]:
    request = DescribeConfigsRequest(
        resources=list(resources), include_synonyms=synonyms, include_documentation=documentation
    )
    return message_of(asyncio.run(handle(request, make_context(service or make_service())))).results


def test_versions_1_to_4_are_served() -> None:
    assert (API.key, API.min_version, API.max_version) == (32, 1, 4)


def test_topic_config_is_described_with_value_source_type_and_synonyms() -> None:
    """K339-06: SET stores the value for the key."""
    service = make_service(
        MemoryConfigStore(configs=[PutConfig(resource_type=2, resource_name="t", name="flush.ms", value="5")])
    )
    (result,) = describe(
        Resource(resource_type=2, resource_name="t", configuration_keys=["flush.ms"]), service=service, synonyms=True
    )
    (config,) = result.configs
    assert (result.error_code, result.error_message) == (0, "")
    assert (config.value, config.config_source, config.config_type, config.read_only) == ("5", 1, 5, False)
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [("flush.ms", "5", 1)]
    assert config.documentation is None


def test_synonyms_are_returned_on_request() -> None:
    (result,) = describe(Resource(resource_type=2, resource_name="t", configuration_keys=None))
    assert len(result.configs) == 37
    assert all(config.synonyms == [] for config in result.configs)


def test_documentation_is_returned_on_request() -> None:
    resources = [
        Resource(resource_type=2, resource_name="t", configuration_keys=None),
        Resource(resource_type=4, resource_name="1", configuration_keys=None),
        Resource(resource_type=16, resource_name="s", configuration_keys=None),
        Resource(resource_type=32, resource_name="g", configuration_keys=None),
    ]
    for result in describe(*resources, documentation=True):
        undocumented = [config.name for config in result.configs if not config.documentation]
        assert undocumented == []
    for result in describe(*resources):
        assert {config.documentation for config in result.configs} == {None}


def test_missing_topic_has_an_empty_error_message() -> None:
    """K339-33: Unknown topic -> 3; empty topic name -> 42."""
    (result,) = describe(Resource(resource_type=2, resource_name="missing", configuration_keys=None))
    assert (result.error_code, result.error_message, result.configs) == (3, "", [])


def test_unknown_resource_type_fails_all_resources() -> None:
    results = describe(Resource(resource_type=2, resource_name="t"), Resource(resource_type=99, resource_name="x"))
    assert [(r.error_code, r.configs) for r in results] == [(42, []), (42, [])]


def test_secrets_are_not_described() -> None:
    """K339-24: Sensitive values are never returned by describe and are not lost when another key is altered."""
    under = "listener.name.internal.ssl.key.password"
    service = make_service(
        MemoryConfigStore(configs=[PutConfig(resource_type=4, resource_name="1", name=under, value="geheim")])
    )
    results = describe(
        Resource(resource_type=4, resource_name="1", configuration_keys=None), service=service, synonyms=True
    )
    assert b"geheim" not in encode(DescribeConfigsResponse(results=results), 4)
    (config,) = (config for config in results[0].configs if config.name == under)
    assert config.is_sensitive


def test_every_version_is_encoded_and_decoded() -> None:
    results = describe(Resource(resource_type=2, resource_name="t", configuration_keys=None), synonyms=True)
    for version in range(1, 5):
        again = decode(DescribeConfigsResponse, version, encode(DescribeConfigsResponse(results=results), version))
        assert [c.name for c in again.results[0].configs] == [c.name for c in results[0].configs]


def test_stored_names_longer_than_a_string_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """A data directory of an earlier version may hold them."""
    name, longest = "x" * 40_000, "x" * 32_767
    rows = [(4, "1", name), (4, "", name), (4, "1", longest), (32, name, "consumer.session.timeout.ms")]
    configs = [PutConfig(resource_type=kind, resource_name=of, name=key, value="50000") for kind, of, key in rows]
    service = make_service(MemoryConfigStore(configs=configs))
    results = describe(
        Resource(resource_type=4, resource_name="1", configuration_keys=None),
        Resource(resource_type=4, resource_name="", configuration_keys=None),
        service=service,
    )
    for version in range(1, 5):
        encode(DescribeConfigsResponse(results=results), version)
    assert [config.name for config in results[0].configs if config.name.startswith("x")] == [longest]
    assert list(service.resource_names(ResourceType.GROUP)) == []
    end = ", because a name may have at most 32767 bytes"
    assert [record.getMessage().removesuffix(end) for record in caplog.records] == [
        "BROKER '1': skipping the stored config 'xxxxxxxxxxxx...xxxxxxxxxxxxx'",
        "BROKER '': skipping the stored config 'xxxxxxxxxxxx...xxxxxxxxxxxxx'",
        "GROUP 'xxxxxxxxxxxx...xxxxxxxxxxxxx': skipping the stored config 'consumer.session.timeout.ms'",
    ]


def test_stored_segment_size_below_the_minimum_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """A data directory of an earlier version may hold it for an internal topic."""
    # given
    rows = [("segment.bytes", "102400"), ("cleanup.policy", "compact")]
    configs = [
        PutConfig(resource_type=2, resource_name="__consumer_offsets", name=name, value=value) for name, value in rows
    ]
    service = make_service(MemoryConfigStore(topics=["__consumer_offsets"], configs=configs))
    # when
    names = [name for name, _ in rows]
    (result,) = describe(
        Resource(resource_type=2, resource_name="__consumer_offsets", configuration_keys=names), service=service
    )
    # then
    assert result.error_code == ErrorCode.NONE
    assert {config.name: config.value for config in result.configs} == {
        "segment.bytes": "1073741824",
        "cleanup.policy": "compact",
    }
    assert service.topic_config("__consumer_offsets")["segment.bytes"] == 1_073_741_824
    assert "Topic __consumer_offsets: skipping a stored config: Invalid value 102400" in caplog.text


async def test_described_configs_are_durable_or_rolled_back() -> None:
    """K339-38: Changes survive a broker restart."""

    store = MemoryConfigStore()
    service = make_service(store)
    store.hold = store.fail_next = True
    flush = topic("t", operation("flush.ms", SET, "5"))
    change = asyncio.ensure_future(service.alter([flush], node_id=1, author=ANNA, validate_only=False))
    await asyncio.sleep(0)
    request = DescribeConfigsRequest(
        resources=[Resource(resource_type=2, resource_name="t", configuration_keys=["flush.ms"])]
    )
    reading = asyncio.ensure_future(handle(request, make_context(service)))
    await asyncio.sleep(0)
    assert not reading.done()
    store.release()
    service.load()
    await change
    (config,) = message_of(await reading).results[0].configs
    assert config.config_source == 5, "the value that was never stored is not shown"


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_body_in_pieces_equals_the_encoding_of_the_codec(version: int) -> None:
    service = make_service(
        MemoryConfigStore(configs=[PutConfig(resource_type=2, resource_name="t", name="flush.ms", value="5")])
    )
    request = DescribeConfigsRequest(
        resources=[
            Resource(resource_type=2, resource_name="t", configuration_keys=None),
            Resource(resource_type=2, resource_name="t", configuration_keys=["flush.ms", "none"]),
            Resource(resource_type=2, resource_name="t", configuration_keys=["none"]),
            Resource(resource_type=2, resource_name="absent", configuration_keys=None),
            Resource(resource_type=4, resource_name="1", configuration_keys=None),
            Resource(resource_type=4, resource_name="", configuration_keys=None),
            Resource(resource_type=8, resource_name="1", configuration_keys=None),
            Resource(resource_type=16, resource_name="m", configuration_keys=None),
            Resource(resource_type=32, resource_name="g", configuration_keys=None),
        ],
        include_synonyms=True,
        include_documentation=version >= 3,
    )

    answer = asyncio.run(handle(request, make_context(service)))

    written = b"".join(answer.buffers(version))
    assert written == encode(message_of(answer), version)
    assert len(decode(DescribeConfigsResponse, version, written).results) == 9


SHARED: dict[str, list[Resource]] = {
    "one broker": [Resource(resource_type=4, resource_name="1", configuration_keys=None)] * 500,
    "groups of default configs": [
        Resource(resource_type=32, resource_name=f"g{number}", configuration_keys=None) for number in range(500)
    ],
    "subscriptions of default configs": [
        Resource(resource_type=16, resource_name=f"m{number}", configuration_keys=None) for number in range(500)
    ],
    "keys with the same configs": [
        Resource(resource_type=4, resource_name="1", configuration_keys=["log.dirs", f"none-{number}"])
        for number in range(500)
    ],
}


@pytest.mark.parametrize("named", SHARED)
def test_equal_configs_of_many_resources_are_in_memory_once(named: str) -> None:
    request = DescribeConfigsRequest(resources=SHARED[named], include_synonyms=True, include_documentation=True)
    answer = asyncio.run(handle(request, make_context(make_service())))
    # when
    pieces = answer.buffers(4)
    # then
    assert len({id(result.configs) for result in answer.results}) == 1
    heads, bodies = pieces[0::2], pieces[1::2]
    assert len({id(body) for body in bodies}) == 1
    assert sum(map(len, heads)) < 500 * 100
    assert b"".join(pieces) == encode(message_of(answer), 4)


def test_equal_configs_of_a_topic_and_a_broker_keep_their_own_documentation() -> None:
    of_topic, of_broker = describe(
        Resource(resource_type=2, resource_name="t", configuration_keys=["compression.type"]),
        Resource(resource_type=4, resource_name="1", configuration_keys=["compression.type"]),
        synonyms=True,
        documentation=True,
    )
    assert of_topic.configs[0].synonyms == of_broker.configs[0].synonyms
    assert of_topic.configs[0].documentation == documentation(2, "compression.type")
    assert of_broker.configs[0].documentation == documentation(4, "compression.type")


def test_oversized_static_value_fails_each_resource_that_shares_it() -> None:
    service = make_service(static={"advertised.listeners": "x" * 40_000})
    request = DescribeConfigsRequest(resources=[Resource(resource_type=4, resource_name="1")] * 2)
    answer = asyncio.run(handle(request, make_context(service, api_version=4)))
    results = decode(DescribeConfigsResponse, 4, b"".join(answer.buffers(4))).results
    assert [(result.error_code, result.configs) for result in results] == [(-1, [])] * 2
    assert answer.error_codes() == (-1, -1)


@pytest.mark.parametrize("version", range(1, 5))
def test_oversized_static_value_fails_its_resource_only(version: int) -> None:
    """Kafka fails all of them; the connection stays open."""
    # given
    service = make_service(static={"advertised.listeners": "x" * 40_000})
    request = DescribeConfigsRequest(
        resources=[
            Resource(resource_type=4, resource_name="1", configuration_keys=None),
            Resource(resource_type=2, resource_name="t", configuration_keys=["flush.ms"]),
            Resource(resource_type=4, resource_name="1", configuration_keys=["node.id"]),
        ]
    )
    # when
    answer = asyncio.run(handle(request, make_context(service, api_version=version)))
    long, topic_, short = decode(DescribeConfigsResponse, version, b"".join(answer.buffers(version))).results
    # then
    assert (long.error_code, long.configs) == (-1, [])
    assert "advertised.listeners has more than 32767 bytes" in (long.error_message or "")
    assert [(result.error_code, len(result.configs)) for result in (topic_, short)] == [(0, 1), (0, 1)]
    assert answer.error_codes() == (-1, 0, 0)


def test_repeated_resource_is_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    service = make_service()
    described_names: list[str] = []
    described = service.describe

    def counted(
        resource_type: int, resource_name: str, keys: Sequence[str] | None, *, node_id: int
    ) -> tuple[DescribedConfig, ...]:
        described_names.append(resource_name)
        return described(resource_type, resource_name, keys, node_id=node_id)

    monkeypatch.setattr(service, "describe", counted)
    names = ["1", "01", "1", "001"] * 50
    results = describe(
        *(Resource(resource_type=4, resource_name=name, configuration_keys=None) for name in names), service=service
    )
    assert described_names == ["1"]
    assert [result.resource_name for result in results] == names
    assert {len(result.configs) for result in results} == {len(broker_configs().described)}
    # other keys and other resources are others
    describe(
        Resource(resource_type=4, resource_name="1", configuration_keys=["log.roll.ms"]),
        Resource(resource_type=4, resource_name="1", configuration_keys=[]),
        Resource(resource_type=4, resource_name="", configuration_keys=None),
        Resource(resource_type=2, resource_name="t", configuration_keys=None),
        service=service,
    )
    assert described_names[1:] == ["1", "", "t"]
