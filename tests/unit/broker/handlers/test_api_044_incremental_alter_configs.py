"""IncrementalAlterConfigs on the wire."""

from __future__ import annotations

import asyncio

import pytest

from klamm.broker.handlers.api_044_incremental_alter_configs import API, ROUTE, handle
from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import ProtocolError
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.support.configs import SET, MemoryConfigStore, make_context, make_service, operation

# Topic t1: SET retention.ms=1000, APPEND cleanup.policy=compact, validate_only=false.
REQUEST_V0 = bytes.fromhex(
    "00000001 02 0002 7431 00000002 000c 726574656e74696f6e2e6d73 00 0004 31303030"
    "000e 636c65616e75702e706f6c696379 02 0007 636f6d70616374 00"
)
RESPONSE_V0 = bytes.fromhex("00000000 00000001 0000 ffff 02 0002 7431")


def answer(request: IncrementalAlterConfigsRequest, store: MemoryConfigStore) -> IncrementalAlterConfigsResponse:
    return asyncio.run(handle(request, make_context(make_service(store))))


def test_versions_0_and_1_are_served() -> None:
    """K339-01: The broker offers a new RPC IncrementalAlterConfigs; AlterConfigs stays.

    K339-05: Versions: v0 required; v1 is flexible (compact types, tags).
    """
    assert (API.key, API.min_version, API.max_version) == (44, 0, 1)
    assert ROUTE.request is IncrementalAlterConfigsRequest


def test_bytes_of_the_kip_are_decoded_and_answered() -> None:
    """K339-02: Request v0 body = array resources{int8 type, string name, array configs{string name, int8 op, nullable
    string value}}, then bool validate_only (after the array, not before).

    K339-03: Response has one element per resource with error code and nullable message.

    K339-29: Error text is returned in error_message on failure, null on success.
    """
    store = MemoryConfigStore(topics=["t1"])
    response = answer(decode(IncrementalAlterConfigsRequest, 0, REQUEST_V0), store)
    assert bytes(encode(response, 0)) == RESPONSE_V0
    assert {c.name: c.value for c in store.load_configs()} == {
        "retention.ms": "1000",
        "cleanup.policy": "delete,compact",
    }


def test_validate_only_follows_the_resources_on_the_wire() -> None:
    """K339-02: Request v0 body = array resources{int8 type, string name, array configs{string name, int8 op, nullable
    string value}}, then bool validate_only (after the array, not before).

    K339-21: validate_only=true validates (same errors) but changes nothing.
    """
    store = MemoryConfigStore(topics=["t1"])
    request = decode(IncrementalAlterConfigsRequest, 0, REQUEST_V0[:-1] + b"\x01")
    assert request.validate_only
    assert bytes(encode(answer(request, store), 0)) == RESPONSE_V0
    assert store.committed == []


def test_rejected_resource_has_code_and_message() -> None:
    """K339-20: Every requested resource appears once in the response.

    K339-29: Error text is returned in error_message on failure, null on success.
    """
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = IncrementalAlterConfigsRequest.AlterableConfig(name="retention.ms", config_operation=0, value="abc")
    request = IncrementalAlterConfigsRequest(
        resources=[
            resource(resource_type=2, resource_name="t1", configs=[config]),
            resource(resource_type=2, resource_name="t2", configs=[]),
        ]
    )
    response = answer(request, MemoryConfigStore(topics=["t1", "t2"]))
    assert [(r.error_code, r.error_message, r.resource_type, r.resource_name) for r in response.responses] == [
        (40, "Invalid value abc for configuration retention.ms: Not a number of type LONG", 2, "t1"),
        (0, None, 2, "t2"),
    ]


def test_resource_with_too_many_configs_counts_as_a_duplicate() -> None:
    # given
    store = MemoryConfigStore(topics=["t"])
    resource, config = IncrementalAlterConfigsRequest.AlterConfigsResource, operation("retention.ms", SET, "1")
    resources = [
        resource(resource_type=2, resource_name="t", configs=[config] * 10_001),
        resource(resource_type=2, resource_name="t", configs=[config]),
        resource(resource_type=2, resource_name="u", configs=[config] * 10_001),
    ]
    # when
    response = answer(IncrementalAlterConfigsRequest(resources=resources, validate_only=False), store)
    # then
    first, second, other = response.responses
    repeated = (42, "Each resource must appear at most once.")
    assert (first.error_code, first.error_message) == (second.error_code, second.error_message) == repeated
    assert (other.error_code, str(other.error_message)[:29]) == (42, "10001 configs of one resource")
    assert store.load_configs() == []


def test_history_records_principal_and_client_id() -> None:
    store = MemoryConfigStore(topics=["t1"])
    answer(decode(IncrementalAlterConfigsRequest, 0, REQUEST_V0), store)
    assert {(line.principal, line.client_id) for line in store.history} == {("User:anna", "tool")}


@pytest.mark.parametrize("version", [0, 1])
def test_null_resources_are_a_protocol_error(version: int) -> None:
    with pytest.raises(ProtocolError):
        decode(IncrementalAlterConfigsRequest, version, b"\xff\xff\xff\xff\x00" if version == 0 else b"\x00\x00\x00")
