"""Request details passed to policies. All of them are read-only: a policy decides, it does not change the request."""

from __future__ import annotations

from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.lazy_dataclass import dataclass
from klamm.policy.errors import ImpactNeeded, ImpactUnknownError
from klamm.protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from klamm.impact.findings import Impact
    from klamm.policy.answers import Override

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def _freeze(details: object, *names: str) -> None:
    """Replace mappings of the caller in these fields with read-only copies.

    A MappingProxyType is kept as it is. Its owner must not change the mapping behind it.
    """
    for name in names:
        mapping = getattr(details, name)
        if not isinstance(mapping, MappingProxyType):
            object.__setattr__(details, name, MappingProxyType(dict(mapping)))


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """A topic about to be created (KIP-108). Arguments may be positional, in the KIP's order, for tests of policies.

    Either the two numbers are given or the assignments, never both.
    """

    topic: str
    num_partitions: int | None
    """Number of partitions, with the broker's default filled in. None if the request assigns replicas."""
    replication_factor: int | None
    """Replication factor, with the broker's default filled in. None if the request assigns replicas."""
    replicas_assignments: Mapping[int, Sequence[int]] | None
    """Broker ids by partition, the leader first. None if the broker assigns the replicas."""
    configs: Mapping[str, str]
    """Only the configs that the request sets. ``defaults`` has the broker's defaults."""
    principal: str | None = None
    """Requesting principal as ``Type:name``. None if the broker does not provide it."""
    client_id: str | None = None
    """Client id of the request. None if the client sends none."""
    listener: str | None = None
    """Name of the listener that received the request."""
    validate_only: bool = False
    """Whether the request only validates and creates nothing."""
    defaults: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """The broker's value of every topic config, in force where ``configs`` does not set one. Empty if unknown."""

    def __post_init__(self) -> None:
        """Replace the caller's mappings with read-only copies."""
        if self.replicas_assignments is not None:
            frozen = {partition: tuple(brokers) for partition, brokers in self.replicas_assignments.items()}
            object.__setattr__(self, "replicas_assignments", MappingProxyType(frozen))
        _freeze(self, "configs", "defaults")


class WithImpact:
    """Details of a change whose impact can be predicted."""

    __slots__ = ()
    prediction: Impact | ImpactUnknownError | None

    @property
    def impact(self) -> Impact:
        """Predicted effects of the change on records, clients and brokers (``klamm.impact``), with every finding.

        The first use ends the call of the policy. The server then collects the facts, and calls the policy again with
        the same details. So a policy must not do anything with a lasting effect before.

        Raises:
            ImpactUnknownError: The impact could not be determined within ``policy.timeout.ms``. Not caught, it denies
                the change.
        """
        if self.prediction is None:
            raise ImpactNeeded
        if isinstance(self.prediction, ImpactUnknownError):
            raise self.prediction.with_traceback(None)  # the same object may be raised repeatedly
        return self.prediction


@dataclass(frozen=True, slots=True)
class AlterConfigDetails(WithImpact):
    """A change of configs about to be made."""

    resource_type: str
    """Kafka's name of the resource type: TOPIC, BROKER, GROUP or CLIENT_METRICS."""
    resource_name: str
    """Name of the resource. For BROKER, ``""`` means the cluster-wide default."""
    configs: Mapping[str, str | None]
    """Configs that the request names, with None for removed ones. Configs that a replacing AlterConfigs removes by
    omission are not included; see ``removed``.
    """
    result: Mapping[str, str]
    """All configs set on the resource after the change."""
    principal: str | None = None
    """Requesting principal as ``Type:name``."""
    client_id: str | None = None
    """Client id of the request. None if the client sends none."""
    listener: str | None = None
    """Name of the listener that received the request."""
    validate_only: bool = False
    """Whether the request only validates and changes nothing."""
    removed: frozenset[str] = frozenset()
    """Configs that are set before the change but not after it, including those that a replacing AlterConfigs drops."""
    defaults: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """For TOPIC and BROKER, the values of configs where ``result`` does not set one, without secrets. A value that is
    unknown is missing. Otherwise empty.
    """
    before: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """All configs set on the resource before the change."""
    replication_factor: int | None = None
    """For TOPIC, the number of replicas of the partition with the fewest. None if unknown."""
    prediction: Impact | ImpactUnknownError | None = field(default=None, compare=False, repr=False)
    """Value of ``impact``, or the error that it raises. None before the server has collected the facts."""

    def __post_init__(self) -> None:
        """Replace the caller's mappings with read-only copies."""
        _freeze(self, "configs", "result", "defaults", "before")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsDetails(WithImpact):
    """A topic about to get more partitions."""

    topic: str
    topic_id: UUID | None = None
    """Id of the topic. None only in tests that do not set it."""
    num_partitions: int
    """Current number of partitions."""
    new_num_partitions: int
    """Requested number of partitions."""
    replication_factor: int = 1
    """Number of replicas of each partition."""
    new_assignments: Sequence[Sequence[int]] | None = None
    """Broker ids of each added partition, the leader first. None if the broker assigns the replicas."""
    configs: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """Configs that the topic sets."""
    defaults: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """The broker's value of every topic config, in force where ``configs`` does not set one. Empty if unknown."""
    principal: str | None = None
    """Requesting principal as ``Type:name``."""
    client_id: str | None = None
    """Client id of the request. None if the client sends none."""
    listener: str | None = None
    """Name of the listener that received the request."""
    validate_only: bool = False
    """Whether the request only validates and adds nothing."""
    prediction: Impact | ImpactUnknownError | None = field(default=None, compare=False, repr=False)
    """Value of ``impact``, or the error that it raises. None before the server has collected the facts."""

    def __post_init__(self) -> None:
        """Replace the caller's mappings and lists with read-only copies."""
        if self.new_assignments is not None:
            object.__setattr__(self, "new_assignments", tuple(map(tuple, self.new_assignments)))
        _freeze(self, "configs", "defaults")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicDetails(WithImpact):
    """A topic about to be deleted with all its records."""

    topic: str
    topic_id: UUID | None = None
    """Id of the topic. None only in tests that do not set it."""
    num_partitions: int = 1
    replication_factor: int = 1
    principal: str | None = None
    """Requesting principal as ``Type:name``."""
    client_id: str | None = None
    """Client id of the request. None if the client sends none."""
    listener: str | None = None
    """Name of the listener that received the request."""
    prediction: Impact | ImpactUnknownError | None = field(default=None, compare=False, repr=False)
    """Value of ``impact``, or the error that it raises. None before the server has collected the facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceDetails:
    """Batches about to be appended to a topic, by one Produce request."""

    topic: str
    acks: int
    """``acks`` of the request: 0, 1 or -1 for all."""
    is_idempotent: bool
    """Whether all batches have a producer id."""
    principal: str | None = None
    """Requesting principal as ``Type:name``."""
    client_id: str | None = None
    """Client id of the request. None if the client sends none."""
    listener: str | None = None
    """Name of the listener that received the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    """A consumer about to join a group, or offsets about to be committed for it."""

    group_id: str
    principal: str | None = None
    """Requesting principal as ``Type:name``."""
    client_id: str | None = None
    """Client id of the request. None if the client sends none."""
    listener: str | None = None
    """Name of the listener that received the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDetails:
    """A client that has connected to a gateway and logged in."""

    client_id: str | None
    """Client id of its first request, or of the first one with another client id. None if the client sends none."""
    principal: str | None = None
    """Principal of the client as ``Type:name``."""
    listener: str | None = None
    """Name of the listener to which it is connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiDetails:
    """Requests of one API that a client sends to a gateway."""

    api: str
    """Name of the API as in Kafka's ``ApiKeys``, such as DELETE_RECORDS; the API key if klamm does not know it."""
    principal: str | None = None
    """Principal of the client as ``Type:name``."""
    client_id: str | None = None
    """Client id of the request. None if the client sends none."""
    listener: str | None = None
    """Name of the listener to which the client is connected."""


Details: TypeAlias = (
    TopicDetails
    | AlterConfigDetails
    | CreatePartitionsDetails
    | DeleteTopicDetails
    | ProduceDetails
    | GroupDetails
    | ClientDetails
    | ApiDetails
)

RequestMetadata = TopicDetails
"""Name of ``TopicDetails`` in released Kafka."""


def overridden(details: Details, override: Override) -> Details:
    """Return what a policy sees of a request after its override, for decisions that are not carried out.

    Raises:
        InvalidRequestError: The override sets numbers of a topic with assigned replicas.
    """
    if isinstance(details, TopicDetails):
        count, factor = override.num_partitions, override.replication_factor
        if details.replicas_assignments is not None and (count, factor) != (None, None):
            raise InvalidRequestError("The policy sets numbers of a topic with assigned replicas.")
        return replace(
            details,
            configs=_changed(details.configs, override),
            num_partitions=details.num_partitions if count is None else count,
            replication_factor=details.replication_factor if factor is None else factor,
        )
    if isinstance(details, AlterConfigDetails):
        result = _changed(details.result, override)
        names = [*(name for name in details.configs if name not in override.configs), *override.configs]
        return replace(
            details,
            configs={name: result.get(name) for name in names if result.get(name) != details.before.get(name)},
            result=result,
            removed=frozenset(details.before).difference(result),
            prediction=None,
        )
    if isinstance(details, ProduceDetails) and override.acks is not None:
        return replace(details, acks=override.acks)
    return details


def _changed(configs: Mapping[str, str], override: Override) -> dict[str, str]:
    """Return configs after an override, which come last as in the changed request."""
    kept = {name: value for name, value in configs.items() if name not in override.configs}
    return kept | {name: value for name, value in override.configs.items() if value is not None}
