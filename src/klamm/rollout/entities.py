"""Values of topics, brokers, quotas and client configs, read and written by their names in the change history."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from klamm.admin import (
    AlterConfigOp,
    AlterConfigsOptions,
    ClientConfigEntity,
    ClientConfigOp,
    ClientQuotaEntity,
    ClientQuotaFilter,
    ClientQuotaOp,
    ConfigEntry,
    ConfigResource,
    EntityFilter,
    EntityType,
    FilterComponent,
    OpType,
)
from klamm.admin.types import own_values
from klamm.client_configs.rollout import PREFIX
from klamm.configs.definitions import is_secret
from klamm.configs.quotas import QUOTA_RESOURCE, parse_quota_resource, quota_resource, quota_text
from klamm.impact.changes import ClientConfigAltered, ConfigAltered, QuotaAltered
from klamm.kafka_client.errors import CLUSTER_ERRORS, explain
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import KafkaApiError, UnknownTopicOrPartitionError
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from klamm.admin import AdminClient, PolicyOverride
    from klamm.impact.changes import Change
    from klamm.rollout.record import Values, Wave

_USER: Final = "USER"
_BROKER: Final = "BROKER:"


class RejectedSettingsError(Exception):
    """The cluster rejects settings of some entities, or a broker does not respond; those of the others were written.

    Args:
        reasons: Error by entity.
        stored: All settings, those of the written entities as they are stored.
    """

    def __init__(self, reasons: Mapping[str, Exception], stored: Values) -> None:
        self.reasons = reasons
        self.stored = stored
        super().__init__("; ".join(f"{entity}: {explain(error)}" for entity, error in reasons.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityValues:
    """Present values of entities. Those that do not exist are left out."""

    values: Values
    unreadable: Mapping[str, Exception]
    """Error by entity that cannot be read, such as a broker that is down."""

    @property
    def trouble(self) -> str:
        """The entities that cannot be read with their errors, as text for people; empty if there are none."""
        return "; ".join(f"{entity} cannot be read: {explain(error)}" for entity, error in self.unreadable.items())


def configs_of(admin: AdminClient, entity: ClientConfigEntity) -> dict[str, str]:
    """Return the configs set on the entity itself, including roll-outs."""
    components = tuple(
        FilterComponent.of_default_entity(kind) if name is None else FilterComponent.of_entity(kind, name)
        for kind, name in entity.components
    )
    descriptions = admin.describe_client_configs(EntityFilter(components=components, strict=True)).result()
    return {key: value for described in descriptions for key, value in described.configs.items()}


def config_op(name: str, value: str | None) -> AlterConfigOp:
    """Return the operation that sets a config. None removes it."""
    return AlterConfigOp(ConfigEntry(name, value), OpType.DELETE if value is None else OpType.SET)


def quota_op(name: str, value: str | None) -> ClientQuotaOp:
    """Return the operation that sets a quota. None removes it."""
    return ClientQuotaOp(name, None if value is None else float(value))


def changes_of(waves: Iterable[Wave], before: Values) -> tuple[Change, ...]:
    """Return what all waves of a roll-out change in the end, for a prediction of the impact.

    Args:
        waves: The waves.
        before: Values before the first wave.
    """
    values = {
        (entity, key): value for wave in waves for entity, of in wave.settings.items() for key, value in of.items()
    }
    changes: list[Change] = []
    for (entity, key), value in values.items():
        kind, _, name = entity.partition(":")
        if kind == QUOTA_RESOURCE:
            limit = None if value is None else float(value)
            changes.append(QuotaAltered(entity=parse_quota_resource(name), name=key, value=limit))
        elif kind != _USER:
            changes.append(ConfigAltered(resource_type=ResourceType[kind], resource_name=name, name=key, value=value))
        elif not key.startswith(PREFIX):  # the last wave makes the value final
            parts = ((EntityType.USER.value, name or None),)
            present = before.get(entity, {}).get(key)
            changes.append(ClientConfigAltered(entity=parts, name=key, value=value, value_before=present))
    return tuple(changes)


class Entities:
    """Entities of one cluster.

    Calls raise one of ``CLUSTER_ERRORS`` if the cluster does not respond or denies a request. ``values`` and ``write``
    report an error that concerns single entities by entity, as when one of the brokers is down.

    Args:
        admin: Admin client.
    """

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def values(self, entities: Collection[str]) -> EntityValues:
        """Return the values that are set on entities.

        A broker that is down does not hinder the others: its configs are requested from itself.
        Quotas and configs are read from a broker that has applied all committed changes: the brokers of Kafka apply a
        change after its response was sent, and a revert must not take the value before it for the restored one.
        """
        by_kind = _by_kind(entities)
        users = {name: _user(name) for name in by_kind.pop(_USER, ())}
        quotas = by_kind.pop(QUOTA_RESOURCE, [])
        by_entity: dict[str, Mapping[str, str | None]] = {}
        unreadable: dict[str, Exception] = {}
        resources = {_resource(entity): entity for kind in by_kind.values() for entity in kind}
        for resource, outcome in self._admin.describe_configs(list(resources), is_current=True).values().items():
            try:
                by_entity[resources[resource]] = own_values(resource, outcome.result())
            except UnknownTopicOrPartitionError:
                continue
            except CLUSTER_ERRORS as error:
                if not _is_of_entity(resources[resource], error):
                    raise
                unreadable[resources[resource]] = error
        if quotas:
            described = self._admin.describe_client_quotas(ClientQuotaFilter(), is_current=True).result()
            values = {quota_resource(entity.parts): of for entity, of in described.items()}
            for entity in quotas:
                by_entity[entity] = {key: quota_text(value) for key, value in values.get(entity, {}).items()}
        for entity, user in users.items():
            by_entity[entity] = configs_of(self._admin, user)
        return EntityValues(values=by_entity, unreadable=unreadable)

    def secrets(self, settings: Values) -> list[str]:
        """Return each config of settings whose value the cluster does not show, so that it cannot be restored."""
        names = [
            name for kind, some in _by_kind(settings).items() if kind not in {_USER, QUOTA_RESOURCE} for name in some
        ]
        resources = {name: _resource(name) for name in names}
        described = self._admin.describe_configs(list(resources.values())).all().result()
        return [
            f"{name}: {key}"
            for name, resource in resources.items()
            for key in settings[name]
            if (
                described[resource][key].is_sensitive
                if key in described[resource]
                else resource.type is ResourceType.BROKER and is_secret(key)  # with a listener's prefix, not set yet
            )
        ]

    def write(self, settings: Values, *, validate_only: bool = False) -> Values:
        """Set and remove configs. Each entity is changed completely or not at all.

        Returns:
            The settings as they are stored: a policy of klamm may replace values, and add keys.

        Raises:
            RejectedSettingsError: The cluster rejects settings of some entities, or a broker does not respond.
        """
        by_kind = _by_kind(settings)
        users, quotas = by_kind.pop(_USER, []), by_kind.pop(QUOTA_RESOURCE, [])
        configs = [entity for kind in by_kind.values() for entity in kind]
        results: dict[str, Any] = {}
        if configs:
            operations = {
                _resource(entity): [config_op(key, value) for key, value in settings[entity].items()]
                for entity in configs
            }
            options = AlterConfigsOptions(validate_only=validate_only)
            altered = self._admin.incremental_alter_configs(operations, options).values()
            results |= {entity: altered[_resource(entity)] for entity in configs}
        if quotas:
            quota_ops = {_quota(entity): [quota_op(*each) for each in settings[entity].items()] for entity in quotas}
            changed = self._admin.alter_client_quotas(quota_ops, validate_only=validate_only).values()
            results |= {entity: changed[_quota(entity)] for entity in quotas}
        if users:
            client_ops = {_user(name): [ClientConfigOp(*each) for each in settings[name].items()] for name in users}
            sent = self._admin.alter_client_configs(client_ops, validate_only=validate_only).values()
            results |= {entity: sent[_user(entity)] for entity in users}
        return _stored(settings, results)


def _stored(settings: Values, results: Mapping[str, Any]) -> Values:
    """Wait for all results and return the settings with all values that policies stored."""
    reasons: dict[str, Exception] = {}
    stored = dict(settings)
    for entity, outcome in results.items():
        try:
            override: PolicyOverride | None = outcome.result()
        except CLUSTER_ERRORS as error:
            if not _is_of_entity(entity, error):
                raise
            reasons[entity] = error
            continue
        if override is not None:
            stored[entity] = {**settings[entity], **override.values}
    if reasons:
        raise RejectedSettingsError(reasons, stored)
    return stored


def _is_of_entity(entity: str, error: Exception) -> bool:
    """Return whether an error concerns this entity alone. Any broker serves the others, so none of them responds."""
    return isinstance(error, KafkaApiError) or entity.startswith(_BROKER)


def _by_kind(entities: Collection[str]) -> defaultdict[str, list[str]]:
    by_kind: defaultdict[str, list[str]] = defaultdict(list)
    for entity in entities:
        by_kind[entity.partition(":")[0]].append(entity)
    return by_kind


def _resource(entity: str) -> ConfigResource:
    kind, _, name = entity.partition(":")
    return ConfigResource(ResourceType[kind], name)


def _user(entity: str) -> ClientConfigEntity:
    return ClientConfigEntity.of_user(entity.partition(":")[2] or None)


def _quota(entity: str) -> ClientQuotaEntity:
    return ClientQuotaEntity(parse_quota_resource(entity.partition(":")[2]))
