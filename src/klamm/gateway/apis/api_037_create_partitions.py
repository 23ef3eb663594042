"""CreatePartitions (key 37), v0-3, in the gateway: policies on added partitions, and their history.

The request is first forwarded with ``validate_only``, as the client, so errors of the upstream come before the policy.
Then the policy decides on each valid topic, and the allowed ones are forwarded. The turns of the topics are held from
reading their state to the upstream's response (``turns``).
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from klamm.gateway.history.before import described_topics
from klamm.gateway.history.recorded_api import IN_DOUBT, Change, Outcomes, RecordedApi, topic_resource
from klamm.gateway.policies.decisions import Allowed, PassedTrials, denial, divide, undecided
from klamm.gateway.policies.divided_requests import PartedApi
from klamm.gateway.policies.facts import TopicFacts, describe_topics
from klamm.gateway.policies.policy_api import ChangeServer, change_policy
from klamm.gateway.relay.api import RelayedApi
from klamm.history.change import PARTITIONS, UNKNOWN
from klamm.policy.kinds import CREATE_PARTITIONS
from klamm.policy_runtime.details import partitions_details
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.server.attempt import ApiError
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from klamm.gateway.policies.policy_api import ResourceTurns
    from klamm.gateway.relay.filter import FilterContext
    from klamm.policy.details import CreatePartitionsDetails
    from klamm.policy_runtime import Policies
    from klamm.policy_runtime.details import Requester

Topic = CreatePartitionsRequest.CreatePartitionsTopic
Entry = CreatePartitionsResponse.CreatePartitionsTopicResult
_PARTS: Final = PartedApi(
    parts="topics", entries="results", response=CreatePartitionsResponse, entry=Entry, key=("name",)
)


def details_of(
    topic: Topic, current: TopicFacts, requester: Requester, *, validate_only: bool
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


def undecidable(topic: Topic, current: TopicFacts) -> ApiError | None:
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


class AddedPartitions(ChangeServer):
    """Server of CreatePartitions.

    Args:
        policies: As in ``ChangeServer``.
        turns: As in ``ChangeServer``.
    """

    def __init__(self, policies: Policies, turns: ResourceTurns) -> None:
        super().__init__(policies, turns)
        self._trials = PassedTrials()

    async def handle(self, request: CreatePartitionsRequest, context: FilterContext) -> CreatePartitionsResponse:
        """Return one entry per topic. A denied topic does not affect the others."""

        async def decide(topics: Sequence[Topic], _: object) -> list[Allowed[Topic] | Entry]:
            current = await describe_topics(context.admin, [topic.name for topic in topics], with_configs=True)
            decided: list[Allowed[Topic] | Entry] = []
            async for topic in TimeSlice().over(topics):
                error = await self._denial(topic, current[topic.name], context, validate_only=request.validate_only)
                decided.append(Allowed(part=topic) if error is None else _PARTS.denied(topic, error))
            return decided

        response: CreatePartitionsResponse = await divide(
            _PARTS,
            request,
            context,
            decide,
            turns_of=lambda topics: self._turns.of_topics(topic.name for topic in topics),
            trials=self._trials,
        )
        return response

    async def _denial(
        self, topic: Topic, current: TopicFacts | KafkaApiError, context: FilterContext, *, validate_only: bool
    ) -> ApiError | None:
        if isinstance(current, KafkaApiError):
            error: ApiError | None = ApiError(current.error_code, current.error_message)
        else:
            details = details_of(topic, current, context.author, validate_only=validate_only)
            denied = await denial(self._policies, CREATE_PARTITIONS, details, api=ApiKey.CREATE_PARTITIONS)
            if denied is not None:
                return denied
            error = undecidable(topic, current)
        if error is None:
            return None
        name = repr(topic.name)
        return undecided(self._policies, CREATE_PARTITIONS, name, error, context, validate_only=validate_only)


# -- history

_IN_DOUBT_IF_FEWER: Final = IN_DOUBT | {ErrorCode.INVALID_PARTITIONS}
"""Errors after which a topic that had fewer partitions may have got more."""


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
        had_fewer = topic.name in before and before[topic.name] < topic.count
        is_confirmed = outcomes.confirmed(topic.name, in_doubt=_IN_DOUBT_IF_FEWER if had_fewer else IN_DOUBT)
        if is_confirmed is not None:
            old = str(before.get(topic.name, UNKNOWN))
            yield Change(topic_resource(topic.name), PARTITIONS, old, str(topic.count), is_confirmed)


POLICY: Final = change_policy(
    CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    lambda *shared: AddedPartitions(*shared).handle,
)
RECORDED: Final = RecordedApi(
    request=CreatePartitionsRequest, response=CreatePartitionsResponse, read=_read_counts, changes=grown
)
API: Final = RelayedApi(key=ApiKey.CREATE_PARTITIONS, versions=(0, 3))
