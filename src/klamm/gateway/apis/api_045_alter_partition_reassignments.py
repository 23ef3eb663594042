"""AlterPartitionReassignments (key 45), v0-1, in the gateway: policies on replication factors.

A reassignment can change the number of replicas, so the policy on partitions decides on it. Its argument has an
unchanged number of partitions, and the new replicas as ``new_assignments``. A topic is denied or allowed with all the
partitions whose number of replicas would change. Other reassignments are forwarded unseen.

Replicas that a reassignment in progress removes do not count. To cancel it is a change, too: the partition then keeps
the replicas that it had when the reassignment began, even those that an earlier one was about to remove.

The turns of the topics are held from reading their state to the upstream's response (``turns``). A topic whose state
cannot be read is denied, but not in audit mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.gateway.policies.decisions import denial, forward_in_turn, undecided
from klamm.gateway.policies.divided_requests import in_order, replaced
from klamm.gateway.policies.facts import TopicFacts, describe_topics
from klamm.gateway.policies.policy_api import ChangeServer, change_policy
from klamm.gateway.relay.api import RelayedApi
from klamm.policy.kinds import CREATE_PARTITIONS
from klamm.policy_runtime.details import partitions_details
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from klamm.server.attempt import ApiError
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.gateway.relay.filter import FilterContext

ReassignableTopic = AlterPartitionReassignmentsRequest.ReassignableTopic
Entry = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
PartitionEntry = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse


def resized(topic: ReassignableTopic, current: TopicFacts) -> list[tuple[int, Sequence[int]]]:
    """Return the partitions whose number of replicas a reassignment would change, with their new replicas.

    A partition that is listed several times is returned as often, because Kafka applies all of its entries.
    """
    changed: list[tuple[int, Sequence[int]]] = []
    for each in topic.partitions:
        index, replicas = each.partition_index, each.replicas
        running = current.reassigning.get(index)
        if replicas is None and running is not None:
            replicas = [replica for replica in running.replicas if replica not in running.adding_replicas]
        if replicas is not None and index < len(current.replicas) and len(replicas) != len(current.replicas[index]):
            changed.append((index, replicas))
    return changed


def without_partitions(
    request: AlterPartitionReassignmentsRequest, denied: Mapping[str, Collection[int]]
) -> AlterPartitionReassignmentsRequest:
    """Return a request without the denied partitions, and without topics that have no other ones."""
    topics = []
    for topic in request.topics:
        kept = [each for each in topic.partitions if each.partition_index not in denied.get(topic.name, ())]
        if kept:
            topics.append(replaced(topic, partitions=kept))
    return replaced(request, topics=topics)


def merge_partitions(
    request: AlterPartitionReassignmentsRequest,
    denied: Mapping[str, Mapping[int, ApiError]],
    response: AlterPartitionReassignmentsResponse,
) -> AlterPartitionReassignmentsResponse:
    """Return the upstream's response with the entries of denied partitions, in the order of the request."""
    entries = {entry.name: list(entry.partitions) for entry in response.responses}
    for name, errors in denied.items():
        entries.setdefault(name, []).extend(
            PartitionEntry(partition_index=index, error_code=error.error_code, error_message=error.error_message)
            for index, error in errors.items()
        )
    indexes: dict[str, list[int]] = {}
    for topic in request.topics:
        indexes.setdefault(topic.name, []).extend(each.partition_index for each in topic.partitions)
    merged = [
        Entry(name=name, partitions=in_order(indexes.get(name, ()), partitions, lambda each: each.partition_index))
        for name, partitions in entries.items()
    ]
    return replaced(response, responses=in_order(indexes, merged, lambda entry: entry.name))


class AlteredReassignments(ChangeServer):
    """Server of AlterPartitionReassignments."""

    async def handle(
        self, request: AlterPartitionReassignmentsRequest, context: FilterContext
    ) -> AlterPartitionReassignmentsResponse:
        """Return one entry per partition. A request with nothing left is forwarded too: it has authorization errors."""
        async with self._turns.of_topics(topic.name for topic in request.topics):
            topics = await describe_topics(context.admin, [topic.name for topic in request.topics], with_configs=True)
            denied: dict[str, dict[int, ApiError]] = {}
            async for topic in TimeSlice().over(request.topics):
                indexes, error = await self._denial(topic, topics[topic.name], context)
                if error is not None:
                    denied.setdefault(topic.name, {}).update(dict.fromkeys(indexes, error))
            kept = without_partitions(request, denied) if denied else request
            real: AlterPartitionReassignmentsResponse = await forward_in_turn(kept, context)
        return real if real.error_code or not denied else merge_partitions(request, denied, real)

    async def _denial(
        self, topic: ReassignableTopic, current: TopicFacts | KafkaApiError, context: FilterContext
    ) -> tuple[Collection[int], ApiError | None]:
        """Return the partitions that the policy decides on, and the error that it denies them with."""
        if isinstance(current, KafkaApiError):
            indexes = [each.partition_index for each in topic.partitions]
            unknown = ApiError(current.error_code, current.error_message)
            return indexes, undecided(self._policies, CREATE_PARTITIONS, repr(topic.name), unknown, context)
        changed = resized(topic, current)
        if not changed:
            return (), None
        details = partitions_details(
            topic.name,
            current.topic_id,
            current.replicas,
            count=len(current.replicas),
            assignments=[replicas for _, replicas in changed],
            configs=current.configs,
            defaults=current.defaults,
            requester=context.author,
            validate_only=False,
        )
        error = await denial(self._policies, CREATE_PARTITIONS, details, api=ApiKey.ALTER_PARTITION_REASSIGNMENTS)
        return {index for index, _ in changed}, error


POLICY: Final = change_policy(
    CREATE_PARTITIONS,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    lambda *shared: AlteredReassignments(*shared).handle,
)
API: Final = RelayedApi(key=ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1))
