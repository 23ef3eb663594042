"""Filters of the APIs that the configured policies decide on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
from klamm.gateway.relay.features import Feature
from klamm.gateway.relay.filter import Filter
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
    from klamm.monitoring.exposition import Page
    from klamm.protocol.schema import Message

STREAMS_GROUP_HEARTBEAT: Final = 88
"""API that creates the internal topics of Kafka Streams without a policy being asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """An API that policies of one kind decide on."""

    kind: PolicyKind
    request: type[Message]
    response: type[Message]
    server: Callable[[Policies, ResourceTurns], Any]


JUDGED: Final = (
    _Judged(
        kind=CREATE_TOPIC,
        request=MetadataRequest,
        response=MetadataResponse,
        server=lambda policies, _: MetadataJudge(policies),
    ),
    _Judged(
        kind=CREATE_TOPIC,
        request=CreateTopicsRequest,
        response=CreateTopicsResponse,
        server=lambda policies, _: CreateTopicsJudge(policies),
    ),
    _Judged(
        kind=DELETE_TOPIC,
        request=DeleteTopicsRequest,
        response=DeleteTopicsResponse,
        server=DeleteTopicsJudge,
    ),
    _Judged(
        kind=ALTER_CONFIG,
        request=AlterConfigsRequest,
        response=AlterConfigsResponse,
        server=lambda policies, turns: AlterConfigsJudge(policies, turns, LEGACY),
    ),
    _Judged(
        kind=CREATE_PARTITIONS,
        request=CreatePartitionsRequest,
        response=CreatePartitionsResponse,
        server=CreatePartitionsJudge,
    ),
    _Judged(
        kind=ALTER_CONFIG,
        request=IncrementalAlterConfigsRequest,
        response=IncrementalAlterConfigsResponse,
        server=lambda policies, turns: AlterConfigsJudge(policies, turns, INCREMENTAL),
    ),
    _Judged(
        kind=CREATE_PARTITIONS,
        request=AlterPartitionReassignmentsRequest,
        response=AlterPartitionReassignmentsResponse,
        server=ReassignmentsJudge,
    ),
)


class PolicyFeature(Feature):
    """Policies that the gateway's settings name. An API without a policy is not filtered.

    Those that alter configs are, as clients could set what configures the gateway's policies.
    """

    def __init__(self, runtime: PolicyRuntime) -> None:
        self._runtime = runtime
        self.policies = policies = runtime.policies
        turns = ResourceTurns()
        flows = FlowJudge(policies).filters if policies.guards_kind(FLOW) else {}
        self.filters = dict(flows) | {
            judged.request.API_KEY: Filter.serving(
                judged.request, judged.response, judged.server(policies, turns).handle
            )
            for judged in JUDGED
            if policies.guards_kind(judged.kind) or (judged.kind is ALTER_CONFIG and policies.guards)
        }
        if policies.guards_kind(CLIENT) or policies.guards_kind(API):
            self.admit = ClientJudge(policies).judge
        self.admits_each_request = policies.guards_kind(API)
        self.withheld = _withheld(policies)
        if policies.guards_kind(FLOW):
            self.last_versions = LAST_WITH_NAMES

    @classmethod
    async def load(cls, configs: Mapping[str, str]) -> PolicyFeature:
        """Create the policies, and start to reload them when their files change.

        Every policy is called in its thread, so that one that hangs delays only what it decides on.

        Raises:
            PolicyLoadError: A policy cannot be created.
        """
        runtime = await PolicyRuntime.load(configs, GATEWAY_KINDS, in_threads=True)
        runtime.start()
        return cls(runtime)

    async def start(self, admin: AdminClient) -> None:
        """Check that the upstream has the configs that rules name."""
        await self._runtime.follow_upstream(lambda: topic_config_types(admin))

    def report(self, page: Page) -> None:
        """Add the number of decisions."""
        report_decisions(page, self._runtime.policies)

    def reload(self) -> None:
        """Reload the policies soon."""
        self._runtime.reload()

    async def close(self) -> None:
        """Stop reloading, and close the policies."""
        await self._runtime.stop()
        await self._runtime.policies.close()


def _withheld(policies: Policies) -> frozenset[int]:
    """Return the APIs by which a client could bypass the policies."""
    unseen = {STREAMS_GROUP_HEARTBEAT} if policies.guards_kind(CREATE_TOPIC) else set[int]()
    if policies.guards_kind(FLOW):
        unseen |= {STREAMS_GROUP_HEARTBEAT, *JOINS_UNSEEN}
    return frozenset(unseen)
