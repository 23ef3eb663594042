"""Interceptors of the APIs that the configured policies decide on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from klamm.gateway.apis import NO_LIMITS
from klamm.gateway.policies.alter_configs import INCREMENTAL, LEGACY, AlterConfigsJudge
from klamm.gateway.policies.clients import ClientJudge
from klamm.gateway.policies.create_partitions import CreatePartitionsJudge
from klamm.gateway.policies.create_topics import CreateTopicsJudge
from klamm.gateway.policies.delete_topics import DeleteTopicsJudge
from klamm.gateway.policies.facts import topic_config_types
from klamm.gateway.policies.flows import JOINS_UNSEEN, LAST_WITH_NAMES, FlowJudge
from klamm.gateway.policies.metadata import MetadataJudge
from klamm.gateway.policies.reassignments import ReassignmentsJudge
from klamm.gateway.policies.turns import ResourceTurns
from klamm.gateway.relay.interceptors import Interception, Interceptor
from klamm.policy.kinds import (
    ALTER_CONFIG,
    API,
    CLIENT,
    CREATE_PARTITIONS,
    CREATE_TOPIC,
    DELETE_TOPIC,
    FLOW,
    GATEWAY_KINDS,
    PolicyKind,
)
from klamm.policy_runtime import Policies, PolicyRuntime
from klamm.policy_runtime.metrics import report_decisions
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.admin import AdminClient
    from klamm.protocol.schema import Message

STREAMS_GROUP_HEARTBEAT: Final = 88
"""API that creates the internal topics of Kafka Streams without a policy being asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """An API that policies of one kind decide on."""

    kind: PolicyKind
    request: type[Message]
    response: type[Message]
    interceptor: Callable[[Policies, ResourceTurns], Any]


JUDGED: Final = (
    _Judged(
        kind=CREATE_TOPIC,
        request=MetadataRequest,
        response=MetadataResponse,
        interceptor=lambda policies, _: MetadataJudge(policies),
    ),
    _Judged(
        kind=CREATE_TOPIC,
        request=CreateTopicsRequest,
        response=CreateTopicsResponse,
        interceptor=lambda policies, _: CreateTopicsJudge(policies),
    ),
    _Judged(
        kind=DELETE_TOPIC,
        request=DeleteTopicsRequest,
        response=DeleteTopicsResponse,
        interceptor=DeleteTopicsJudge,
    ),
    _Judged(
        kind=ALTER_CONFIG,
        request=AlterConfigsRequest,
        response=AlterConfigsResponse,
        interceptor=lambda policies, turns: AlterConfigsJudge(policies, turns, LEGACY),
    ),
    _Judged(
        kind=CREATE_PARTITIONS,
        request=CreatePartitionsRequest,
        response=CreatePartitionsResponse,
        interceptor=CreatePartitionsJudge,
    ),
    _Judged(
        kind=ALTER_CONFIG,
        request=IncrementalAlterConfigsRequest,
        response=IncrementalAlterConfigsResponse,
        interceptor=lambda policies, turns: AlterConfigsJudge(policies, turns, INCREMENTAL),
    ),
    _Judged(
        kind=CREATE_PARTITIONS,
        request=AlterPartitionReassignmentsRequest,
        response=AlterPartitionReassignmentsResponse,
        interceptor=ReassignmentsJudge,
    ),
)


async def start_policies(configs: Mapping[str, str]) -> Interception:
    """Create the policies that the gateway's settings name, and start to reload them when their files change.

    An API without a policy is not intercepted, but those that alter configs, by which clients could set what configures
    the gateway's policies. Every policy is called in its thread, so that one that hangs delays only
    what it judges.

    Raises:
        PolicyLoadError: A policy cannot be created.
    """
    runtime = await PolicyRuntime.load(configs, GATEWAY_KINDS, in_threads=True)
    runtime.start()
    policies, turns = runtime.policies, ResourceTurns()

    async def close() -> None:
        await runtime.stop()
        await policies.close()

    async def start(admin: AdminClient) -> None:
        await runtime.follow_upstream(lambda: topic_config_types(admin))

    return Interception(
        start=start,
        interceptors={
            judged.request.API_KEY: Interceptor(
                request=judged.request, response=judged.response, handle=judged.interceptor(policies, turns).handle
            )
            for judged in JUDGED
            if policies.guards_kind(judged.kind) or (judged.kind is ALTER_CONFIG and policies.guards)
        },
        policies=policies,
        report=lambda page: report_decisions(page, policies),
        filters=FlowJudge(policies).filters if policies.guards_kind(FLOW) else {},
        admit=ClientJudge(policies).judge if policies.guards_kind(CLIENT) or policies.guards_kind(API) else None,
        admits_by_api=policies.guards_kind(API),
        withheld=_withheld(policies),
        limits=LAST_WITH_NAMES if policies.guards_kind(FLOW) else NO_LIMITS,
        reload=runtime.reload,
        close=close,
    )


def _withheld(policies: Policies) -> frozenset[int]:
    """Return the APIs by which a client could bypass the policies."""
    unseen = {STREAMS_GROUP_HEARTBEAT} if policies.guards_kind(CREATE_TOPIC) else set[int]()
    if policies.guards_kind(FLOW):
        unseen |= {STREAMS_GROUP_HEARTBEAT, *JOINS_UNSEEN}
    return frozenset(unseen)
