"""DescribeClientConfigs and AlterClientConfigs as the gateway answers them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.plan import EntryPlan
from klamm.client_configs.resolution import resolve
from klamm.gateway.apis import api_050_describe_client_configs, api_051_alter_client_configs
from klamm.gateway.apis.table import CLIENT_CONFIG_FILTERS
from klamm.protocol.errors import ErrorCode, UnsupportedVersionError
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.security.acls import AclOperation
from klamm.server.session import Session
from tests.support.alterations import alteration
from tests.support.gateway_context import FakeContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.client_configs.registrations import Registration
    from klamm.protocol.messages.alter_client_configs import AlterClientConfigsResponse
    from klamm.protocol.schema import Message

ALTER_CONFIGS, DESCRIBE_CONFIGS = AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS
UNAUTHORIZED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
ANNA = ClientConfigEntity.of_user("anna")
ANYONE = DescribeClientConfigsRequest.ComponentData(entity_type="user", match_type=2, match=None)


class ConfiguredGateway:
    """A gateway with one config, and an upstream that allows some operations on the cluster.

    As Kafka, the upstream reports them only to a client that may DESCRIBE the cluster.
    """

    def __init__(self, *operations: AclOperation, policy: bool = False, lacking: Sequence[type[Message]] = ()) -> None:
        self.operations = operations
        self.lacking = tuple(lacking)
        """Requests that the upstream does not serve."""
        self.rejection = ErrorCode.POLICY_VIOLATION if policy else ErrorCode.NONE
        """Answer to authorized alterations."""
        self.registered: list[Registration] = []
        self.altered: list[Any] = []
        configs = {ANNA: {"acks": "all"}}

        async def register(registration: Registration) -> None:
            self.registered.append(registration)

        async def alter(entries: Any, *, validate_only: bool, author: Any, slices: Any) -> tuple[EntryPlan, ...]:
            self.altered.append((entries, validate_only, author))
            return tuple(EntryPlan() for _ in entries)

        service = SimpleNamespace(
            configs=configs,
            registered={},
            check_loaded=lambda **_: None,
            resolve=lambda entity: resolve(configs, entity),
            register=register,
            alter=alter,
        )
        self.service = cast("Any", service)
        session = Session(connection_id=1, node_id=0, principal="User:anna", software_name="s", software_version="1")
        self.context = FakeContext(upstream=self.upstream, watch=SimpleNamespace(session=session))

    def upstream(self, request: Message) -> Message:
        if isinstance(request, self.lacking):
            raise UnsupportedVersionError(f"The broker does not offer {type(request).__name__}")
        if isinstance(request, DescribeClusterRequest):
            reported = self.operations if AclOperation.DESCRIBE in self.operations else ()
            return DescribeClusterResponse(cluster_authorized_operations=sum(1 << operation for operation in reported))
        if isinstance(request, DescribeConfigsRequest):
            described = DescribeConfigsResponse.DescribeConfigsResult(error_code=self.answer(DESCRIBE_CONFIGS))
            return DescribeConfigsResponse(results=[described])
        assert isinstance(request, IncrementalAlterConfigsRequest)
        assert request.validate_only
        altered = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
            error_code=self.answer(ALTER_CONFIGS) or self.rejection
        )
        return IncrementalAlterConfigsResponse(responses=[altered])

    def answer(self, operation: AclOperation) -> ErrorCode:
        return ErrorCode.NONE if operation in self.operations else ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    def describe(self, **fields: Any) -> DescribeClientConfigsResponse:
        defaults: dict[str, Any] = {"components": [ANYONE], "supported_configs": None, "strict": False}
        request = DescribeClientConfigsRequest(**{"resolve_entity": False, **defaults, **fields})
        return asyncio.run(api_050_describe_client_configs.describe(self.service, request, self.context))

    def alter(self) -> AlterClientConfigsResponse:
        return asyncio.run(
            api_051_alter_client_configs.alter(self.service, alteration({"anna": {"acks": "1"}}), self.context)
        )


@pytest.mark.parametrize("operations", [(DESCRIBE_CONFIGS,), (DESCRIBE_CONFIGS, AclOperation.DESCRIBE)])
def test_operator_with_cluster_right_gets_configs(operations: tuple[AclOperation, ...]) -> None:
    response = ConfiguredGateway(*operations).describe()
    (entry,) = response.entries or []
    assert [(value.key, value.value) for value in entry.values] == [("acks", "all")]


@pytest.mark.parametrize("operations", [(), (AclOperation.DESCRIBE, AclOperation.ALTER)])
def test_operator_without_cluster_right_is_rejected(operations: tuple[AclOperation, ...]) -> None:
    configured = ConfiguredGateway(*operations)
    described, altered = configured.describe(), configured.alter()
    assert (described.error_code, described.entries) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
    assert [entry.error_code for entry in altered.entries] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    assert altered.entries[0].entity[0].entity_name == "anna"
    assert configured.altered == []


@pytest.mark.parametrize("operations", [(ALTER_CONFIGS,), (ALTER_CONFIGS, AclOperation.DESCRIBE)])
@pytest.mark.parametrize("policy", [False, True])
def test_author_of_a_change_is_the_client(operations: tuple[AclOperation, ...], policy: bool) -> None:
    configured = ConfiguredGateway(*operations, policy=policy)
    assert [entry.error_code for entry in configured.alter().entries] == [ErrorCode.NONE]
    ((_, validate_only, author),) = configured.altered
    assert (validate_only, author.principal) == (False, "User:anna")


def test_right_is_found_out_from_an_upstream_without_describe_cluster() -> None:
    for operations, code in (((ALTER_CONFIGS, DESCRIBE_CONFIGS), ErrorCode.NONE), ((), UNAUTHORIZED)):
        configured = ConfiguredGateway(*operations, lacking=[DescribeClusterRequest])
        assert configured.describe().error_code == code
        assert [entry.error_code for entry in configured.alter().entries] == [code]


def test_right_that_the_upstream_cannot_show_is_missing() -> None:
    lacking = [DescribeClusterRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest]
    configured = ConfiguredGateway(ALTER_CONFIGS, DESCRIBE_CONFIGS, lacking=lacking)
    assert configured.describe().error_code == UNAUTHORIZED
    assert [entry.error_code for entry in configured.alter().entries] == [UNAUTHORIZED]


def test_application_needs_no_right_to_get_configs_and_register() -> None:
    configured = ConfiguredGateway()
    response = configured.describe(resolve_entity=True, components=[], supported_configs=["acks"])
    (entry,) = response.entries or []
    assert [(value.key, value.value) for value in entry.values] == [("acks", "all")]
    (registered,) = configured.registered
    assert (registered.entity.user, registered.client_information) == ("anna", "s/1")
    assert configured.context.called == []


def test_invalid_filter_is_rejected() -> None:
    response = ConfiguredGateway(DESCRIBE_CONFIGS).describe(components=[])
    assert (response.error_code, response.entries) == (ErrorCode.INVALID_REQUEST, None)


@pytest.mark.parametrize(("key", "body", "claimed"), [(50, b"\0\0\0\1" + b"\0" * 6, True), (50, b"\0\2\3", False)])
def test_scram_requests_are_left_to_the_upstream(key: int, body: bytes, claimed: bool) -> None:
    claims = CLIENT_CONFIG_FILTERS[key](ConfiguredGateway().service).claims
    assert claims is not None
    assert claims(memoryview(body)) is claimed
