"""Live values of resources in the change history, and how they differ from the values that were recorded last."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from klamm.admin import ClientQuotaFilter, ConfigResource
from klamm.admin.types import own_source, own_values
from klamm.configs.quotas import QUOTA_RESOURCE, entity_text, quota_text
from klamm.history.change import NOT_KEPT, PARTITIONS
from klamm.kafka_client.errors import CLUSTER_ERRORS
from klamm.protocol.errors import UnknownTopicOrPartitionError
from klamm.protocol.types import ResourceType
from klamm.resources.equality import is_same
from klamm.resources.model import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.admin import AdminClient
    from klamm.history.change import RecordedChange


def live_values(admin: AdminClient, names: Iterable[str]) -> dict[str, Mapping[str, str]]:
    """Return the values that are set on resources, by the name of the resource in the history.

    Resources that the principal may not describe are left out, as are SCRAM credentials and client configs.
    """
    wanted = {}
    quotas = set()
    for name in names:
        kind, _, rest = name.partition(":")
        if kind == QUOTA_RESOURCE:
            quotas.add(name)
        elif kind in ResourceType.__members__ and own_source(resource := ConfigResource(ResourceType[kind], rest)):
            wanted[resource] = name
    live: dict[str, Mapping[str, str]] = {name: {} for name in quotas}
    try:
        described = admin.describe_client_quotas(ClientQuotaFilter()).result() if quotas else {}
    except CLUSTER_ERRORS:
        live, described = {}, {}
    for entity, values in described.items():
        shown = f"{QUOTA_RESOURCE}:{entity_text(entity.parts)}"
        live[shown] = {key: str(quota_text(value)) for key, value in values.items()}
    for resource, configs in admin.describe_configs(list(wanted)).values().items():
        with suppress(*CLUSTER_ERRORS):
            error = configs.exception()
            entries = {} if isinstance(error, UnknownTopicOrPartitionError) else configs.result()
            live[wanted[resource]] = own_values(resource, entries)
    return live


def differences(changes: Sequence[RecordedChange], live: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a sentence for each live value that differs from the last recorded one.

    Args:
        changes: Recorded changes, newest first.
        live: Live values by resource. Resources without an entry are not compared.
    """
    last: dict[tuple[str, str], RecordedChange] = {}
    for change in changes:
        last.setdefault((change.resource, change.name), change)
    sentences = []
    for (resource, name), change in last.items():
        if resource not in live or name == PARTITIONS or change.new in NOT_KEPT:
            continue
        value = live[resource].get(name)
        if value != change.new and not (change.new is not None and is_same(_kind(resource), name, value, change.new)):
            sentences.append(
                f"{resource}: {name} is {_text(value)}, but the last recorded change left it {_text(change.new)}: a"
                " later change is not in this history"
            )
    return sentences


def _kind(resource: str) -> Kind:
    """Return the kind of a resource by its name in the history."""
    kind = resource.partition(":")[0]
    return Kind.QUOTA if kind == QUOTA_RESOURCE else Kind(kind.lower().replace("_", "-"))


def _text(value: str | None) -> str:
    return "unset" if value is None else value
