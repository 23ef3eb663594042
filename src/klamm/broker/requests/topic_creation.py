"""Creation of topics: by CreateTopics, automatically for a client, or by the broker itself.

The checks have Kafka's order: name, existence, configs, partitions, replicas. Then the policy is asked about a topic
that is otherwise valid (KIP-108), the partition quota is charged, and the topic is created.

The rejection of an automatic creation is remembered for a moment, because such a client retries several times a second.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from klamm.broker.topics.catalog import Topic
from klamm.broker.topics.placement import UNSET, Placement, check_request_size, place_new_topic
from klamm.client_configs.registrations import TOPIC as REGISTRATIONS_TOPIC
from klamm.configs.names import CLUSTER_METADATA, INTERNAL_TOPICS, check_topic_name
from klamm.lazy_dataclass import dataclass
from klamm.policy.kinds import CREATE_TOPIC
from klamm.policy_runtime.decision import overridden_configs
from klamm.policy_runtime.details import topic_details
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
    from klamm.broker.quotas import MutationQuota
    from klamm.broker.topics.catalog import TopicCatalog
    from klamm.policy.answers import Override
    from klamm.policy.details import TopicDetails

RESERVED_NAMES: Final = INTERNAL_TOPICS | {REGISTRATIONS_TOPIC}
"""Topics that only the broker itself may create."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A requested topic."""

    name: str
    num_partitions: int = UNSET
    replication_factor: int = UNSET
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    """Pairs of partition and broker ids, as in the request; empty to let the broker choose."""
    configs: Sequence[tuple[str, str | None]] = ()
    is_automatic: bool = False
    """Whether a client only requested the topic's metadata. Such a client retries after a rejection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopic:
    """A topic that was created, or would be with ``validate_only``."""

    topic: Topic
    configs: Mapping[str, str] = field(default_factory=dict)
    """Configs set on the topic, without defaults."""
    durable: asyncio.Future[None] | None = None
    """Future that is done when the topic is on disk; None with ``validate_only``."""
    note: str | None = None
    """Text about what a policy changed in the request; None if it changed nothing."""


async def create_topic(spec: TopicSpec, context: RequestContext) -> Topic:
    """Create a topic for a client that needs it, and return when the topic is on disk.

    Raises:
        KafkaApiError: The name, configs, placement, policy or a quota rejects the topic, or the disk write failed.
    """
    created = await begin_topic(spec, context, context.mutation_quota(is_strict=True))
    if created.durable is not None:
        await created.durable
    return created.topic


async def begin_topic(
    spec: TopicSpec, context: RequestContext, quota: MutationQuota, *, validate_only: bool = False
) -> CreatableTopic:
    """Check a topic and create it in memory unless ``validate_only``, without waiting for the disk.

    Raises:
        KafkaApiError: The name, configs, placement, policy or quota rejects the topic.
    """
    services, note = context.services, None

    def remember(denial: KafkaApiError) -> None:
        if spec.is_automatic:
            services.policies.denied_creations.remember(spec.name, context.author, denial.error_code)

    def change(override: Override) -> None:
        nonlocal spec, note
        spec, note = _overridden(spec, override), override.note

    async with services.policies.turn(CREATE_TOPIC):
        placement, configs = await services.policies.decide(
            CREATE_TOPIC,
            decide=lambda: _decide(spec, context),
            details=lambda decided: _details(spec, *decided, context, validate_only=validate_only),
            revision=services.configs.revision,
            on_denied=remember,
            on_override=change,
        )
        quota.charge(len(placement.partitions))
        topics = services.topics
        if validate_only:
            topic = Topic(name=spec.name, topic_id=topics.new_topic_id(), partitions=placement.partitions)
            return CreatableTopic(topic=topic, configs=configs, note=note)
        topic, durable = topics.begin_create(spec.name, placement.partitions, configs=configs, author=context.author)
    return CreatableTopic(topic=topic, configs=configs, durable=durable, note=note)


def _overridden(spec: TopicSpec, override: Override) -> TopicSpec:
    partitions, factor = override.num_partitions, override.replication_factor
    return replace(
        spec,
        num_partitions=spec.num_partitions if partitions is None else partitions,
        replication_factor=spec.replication_factor if factor is None else factor,
        configs=overridden_configs(spec.configs, override.configs),
    )


async def check_size(specs: Iterable[TopicSpec], context: RequestContext) -> None:
    """Reject a request with too many partitions, before any other check.

    Raises:
        PolicyViolationError: Its topics have 10,000 or more partitions in total.
    """
    default = _default_num_partitions(context)
    counts = await context.time_slice.listed(
        len(s.assignments) or (default if s.num_partitions == UNSET else s.num_partitions) for s in specs
    )
    check_request_size(sum(count for count in counts if count > 0))


def _default_num_partitions(context: RequestContext) -> int:
    return context.services.configs.int_value("num.partitions")


def _decide(spec: TopicSpec, context: RequestContext) -> tuple[Placement, Mapping[str, str]]:
    check_new_name(spec.name, context.services.topics)
    configs = context.services.configs.validate_topic_configs(spec.name, spec.configs)
    return _place(spec, context), configs


def check_new_name(name: str, topics: TopicCatalog) -> None:
    """Check the name of a topic that anyone but the broker itself creates.

    Raises:
        InvalidRequestError: The name belongs to Kafka's controllers.
        InvalidTopicError: The name is not valid, is reserved, or collides with that of a topic.
        TopicAlreadyExistsError: The topic exists.
    """
    if name == CLUSTER_METADATA:
        raise InvalidRequestError(f"Creation of internal topic {CLUSTER_METADATA} is prohibited.")
    check_topic_name(name)
    if topics.get(name) is not None:
        raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")
    if name in RESERVED_NAMES:
        raise InvalidTopicError(f"Topic '{name}' is reserved: the broker creates it when it is needed.")
    colliding = topics.colliding(name)
    if colliding is not None:
        raise InvalidTopicError(f"Topic '{name}' collides with existing topic: {colliding}")


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
        default_replication_factor=configs.int_value("default.replication.factor"),
        node_ids=node_ids,
        first=len(context.services.topics) % len(node_ids),
        cordoned=configs.cordoned_nodes(),
    )


def _details(
    spec: TopicSpec,
    placement: Placement,
    configs: Mapping[str, str],
    context: RequestContext,
    *,
    validate_only: bool,
) -> TopicDetails:
    return topic_details(
        spec.name,
        num_partitions=len(placement.partitions),
        replication_factor=placement.replication_factor,
        assignments=dict(enumerate(placement.partitions)) if placement.is_manual else None,
        configs=configs,
        defaults=context.services.configs.topic_defaults(),
        requester=context.author,
        validate_only=validate_only,
    )
