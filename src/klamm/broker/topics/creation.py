"""How a topic comes into being, whoever asks: CreateTopics, a client that needs it, or the broker itself.

The order of checks is Kafka's: name, existence, configs, partitions, replicas; the policy comes last, when all else
is known to be right (KIP-108), behind it only the quota on partitions, and then the topic is created.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from klamm.broker.topics.catalog import Topic
from klamm.broker.topics.placement import UNSET, Placement, check_request_size, place_new_topic
from klamm.client_configs.registrations import TOPIC as REGISTRATIONS_TOPIC
from klamm.configs.names import CLUSTER_METADATA, INTERNAL_TOPICS, check_topic_name
from klamm.policy.details import TopicDetails
from klamm.policy.kinds import CREATE_TOPIC
from klamm.protocol.errors import (
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    InvalidTopicError,
    KafkaApiError,
    TopicAlreadyExistsError,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.broker.context import RequestContext
    from klamm.broker.quotas.mutations import MutationQuota

RESERVED_NAMES: Final = INTERNAL_TOPICS | {REGISTRATIONS_TOPIC}
"""Topics that only the broker itself creates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic as it is asked for."""

    name: str
    num_partitions: int = UNSET
    replication_factor: int = UNSET
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    """(partition, broker ids), as in the request; empty when the broker chooses."""
    configs: Sequence[tuple[str, str | None]] = ()
    is_automatic: bool = False
    """Whether a client only asks for the topic's metadata, and will ask again when it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopic:
    """A topic that was created, or would have been."""

    topic: Topic
    configs: Mapping[str, str] = field(default_factory=dict)
    """The topic's own configs, without defaults."""
    durable: asyncio.Future[None] | None = None
    """Done when the topic is on disk; None when it is not created."""


async def create_topic(spec: TopicSpec, context: RequestContext) -> Topic:
    """Decide and create for a client that needs a topic; returns when the topic is durable.

    Raises:
        KafkaApiError: The name, the configs, the placement, the policy or a quota forbids it, or the disk refuses.
    """
    created = await begin_topic(spec, context, context.mutation_quota(is_strict=True))
    if created.durable is not None:
        await created.durable
    return created.topic


async def begin_topic(
    spec: TopicSpec, context: RequestContext, quota: MutationQuota, *, validate_only: bool = False
) -> CreatableTopic:
    """Decide, and create in memory unless ``validate_only``; it does not wait for the disk.

    Raises:
        KafkaApiError: The name, the configs, the placement, the policy or the quota forbids it.
    """
    policies = context.services.policies
    async with policies.turn(CREATE_TOPIC):
        placement, configs = _decide(spec, context)
        judged = None
        while policies.guards_kind(CREATE_TOPIC):
            details = _details(spec, placement, configs, context, validate_only=validate_only)
            if details == judged:
                break
            if not await _ask_policy(details, spec, context):
                break
            judged = details
            placement, configs = _decide(spec, context)  # others were served meanwhile
        quota.charge(len(placement.partitions))
        topics = context.services.topics
        if validate_only:
            topic = Topic(name=spec.name, topic_id=topics.new_topic_id(), partitions=placement.partitions)
            return CreatableTopic(topic=topic, configs=configs)
        topic, durable = topics.begin_create(spec.name, placement.partitions, configs=configs, author=context.author)
    return CreatableTopic(topic=topic, configs=configs, durable=durable)


async def _ask_policy(details: TopicDetails, spec: TopicSpec, context: RequestContext) -> bool:
    """Ask the policy about a topic; return whether other requests were served meanwhile.

    Raises:
        KafkaApiError: The policy refuses. The refusal of an automatic creation is remembered for a moment.
    """
    policies = context.services.policies
    try:
        return await policies.check(CREATE_TOPIC, details)
    except KafkaApiError as refusal:
        if spec.is_automatic:
            policies.refused_creations.remember(spec.name, context.author, refusal.error_code)
        raise


def check_size(specs: Iterable[TopicSpec], context: RequestContext) -> None:
    """Refuse a request that asks for too many partitions, whatever else is wrong with it.

    Raises:
        PolicyViolationError: All its topics together have 10,000 or more.
    """
    default = _default_num_partitions(context)
    asked = (len(s.assignments) or (default if s.num_partitions == UNSET else s.num_partitions) for s in specs)
    check_request_size(sum(count for count in asked if count > 0))


def _default_num_partitions(context: RequestContext) -> int:
    return int(str(context.services.configs.broker_value("num.partitions")))


def _decide(spec: TopicSpec, context: RequestContext) -> tuple[Placement, Mapping[str, str]]:
    services = context.services
    if spec.name == CLUSTER_METADATA:
        raise InvalidRequestError(f"Creation of internal topic {CLUSTER_METADATA} is prohibited.")
    check_topic_name(spec.name)
    if services.topics.get(spec.name) is not None:
        raise TopicAlreadyExistsError(f"Topic '{spec.name}' already exists.")
    if spec.name in RESERVED_NAMES:
        raise InvalidTopicError(f"Topic '{spec.name}' is reserved: the broker creates it when it is needed.")
    colliding = services.topics.colliding(spec.name)
    if colliding is not None:
        raise InvalidTopicError(f"Topic '{spec.name}' collides with existing topic: {colliding}")
    configs = services.configs.validate_topic_configs(spec.name, spec.configs)
    return _place(spec, context), configs


def _place(spec: TopicSpec, context: RequestContext) -> Placement:
    configs, node_ids = context.services.configs, context.services.cluster.node_ids
    assignments = dict(spec.assignments)
    if len(assignments) != len(spec.assignments):
        ((repeated, _),) = Counter(index for index, _ in spec.assignments).most_common(1)
        raise InvalidReplicaAssignmentError(f"Found multiple manual partition assignments for partition {repeated}")
    return place_new_topic(
        num_partitions=spec.num_partitions,
        replication_factor=spec.replication_factor,
        assignments=assignments or None,
        default_num_partitions=_default_num_partitions(context),
        default_replication_factor=int(str(configs.broker_value("default.replication.factor"))),
        node_ids=node_ids,
        first=len(context.services.topics) % len(node_ids),
    )


def _details(
    spec: TopicSpec,
    placement: Placement,
    configs: Mapping[str, str],
    context: RequestContext,
    *,
    validate_only: bool,
) -> TopicDetails:
    is_manual, session = placement.is_manual, context.session
    return TopicDetails(
        spec.name,
        None if is_manual else len(placement.partitions),
        None if is_manual else placement.replication_factor,
        dict(enumerate(placement.partitions)) if is_manual else None,
        configs,
        principal=session.principal,
        client_id=context.client_id,
        listener=session.listener,
        validate_only=validate_only,
        defaults=context.services.configs.topic_defaults(),
    )
