"""Check of the clusters of real Kafka that tests share: a test leaves nothing there that another test could meet.

Topics, groups, transactional ids and the like may stay when their name is unique (``unique``): no other test uses it.
Everything else is as it was when the cluster was started: nodes, configs of brokers, quotas, SCRAM users, replicas of
Kafka's internal topics. There are no ACLs, because the clusters have no authorizer.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from klamm.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from klamm.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.processes import wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.kafka import KafkaCluster, KafkaNode

_UNIQUE: Final = re.compile("[0-9a-f]{6}|console-consumer-")
"""Part of a name that no other test uses; Kafka's console consumer draws the name of its group."""

_LAG_S: Final = 30.0
_BROKER: Final = 4
_DYNAMIC: Final = frozenset({2, 3})
"""Wire values of ``config_source``: dynamic config of one broker, and of all brokers."""


def unique(prefix: str) -> str:
    """Return a name that no other test uses."""
    return f"{prefix}{uuid4().hex[:6]}"


class SharedCluster:
    """A cluster, and what it consisted of when it was started.

    Args:
        cluster: The cluster, which is running.
        ignored: Start of the lines about what may stay. None: nothing may.
    """

    def __init__(self, cluster: KafkaCluster, *, ignored: str | None = None) -> None:
        self.cluster = cluster
        self._nodes = tuple(cluster.nodes.values())
        self._ignored = ignored
        self._own = self._contents()

    def check(self) -> None:
        """Fail if things with names that are not unique have been left or changed since the last check."""
        changes: list[str] = []

        def is_unchanged() -> bool:
            now = self._contents()
            changes[:] = [*(f"+ {line}" for line in now - self._own), *(f"- {line}" for line in self._own - now)]
            return not changes

        with contextlib.suppress(TimeoutError):
            wait_until(is_unchanged, timeout_s=_LAG_S, what="the brokers to catch up with their controller")
        if changes:  # the next tests find the nodes running, and are not blamed
            down = [node for node in self._nodes if not node.is_running]
            for node in down:
                node.launch()
            for node in down:
                node.wait_ready(expected_nodes=len(self._nodes))
            self._own = self._contents()
        assert not changes, "A cluster that other tests use was changed:\n" + "\n".join(sorted(changes))

    def _contents(self) -> frozenset[str]:
        lines = _contents(self._nodes)
        if self._ignored is None:
            return lines
        return frozenset(line for line in lines if not line.startswith(self._ignored))


def _contents(nodes: Sequence[KafkaNode]) -> frozenset[str]:
    """Return a line for each thing without a unique name, each dynamic config, and each node that is down."""
    lines = {f"node {node.node_id} is down" for node in nodes if not node.is_running}
    running = [node for node in nodes if node.is_running]
    for node in running:
        with WireClient(f"{node.host}:{node.port}") as client:
            lines.update(_of_broker(client, node))
            if node is running[0]:
                lines.update(_of_cluster(client, len(nodes)))
    return frozenset(line for line in lines if line.startswith("config ") or not _UNIQUE.search(line))


def _of_broker(client: WireClient, node: KafkaNode) -> Iterator[str]:
    groups = client.ask(ListGroupsRequest(states_filter=[], types_filter=[]), ListGroupsResponse, 5).groups
    yield from (f"group {group.group_id}" for group in groups)
    transactions = client.ask(
        ListTransactionsRequest(state_filters=[], producer_id_filters=[], duration_filter=-1),
        ListTransactionsResponse,
        1,
    ).transaction_states
    yield from (f"transactional id {state.transactional_id}" for state in transactions)
    yield from _configs(client, str(node.node_id))


def _of_cluster(client: WireClient, nodes: int) -> Iterator[str]:
    metadata = client.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), MetadataResponse, 12)
    for topic in metadata.topics:
        replicas = min(len(partition.replica_nodes) for partition in topic.partitions)
        if not (topic.is_internal and replicas == min(3, nodes)):
            yield f"topic {topic.name} with {len(topic.partitions)} partitions of {replicas} replicas"
    moving = client.ask(
        ListPartitionReassignmentsRequest(timeout_ms=10_000, topics=None), ListPartitionReassignmentsResponse, 0
    )
    yield from (f"reassignment of {topic.name}" for topic in moving.topics)
    quotas = client.ask(
        DescribeClientQuotasRequest(components=[], strict=False), DescribeClientQuotasResponse, 1
    ).entries
    yield from (f"quota of {[(part.entity_type, part.entity_name) for part in entry.entity]}" for entry in quotas or ())
    users = client.ask(DescribeUserScramCredentialsRequest(users=None), DescribeUserScramCredentialsResponse, 0)
    yield from (f"SCRAM user {user.user}" for user in users.results)
    metrics = client.ask(ListConfigResourcesRequest(resource_types=[]), ListConfigResourcesResponse, 0)
    yield from (f"client metrics {resource.resource_name}" for resource in metrics.config_resources)
    yield from _configs(client, "")


def _configs(client: WireClient, broker: str) -> Iterator[str]:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_BROKER, resource_name=broker, configuration_keys=None
    )
    (result,) = client.ask(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, 4).results
    dynamic = (config for config in result.configs if config.config_source in _DYNAMIC)
    yield from (f"config {config.name}={config.value} of broker {broker or 'default'}" for config in dynamic)
