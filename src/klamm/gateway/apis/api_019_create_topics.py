"""CreateTopics (key 19), v0-7, in the gateway: policies on new topics, and their history.

The response to the trial (``divide``) has the numbers and defaults that the policy sees. A topic that the policy
overrides is tried and decided on once more.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from klamm.admin import NewTopic
from klamm.gateway.apis.altered_configs import config_changes
from klamm.gateway.history.recorded_api import Change, Outcomes, RecordedApi, topic_resource
from klamm.gateway.policies.decisions import Allowed, PassedTrials, ask_policy, decide_part, divide, undecided
from klamm.gateway.policies.divided_requests import PartedApi
from klamm.gateway.policies.facts import default_configs, read
from klamm.gateway.policies.policy_api import change_policy
from klamm.gateway.relay.api import RelayedApi
from klamm.history.change import PARTITIONS, UNKNOWN
from klamm.lazy_dataclass import dataclass
from klamm.policy.kinds import CREATE_TOPIC
from klamm.policy_runtime.decision import overridden_configs
from klamm.policy_runtime.details import topic_details
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.types import ConfigSource, ResourceType
from klamm.server.attempt import ApiError
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

    from klamm.admin.types import CreatedTopic
    from klamm.gateway.relay.filter import FilterContext
    from klamm.policy.answers import Override
    from klamm.policy.details import TopicDetails
    from klamm.policy_runtime import Policies
    from klamm.policy_runtime.details import Requester

Topic = CreateTopicsRequest.CreatableTopic
Entry = CreateTopicsResponse.CreatableTopicResult
PARTS: Final = PartedApi(parts="topics", entries="topics", response=CreateTopicsResponse, entry=Entry, key=("name",))
_DETAILS_SINCE: Final = 5
"""First version whose response has the numbers and the configs of a topic (KIP-525)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidTopic:
    """Properties of a topic that the upstream would create."""

    num_partitions: int
    replication_factor: int
    defaults: Mapping[str, str]
    """Value of each topic config that the request does not set. Empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedTopic:
    """Topic of a request that the upstream would create."""

    topic: Topic
    properties: ValidTopic | KafkaApiError
    """The error if they cannot be found out. The topic is then denied, unless the policy is only audited."""


def overridden_topic(topic: Topic, override: Override) -> Topic:
    """Return a topic of a request with the changes of a policy."""
    configs = overridden_configs([(config.name, config.value) for config in topic.configs], override.configs)
    partitions, factor = override.num_partitions, override.replication_factor
    return Topic(
        name=topic.name,
        num_partitions=topic.num_partitions if partitions is None else partitions,
        replication_factor=topic.replication_factor if factor is None else factor,
        assignments=topic.assignments,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in configs],
    )


def valid_topic(entry: Entry) -> ValidTopic | None:
    """Return the properties of a topic; None if the response leaves them out.

    It does so in old versions, and if the client may not describe the configs of the topic.
    """
    if entry.num_partitions < 0 or entry.replication_factor < 0:
        return None
    return ValidTopic(
        num_partitions=entry.num_partitions,
        replication_factor=entry.replication_factor,
        defaults={
            config.name: config.value
            for config in entry.configs or ()
            if config.value is not None and config.config_source != ConfigSource.DYNAMIC_TOPIC_CONFIG
        },
    )


def details_of(topic: Topic, valid: ValidTopic, requester: Requester, *, validate_only: bool) -> TopicDetails:
    """Return what a policy sees of a topic."""
    assignments = {each.partition_index: each.broker_ids for each in topic.assignments}
    return topic_details(
        topic.name,
        num_partitions=valid.num_partitions,
        replication_factor=valid.replication_factor,
        assignments=dict(sorted(assignments.items())) if assignments else None,
        configs={config.name: config.value for config in topic.configs if config.value is not None},
        defaults=valid.defaults,
        requester=requester,
        validate_only=validate_only,
    )


class CreatedTopics:
    """Server of CreateTopics.

    Args:
        policies: Policies in use.
    """

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._trials = PassedTrials()

    async def handle(self, request: CreateTopicsRequest, context: FilterContext) -> CreateTopicsResponse:
        """Return one entry per topic. A denied topic does not affect the others."""
        is_detailed = context.api_version >= _DETAILS_SINCE
        throttle_time_ms = 0

        async def send(request: CreateTopicsRequest) -> CreateTopicsResponse:
            nonlocal throttle_time_ms
            answer: CreateTopicsResponse = await context.forward(request)
            throttle_time_ms = max(throttle_time_ms, answer.throttle_time_ms)
            return answer

        async def decide(topics: Sequence[Topic], passed: Mapping[str, Entry]) -> list[Allowed[Topic] | Entry]:
            decisions: list[Allowed[Topic] | Entry] = []
            async for valid in TimeSlice().over(await describe_valid(topics, passed, context, is_detailed=is_detailed)):
                decided = await decide_topic(
                    valid,
                    self._policies,
                    context,
                    send=send,
                    trials=self._trials,
                    is_detailed=is_detailed,
                    validate_only=request.validate_only,
                )
                decisions.append(PARTS.denied(valid.topic, decided) if isinstance(decided, ApiError) else decided)
            return decisions

        response: CreateTopicsResponse = await divide(PARTS, request, context, decide, send=send, trials=self._trials)
        response.throttle_time_ms = throttle_time_ms  # also of the trials of overridden topics
        return response


async def decide_topic(
    valid: TriedTopic,
    policies: Policies,
    context: FilterContext,
    *,
    send: Callable[[CreateTopicsRequest], Awaitable[CreateTopicsResponse]],
    trials: PassedTrials,
    is_detailed: bool,
    validate_only: bool,
) -> Allowed[Topic] | Entry | ApiError:
    """Ask the policy about a valid topic; return it as the policy allows it.

    A topic that may not be created is returned as the error of the policy, or as the upstream's entry if the upstream
    rejects what the policy has overridden.

    Args:
        valid: The topic.
        policies: Policies in use.
        context: Context of the request.
        send: Function that sends a CreateTopics request as the client.
        trials: Trials of delayed topics, which are not repeated.
        is_detailed: Whether the responses to ``send`` have the numbers and the configs of a topic.
        validate_only: Whether the client's request only validates.
    """
    properties = valid.properties

    async def ask(topic: Topic, overridden: Override | None) -> ApiError | Override | None:
        if isinstance(properties, KafkaApiError):
            error = ApiError(properties.error_code, properties.error_message)
            return undecided(policies, CREATE_TOPIC, repr(topic.name), error, context, validate_only=validate_only)
        details = details_of(topic, properties, context.author, validate_only=validate_only)
        async with policies.turn(CREATE_TOPIC):
            return await ask_policy(policies, CREATE_TOPIC, details, overridden, api=ApiKey.CREATE_TOPICS)

    async def override(changes: Override) -> Allowed[Topic] | Entry | ApiError:
        nonlocal properties
        changed = overridden_topic(valid.topic, changes)
        entry = None if validate_only else trials.take(changed, context.author)
        if entry is None:
            (entry,) = (await send(CreateTopicsRequest(topics=[changed], validate_only=True))).topics
        if entry.error_code:
            return entry
        (tried,) = await describe_valid([changed], {changed.name: entry}, context, is_detailed=is_detailed)
        properties = tried.properties
        return Allowed(part=changed, entry=entry)

    return await decide_part(valid.topic, ask, override, lambda error: error)


async def describe_valid(
    topics: Collection[Topic], passed: Mapping[str, Entry], context: FilterContext, *, is_detailed: bool
) -> list[TriedTopic]:
    """Return valid topics with their properties, which the upstream knows, in the given order.

    Args:
        topics: Valid topics.
        passed: Their entries in the response to the trial.
        context: Context of the request.
        is_detailed: Whether the version of that response has the numbers and the configs of a topic.
    """
    answered = dict(passed)
    if topics and not is_detailed:
        again = CreateTopicsRequest(topics=list(topics), validate_only=True)
        newest = await context.call(again, CreateTopicsResponse)
        answered |= {entry.name: entry for entry in newest.topics if not entry.error_code}
    valid = {topic.name: valid_topic(answered[topic.name]) for topic in topics}
    rest = [topic for topic in topics if valid[topic.name] is None]
    described = await _described_by_gateway(rest, context)
    return [TriedTopic(topic=topic, properties=valid[topic.name] or described[topic.name]) for topic in topics]


async def _described_by_gateway(
    topics: Collection[Topic], context: FilterContext
) -> Mapping[str, ValidTopic | KafkaApiError]:
    """Return the properties of topics whose configs the client may not describe, or the reason why they are unknown."""
    if not topics:
        return {}
    try:
        defaults = await default_configs(context.admin)
    except KafkaApiError as error:
        return {topic.name: error.with_traceback(None) for topic in topics}
    numbers = await read(
        context.admin.create_topics(
            [
                NewTopic(
                    topic.name,
                    topic.num_partitions,
                    topic.replication_factor,
                    replicas_assignments={each.partition_index: tuple(each.broker_ids) for each in topic.assignments},
                )
                for topic in topics
            ],
            validate_only=True,
        )
    )
    return {topic.name: _with_numbers(topic, numbers[topic.name], defaults) for topic in topics}


def _with_numbers(
    topic: Topic, created: CreatedTopic | KafkaApiError, defaults: Mapping[str, str]
) -> ValidTopic | KafkaApiError:
    """Return the properties of a topic; the error if the gateway may not create it and its numbers are left open."""
    if not isinstance(created, KafkaApiError):
        partitions, factor = created.num_partitions, created.replication_factor
    elif topic.assignments or min(topic.num_partitions, topic.replication_factor) > 0:
        partitions, factor = topic.num_partitions, topic.replication_factor
    else:
        return KafkaApiError(
            f"The gateway cannot find out the numbers of partitions and replicas of topic {topic.name}:"
            f" {created.error_message}. Set both, or give the gateway's principal the right to create topics."
        )
    return ValidTopic(num_partitions=partitions, replication_factor=factor, defaults=defaults)


# -- history


async def _read_nothing(_request: CreateTopicsRequest, _context: FilterContext) -> None:
    """Return nothing: there was no such topic before."""


def created(request: CreateTopicsRequest, response: CreateTopicsResponse | None, _before: None) -> Iterator[Change]:
    """Yield the number of partitions and the configs of each new topic."""
    entries = {} if response is None else {entry.name: entry for entry in response.topics}
    outcomes = Outcomes(None if response is None else response.topics, attrgetter("name"))
    for topic in request.topics:
        is_confirmed = outcomes.confirmed(topic.name)
        if is_confirmed is None:
            continue
        entry = entries.get(topic.name)
        counts = (0 if entry is None else entry.num_partitions, len(topic.assignments), topic.num_partitions)
        count = next((str(each) for each in counts if each > 0), UNKNOWN)
        yield Change(topic_resource(topic.name), PARTITIONS, None, count, is_confirmed)
        values = [(config.name, None, config.value) for config in topic.configs if config.value is not None]
        yield from config_changes((ResourceType.TOPIC, topic.name), values, {}, is_confirmed=is_confirmed)


POLICY: Final = change_policy(
    CREATE_TOPIC,
    CreateTopicsRequest,
    CreateTopicsResponse,
    lambda policies, _: CreatedTopics(policies).handle,
    takes_turns=False,
)
RECORDED: Final = RecordedApi(
    request=CreateTopicsRequest, response=CreateTopicsResponse, read=_read_nothing, changes=created
)
API: Final = RelayedApi(key=ApiKey.CREATE_TOPICS, versions=(0, 7))
