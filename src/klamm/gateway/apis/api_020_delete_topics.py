"""DeleteTopics (key 20), v0-6, in the gateway: policies on deletions, by name and by id, and their history.

DeleteTopics has no ``validate_only``, so the policy is asked first and the allowed topics are forwarded. If the policy
denies a deletion that the client has no right to make, the client gets the authorization error, as in the broker.

The turns of the topics are held from reading their state to the upstream's response (``turns``). The gateway forwards
no deletion of a topic whose state it cannot read, unless the policy is only audited. Entries that the upstream rejects
in any case are forwarded without a question: those with both a name and an id, or neither. About a repeated name or id,
the policy is asked once: KRaft rejects it, a cluster with ZooKeeper deletes the topic.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from klamm.admin.types import ConfigResource
from klamm.gateway.apis.altered_configs import config_changes
from klamm.gateway.history.before import described_configs, described_topics
from klamm.gateway.history.recorded_api import IN_DOUBT, Change, Outcomes, RecordedApi, topic_resource
from klamm.gateway.policies.decisions import denial, forward_in_turn, undecided
from klamm.gateway.policies.divided_requests import in_order, replaced
from klamm.gateway.policies.facts import TopicFacts, describe_topics, own_configs
from klamm.gateway.policies.policy_api import ChangeServer, change_policy
from klamm.gateway.relay.api import RelayedApi
from klamm.history.change import PARTITIONS, UNKNOWN
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_words
from klamm.lazy_dataclass import dataclass
from klamm.policy.kinds import DELETE_TOPIC
from klamm.policy_runtime.details import deletion_details
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode, InvalidTopicError, KafkaApiError, UnknownTopicOrPartitionError
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.primitives import ZERO_UUID
from klamm.protocol.types import ResourceType
from klamm.security.acls import AclOperation
from klamm.server.attempt import ApiError
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from klamm.admin import ConfigEntry
    from klamm.gateway.relay.filter import FilterContext

Entry = DeleteTopicsResponse.DeletableTopicResult
_STATES_SINCE: Final = 6
_MAY_DELETE: Final = 1 << AclOperation.DELETE
_NO_TOPIC: Final = (UnknownTopicOrPartitionError, InvalidTopicError)
"""Errors of names that no topic has. As in Kafka, a name that no topic can have is not an error of its own."""
_DENIED: Final = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
_UNKNOWN_NAME: Final = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
_UNKNOWN_ID: Final = ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")


@dataclass(frozen=True, slots=True)
class RequestedDeletion:
    """One entry of the request."""

    name: str | None
    """None if the topic is given by its id."""
    topic_id: UUID = ZERO_UUID

    @property
    def key(self) -> str | UUID:
        """The name, or the id if there is no name."""
        return self.topic_id if self.name is None else self.name

    @property
    def is_valid(self) -> bool:
        """Return whether the entry has either a name or an id."""
        return (self.name is None) != (self.topic_id == ZERO_UUID)


def deletions_of(request: DeleteTopicsRequest, api_version: int) -> list[RequestedDeletion]:
    """Return the entries of a request."""
    if api_version >= _STATES_SINCE:
        return [RequestedDeletion(topic.name, topic.topic_id) for topic in request.topics]
    return [RequestedDeletion(name) for name in request.topic_names]


def valid_deletions(requested: Iterable[RequestedDeletion]) -> list[RequestedDeletion]:
    """Return the entries that a policy must decide on, once each: those that not every upstream rejects."""
    return list(dict.fromkeys(entry for entry in requested if entry.is_valid))


def with_deletions(
    request: DeleteTopicsRequest, requested: Sequence[RequestedDeletion], api_version: int
) -> DeleteTopicsRequest:
    """Return a request for some of its entries."""
    if api_version >= _STATES_SINCE:
        states = [DeleteTopicsRequest.DeleteTopicState(name=each.name, topic_id=each.topic_id) for each in requested]
        return replaced(request, topics=states)
    return replaced(request, topic_names=[each.name for each in requested if each.name is not None])


def denied_entry(requested: RequestedDeletion, topic: TopicFacts | None, error: ApiError) -> Entry:
    """Return the entry of a topic that is not deleted. ``topic`` is None if it is unknown or must not be shown."""
    return Entry(
        name=requested.name if topic is None else topic.name,
        topic_id=requested.topic_id if topic is None else topic.topic_id,
        error_code=error.error_code,
        error_message=error.error_message,
    )


class DeletedTopics(ChangeServer):
    """Server of DeleteTopics."""

    async def handle(self, request: DeleteTopicsRequest, context: FilterContext) -> DeleteTopicsResponse:
        """Return one entry per topic. A denied topic does not affect the others."""
        requested = deletions_of(request, context.api_version)
        valid = valid_deletions(requested)
        names, fault = await names_of([entry.topic_id for entry in valid if entry.name is None], context)
        async with self._turns.of_topics([*names.values(), *(entry.name for entry in valid if entry.name is not None)]):
            topics, failed = await _describe(valid, names, fault, context)
            rejected = {
                entry: denied_entry(entry, None, each)
                for entry, each in failed.items()
                if self._rejects(entry, each, context)
            }
            async for entry, topic in TimeSlice().over(topics.items()):
                error = await self._denial(topic, context)
                if error is not None:
                    rejected[entry] = denied_entry(entry, topic, error)
            rest = [entry for entry in requested if entry not in rejected]
            real = DeleteTopicsResponse()
            if rest:
                kept = with_deletions(request, rest, context.api_version) if rejected else request
                real = await forward_in_turn(kept, context)
        if rejected:
            rejected |= await _unauthorized(rejected, topics, context)
        ids = {each.topic_id for each in requested if each.name is None}
        entries = in_order(
            [each.key for each in requested],
            [*rejected.values(), *real.responses],
            lambda entry: entry.topic_id if entry.topic_id in ids else entry.name,
        )
        return replaced(real, responses=entries)

    def _rejects(self, entry: RequestedDeletion, error: ApiError, context: FilterContext) -> bool:
        """Return whether a topic that the gateway cannot read is not deleted. The upstream may know it."""
        if error in (_UNKNOWN_NAME, _UNKNOWN_ID):
            return self._policies.is_enforced(DELETE_TOPIC)
        subject = repr(entry.name) if entry.name is not None else f"topic id {entry.topic_id}"
        return undecided(self._policies, DELETE_TOPIC, subject, error, context) is not None

    async def _denial(self, topic: TopicFacts, context: FilterContext) -> ApiError | None:
        details = deletion_details(topic.name, topic.topic_id, topic.replicas, context.author)
        return await denial(self._policies, DELETE_TOPIC, details, api=ApiKey.DELETE_TOPICS)


async def _describe(
    valid: Collection[RequestedDeletion], names: Mapping[UUID, str], fault: ApiError | None, context: FilterContext
) -> tuple[dict[RequestedDeletion, TopicFacts], dict[RequestedDeletion, ApiError]]:
    """Return the topics of the entries, and the errors of those that do not exist or cannot be read."""
    topics: dict[RequestedDeletion, TopicFacts] = {}
    failed: dict[RequestedDeletion, ApiError] = {}
    described = await describe_topics(
        context.admin, [*(entry.name for entry in valid if entry.name is not None), *names.values()]
    )
    for entry in valid:
        name = entry.name if entry.name is not None else names.get(entry.topic_id)
        topic = None if name is None else described[name]
        # A topic that was created again under the same name is another topic.
        if isinstance(topic, TopicFacts) and entry.topic_id in {ZERO_UUID, topic.topic_id}:
            topics[entry] = topic
        elif isinstance(topic, KafkaApiError) and not isinstance(topic, _NO_TOPIC):
            failed[entry] = ApiError(topic.error_code, topic.error_message)
        else:
            failed[entry] = _UNKNOWN_NAME if entry.name is not None else fault or _UNKNOWN_ID
    return topics, failed


async def names_of(ids: Collection[UUID], context: FilterContext) -> tuple[dict[UUID, str], ApiError | None]:
    """Return the names of topics by id: as the client sees them, and the others as the gateway sees them.

    If the gateway cannot list the topics, return the error, too.
    """
    if not ids:
        return {}, None
    wanted = frozenset(ids)
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids],
        allow_auto_topic_creation=False,
    )
    seen = await context.call(request, MetadataResponse)
    names = {topic.topic_id: topic.name for topic in seen.topics if topic.name and topic.topic_id in wanted}
    if len(names) < len(wanted):
        try:
            # The client's broker may not know a topic yet that was just created.
            listed = await context.admin.list_topics(include_internal=True, is_current=True)
        except CLUSTER_ERRORS as error:
            text = f"The gateway cannot list the topics, so no policy can decide: {error_words(error)}"
            return names, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        names |= {topic.topic_id: topic.name for topic in listed.values() if topic.topic_id in wanted}
    return names, None


async def _unauthorized(
    rejected: Mapping[RequestedDeletion, Entry], topics: Mapping[RequestedDeletion, TopicFacts], context: FilterContext
) -> dict[RequestedDeletion, Entry]:
    """Return the entries of denied topics that the client has no right to delete, with the authorization error."""
    names = {topic.name for entry, topic in topics.items() if entry in rejected}
    names |= {entry.name for entry in rejected if entry.name is not None}
    if not names or await _may_delete_all(context):
        return {}
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(names)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    seen = {topic.name: topic for topic in (await context.call(request, MetadataResponse)).topics}
    entries = {}
    for entry in rejected:
        topic = topics.get(entry)
        name = entry.name if topic is None else topic.name
        if name is None or name not in seen:
            continue
        may_describe = seen[name].error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if not may_describe:
            entries[entry] = denied_entry(entry, None, _DENIED)
        elif topic is not None and not seen[name].topic_authorized_operations & _MAY_DELETE:
            entries[entry] = denied_entry(entry, topic, _DENIED)
    return entries


async def _may_delete_all(context: FilterContext) -> bool:
    """Return whether the client may delete every topic, by a right on the cluster."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    try:
        cluster = await context.call(request, DescribeClusterResponse)
    except CLUSTER_ERRORS:
        return False
    return bool(cluster.cluster_authorized_operations & _MAY_DELETE)


# -- history

_IN_DOUBT_IF_EXISTING: Final = IN_DOUBT | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
"""Errors after which a topic that existed may have been deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBefore:
    """Topic before its deletion."""

    name: str
    partitions: str
    """Number of its partitions, or ``UNKNOWN``."""
    configs: Mapping[str, ConfigEntry]
    """Empty if they cannot be read."""


async def _read_deleted(request: DeleteTopicsRequest, context: FilterContext) -> Mapping[str | UUID, TopicBefore]:
    """Return the topics that a request names, by the name or the id that it has for them."""
    requested = [each for each in deletions_of(request, context.api_version) if each.is_valid]
    ids = [each.topic_id for each in requested if each.name is None]
    by_id, _ = await names_of(ids, context)
    names: dict[str | UUID, str] = {each.name: each.name for each in requested if each.name is not None}
    names.update(by_id.items())
    described = await described_topics(context.admin, names.values())
    configs = await described_configs(context.admin, {(ResourceType.TOPIC, name): None for name in described})
    return {
        key: TopicBefore(
            name=name,
            partitions=str(len(described[name].partitions)) if name in described else UNKNOWN,
            configs=configs.get((ResourceType.TOPIC, name), {}),
        )
        for key, name in names.items()
    }


def deleted(
    request: DeleteTopicsRequest, response: DeleteTopicsResponse | None, before: Mapping[str | UUID, TopicBefore]
) -> Iterator[Change]:
    """Yield the number of partitions and the configs of each deleted topic.

    The response has the name of a topic by id that was not found before, because it was created a moment ago.
    """
    entries = () if response is None else response.responses
    not_found = {topic.topic_id for topic in request.topics if topic.name is None} - before.keys()
    named: dict[str | UUID, TopicBefore] = {
        entry.topic_id: TopicBefore(name=entry.name, partitions=UNKNOWN, configs={})
        for entry in entries
        if entry.name is not None and entry.topic_id in not_found
    }
    outcomes = Outcomes(None if response is None else entries, attrgetter("topic_id"), attrgetter("name"))
    for key, topic in {**before, **named}.items():
        existed = topic.partitions != UNKNOWN
        is_confirmed = outcomes.confirmed(key, in_doubt=_IN_DOUBT_IF_EXISTING if existed else IN_DOUBT)
        if is_confirmed is None:
            continue
        yield Change(topic_resource(topic.name), PARTITIONS, topic.partitions, None, is_confirmed)
        own = own_configs(ConfigResource(ResourceType.TOPIC, topic.name), topic.configs)
        values = [(name, value, None) for name, value in own.items()]
        yield from config_changes((ResourceType.TOPIC, topic.name), values, topic.configs, is_confirmed=is_confirmed)


POLICY: Final = change_policy(
    DELETE_TOPIC, DeleteTopicsRequest, DeleteTopicsResponse, lambda *shared: DeletedTopics(*shared).handle
)
RECORDED: Final = RecordedApi(
    request=DeleteTopicsRequest, response=DeleteTopicsResponse, read=_read_deleted, changes=deleted
)
API: Final = RelayedApi(key=ApiKey.DELETE_TOPICS, versions=(0, 6))
