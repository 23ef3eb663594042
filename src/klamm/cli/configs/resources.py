"""Configs of topics, brokers, loggers, groups and client metrics in ``klamm configs``."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from klamm.admin import AlterConfigOp, AlterConfigsOptions, ConfigEntry, ConfigResource, ConfigSource, OpType
from klamm.admin import ResourceType as Kind
from klamm.admin.types import own_source
from klamm.cli.connection import RequestError
from klamm.cli.output import print_result
from klamm.protocol.errors import UnknownTopicOrPartitionError, UnsupportedVersionError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from klamm.admin import AdminClient, PolicyOverride
    from klamm.cli.configs.changes import Changes
    from klamm.cli.configs.entities import Target

_KINDS: Final = {
    "topics": Kind.TOPIC,
    "brokers": Kind.BROKER,
    "broker-loggers": Kind.BROKER_LOGGER,
    "client-metrics": Kind.CLIENT_METRICS,
    "groups": Kind.GROUP,
}
_SPELLED: Final = {
    ConfigSource.CLIENT_METRICS_CONFIG: "DYNAMIC_CLIENT_METRICS_CONFIG",
    ConfigSource.GROUP_CONFIG: "DYNAMIC_GROUP_CONFIG",
}
"""Names of the Java admin client that differ from the names in the protocol."""


def resource_type(target: Target) -> Kind:
    """Return the resource type of an entity."""
    return _KINDS[target.types[0]]


def describe(admin: AdminClient, target: Target, options: argparse.Namespace) -> None:
    """Print the configs of one entity, or of all entities of its type."""
    kind = target.types[0]
    name = target.name_of(kind)
    if name and not options.all and not _exists(admin, kind, name):
        missing = f"The {kind[:-1]} '{name}' doesn't exist and doesn't have dynamic config."
        print_result(options.output, [], lambda: [missing])
        return
    shown: list[str] = []
    documents: list[dict[str, Any]] = []
    for entity in _all(admin, kind) if name is None else (name,):
        if entity or kind == "topics":
            shown.append(f"{'All' if options.all else 'Dynamic'} configs for {kind[:-1]} {entity} are:")
        else:
            shown.append(f"Default configs for {kind} in the cluster are:")
        entries = _entries(admin, kind, entity, everything=options.all)
        shown += map(_line, entries)
        documents.append({"entity_type": kind, "entity_name": entity, "configs": list(map(_document, entries))})
    print_result(options.output, documents, lambda: shown)


def alter(admin: AdminClient, target: Target, changes: Changes, options: argparse.Namespace) -> PolicyOverride | None:
    """Send exactly the requested changes of one entity (KIP-339).

    Returns:
        What a policy of klamm stored in place of requested values.

    Raises:
        RequestError: A logger does not exist. Nothing is sent.
    """
    kind, name = target.types[0], target.names[0]
    if kind == "broker-loggers":
        current = {entry.name for entry in _entries(admin, kind, name, everything=False)}
        if wrong := [logger for logger in (*changes.deleted, *changes.added) if logger not in current]:
            raise RequestError(f"Invalid broker logger(s): {','.join(wrong)}")
    operations = [
        *_operations(changes.added, OpType.SET),
        *(AlterConfigOp(ConfigEntry(key, None), OpType.DELETE) for key in changes.deleted),
        *_operations(changes.appended, OpType.APPEND),
        *_operations(changes.subtracted, OpType.SUBTRACT),
    ]
    resource = ConfigResource(_KINDS[kind], name)
    validation = AlterConfigsOptions(validate_only=options.validate_only)
    return admin.incremental_alter_configs({resource: operations}, validation).values()[resource].result()


def _operations(pairs: Mapping[str, str], op_type: OpType) -> list[AlterConfigOp]:
    return [AlterConfigOp(ConfigEntry(key, value), op_type) for key, value in pairs.items()]


def _exists(admin: AdminClient, kind: str, name: str) -> bool:
    return name in (_groups(admin) if kind == "groups" else _all(admin, kind))


def _all(admin: AdminClient, kind: str) -> Sequence[str]:
    """Return the names of all entities of a type, sorted; "" is the default of all brokers."""
    if kind == "topics":
        return tuple(admin.list_topics(include_internal=True).result())
    if kind == "client-metrics":
        return admin.list_config_resources(Kind.CLIENT_METRICS).result()
    if kind == "groups":
        return _groups(admin)
    return (*(str(node.id) for node in admin.describe_cluster().result().nodes), "")


def _groups(admin: AdminClient) -> Sequence[str]:
    groups = {group.group_id for group in admin.list_groups().result()}
    with suppress(UnsupportedVersionError):  # brokers before 4.1 cannot list further groups that have configs
        groups.update(admin.list_config_resources(Kind.GROUP).result())
    return sorted(groups)


def _entries(admin: AdminClient, kind: str, name: str, *, everything: bool) -> list[ConfigEntry]:
    resource = ConfigResource(_KINDS[kind], name)
    source = own_source(resource)
    try:
        entries = admin.describe_configs([resource], include_synonyms=True).all().result()[resource]
    except UnknownTopicOrPartitionError as error:
        raise RequestError(f"Topic '{name}' does not exist") from error
    return sorted(
        (entry for entry in entries.values() if everything or source is None or entry.source is source),
        key=lambda entry: entry.name,
    )


def _line(entry: ConfigEntry) -> str:
    synonyms = ", ".join(
        f"{_spelled(synonym.source)}:{synonym.name}={_text(synonym.value)}" for synonym in entry.synonyms
    )
    sensitive = str(entry.is_sensitive).lower()
    return f"  {entry.name}={_text(entry.value)} sensitive={sensitive} synonyms={{{synonyms}}}"


def _document(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": _spelled(entry.source),
        "sensitive": entry.is_sensitive,
        "read_only": entry.is_read_only,
        "synonyms": [
            {"source": _spelled(synonym.source), "name": synonym.name, "value": synonym.value}
            for synonym in entry.synonyms
        ],
    }


def _spelled(source: ConfigSource) -> str:
    return _SPELLED.get(source, source.name)


def _text(value: str | None) -> str:
    return "null" if value is None else value
