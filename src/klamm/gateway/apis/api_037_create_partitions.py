"""CreatePartitions (key 37), v0-3, in the gateway: policies on added partitions, and their history.

The request is first forwarded with ``validate_only``, as the client, so errors of the upstream come before the policy.
Then the policy decides on each valid topic, and the allowed ones are forwarded. The turns of the topics are held from
reading their state to the upstream's response (``turns``).
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from klamm.gateway.history.before import described_topics
from klamm.gateway.history.recorded_api import Change, Outcomes, RecordedApi, topic_resource
from klamm.gateway.policies.facts import TopicFacts, describe_topics
from klamm.gateway.policies.parts import in_order, with_topics
from klamm.gateway.policies.policy_api import PolicyApi
from klamm.gateway.policies.verdicts import denial, forward_in_turn
from klamm.gateway.relay.api import RelayedApi
from klamm.gateway.relay.filter import Filter
from klamm.history.change import PARTITIONS, UNKNOWN
from klamm.policy.kinds import CREATE_PARTITIONS
from klamm.policy_runtime.details import partitions_details
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.server.attempt import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from klamm.gateway.policies.turns import ResourceTurns
    from klamm.gateway.relay.filter import FilterContext
    from klamm.policy.details import CreatePartitionsDetails
    from klamm.policy_runtime import Policies
    from klamm.policy_runtime.details import Requester

Asked = CreatePartitionsRequest.CreatePartitionsTopic
Entry = CreatePartitionsResponse.CreatePartitionsTopicResult


def merge_topics(
    request: CreatePartitionsRequest, entries: Collection[Entry], *, throttle_time_ms: int
) -> CreatePartitionsResponse:
    """Return the response with these entries in the order of the request."""
    results = in_order([topic.name for topic in request.topics], entries, lambda entry: entry.name)
    return CreatePartitionsResponse(throttle_time_ms=throttle_time_ms, results=results)


def denied_topic(name: str, error: ApiError) -> Entry:
    """Return the entry of a topic that gets no partitions."""
    return Entry(name=name, error_code=error.error_code, error_message=error.error_message)


def details_of(
    topic: Asked, current: TopicFacts, requester: Requester, *, validate_only: bool
) -> CreatePartitionsDetails:
    """Return what a policy sees of a topic that gets more partitions."""
    return partitions_details(
        topic.name,
        current.topic_id,
        current.replicas,
        count=topic.count,
        assignments=None if topic.assignments is None else [entry.broker_ids for entry in topic.assignments],
        configs=current.configs,
        defaults=current.defaults,
        requester=requester,
        validate_only=validate_only,
    )


def undecidable(topic: Asked, current: TopicFacts) -> ApiError | None:
    """Return the error for a topic whose new partitions get a number of replicas that no policy has allowed.

    Kafka gives a new partition as many replicas as partition 0 has, with those that a reassignment adds and removes.
    """
    first = current.reassigning.get(0)
    if topic.assignments is not None or first is None or len(first.replicas) == len(current.replicas[0]):
        return None
    text = (
        f"Partition 0 of topic {topic.name} is being reassigned, and Kafka would give the new partitions"
        f" {len(first.replicas)} replicas. Assign their replicas, or try again after the reassignment."
    )
    return ApiError(ErrorCode.REASSIGNMENT_IN_PROGRESS, text)


class AddedPartitions:
    """Server of CreatePartitions.

    Args:
        policies: Policies in use.
        turns: Turns of the resources that are changed.
    """

    def __init__(self, policies: Policies, turns: ResourceTurns) -> None:
        self._policies = policies
        self._turns = turns

    async def handle(self, request: CreatePartitionsRequest, context: FilterContext) -> CreatePartitionsResponse:
        """Return one entry per topic. A denied topic does not affect the others."""
        trial: CreatePartitionsResponse = await context.forward(
            with_topics(request, request.topics, validate_only=True)
        )
        entries = [entry for entry in trial.results if entry.error_code]
        passed = {entry.name: entry for entry in trial.results if not entry.error_code}
        asked = [topic for topic in request.topics if topic.name in passed]
        throttle_time_ms = trial.throttle_time_ms
        async with self._turns.of_topics(topic.name for topic in asked):
            known = await describe_topics(context.admin, [topic.name for topic in asked], with_configs=True)
            allowed: list[Asked] = []
            for topic in asked:
                error = await self._denial(topic, known[topic.name], context, validate_only=request.validate_only)
                if error is None:
                    allowed.append(topic)
                else:
                    entries.append(denied_topic(topic.name, error))
            if request.validate_only:
                entries += [passed[topic.name] for topic in allowed]
            elif allowed:
                real: CreatePartitionsResponse = await forward_in_turn(with_topics(request, allowed), context)
                entries += real.results
                throttle_time_ms = max(throttle_time_ms, real.throttle_time_ms)
        return merge_topics(request, entries, throttle_time_ms=throttle_time_ms)

    async def _denial(
        self, topic: Asked, current: TopicFacts | KafkaApiError, context: FilterContext, *, validate_only: bool
    ) -> ApiError | None:
        if isinstance(current, KafkaApiError):
            return ApiError(current.error_code, current.error_message)
        details = details_of(topic, current, context.author, validate_only=validate_only)
        error = await denial(self._policies, CREATE_PARTITIONS, details, api=ApiKey.CREATE_PARTITIONS)
        return error or undecidable(topic, current)


# -- history


async def _read_counts(request: CreatePartitionsRequest, context: FilterContext) -> Mapping[str, int]:
    """Return the present number of partitions of the topics."""
    described = await described_topics(context.admin, [topic.name for topic in request.topics])
    return {name: len(topic.partitions) for name, topic in described.items()}


def grown(
    request: CreatePartitionsRequest, response: CreatePartitionsResponse | None, before: Mapping[str, int]
) -> Iterator[Change]:
    """Yield the number of partitions of each topic that got more."""
    outcomes = Outcomes(None if response is None else response.results, attrgetter("name"))
    for topic in request.topics:
        is_confirmed = outcomes.confirmed(topic.name)
        if is_confirmed is not None:
            old = str(before.get(topic.name, UNKNOWN))
            yield Change(topic_resource(topic.name), PARTITIONS, old, str(topic.count), is_confirmed)


POLICY: Final = PolicyApi(
    key=ApiKey.CREATE_PARTITIONS,
    kind=CREATE_PARTITIONS,
    filter=lambda policies, turns: Filter.serving(
        CreatePartitionsRequest, CreatePartitionsResponse, AddedPartitions(policies, turns).handle
    ),
)
RECORDED: Final = RecordedApi(
    request=CreatePartitionsRequest, response=CreatePartitionsResponse, read=_read_counts, changes=grown
)
API: Final = RelayedApi(key=ApiKey.CREATE_PARTITIONS, versions=(0, 3))
