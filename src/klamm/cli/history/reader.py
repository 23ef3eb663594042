"""Recorded config changes, for the commands ``history`` and ``revert``. Kafka has no request for them.

==========================  ==========================================================================================
Where                       What
==========================  ==========================================================================================
``--data-dir``              All changes that a klamm broker has made. The broker may be running.
``--bootstrap-server``      Of a cluster behind klamm gateways: changes that clients have made through them, in internal
                            topics. Of a klamm broker on this machine: its data directory, which it reports as
                            ``log.dirs`` and which has the cluster id of the server. A broker elsewhere may have the
                            same path.
==========================  ==========================================================================================
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.cli.arguments import shown_moment
from klamm.cli.connection import RequestError, connect, parse_addresses, read_client_properties
from klamm.cli.output import print_error
from klamm.client_configs.entities import EntityType
from klamm.configs.quotas import QUOTA_RESOURCE, parse_quota_resource, quota_resource, shown_quota_resource
from klamm.display import escaped
from klamm.protocol.errors import (
    KafkaApiError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from klamm.admin import AdminClient
    from klamm.history.change import RecordedChange

_Read: TypeAlias = "tuple[Sequence[RecordedChange], Callable[[], int | None]]"
_LOG_DIRS: Final = "log.dirs"


def read_changes(
    options: argparse.Namespace, resource: str | None, *, limit: int, since_ms: int | None = None
) -> Sequence[RecordedChange]:
    """Return the newest recorded changes, newest first. A line on stderr names the place and what it cannot contain.

    Args:
        options: Flags of the command: ``data_dir``, ``bootstrap_server`` and ``command_config``.
        resource: Resource as the history shows it. None for all resources.
        limit: Largest number of changes.
        since_ms: Time after which no change may be missing, in milliseconds since the epoch. None: some may.

    Raises:
        RequestError: No changes are recorded in this place, or changes after ``since_ms`` are not kept any more.
    """
    changes, read_start = _read(options, _recorded(resource), limit=limit)
    # Read after the changes: what was removed in between counts.
    if since_ms is not None and (start_ms := read_start()) is not None and since_ms < start_ms:
        raise RequestError(
            f"{shown_moment(since_ms)}: older changes than that of {shown_moment(start_ms)} were removed from the "
            "history, so the values of that time are not known: name a later time, or set the values yourself"
        )
    return [replace(change, resource=shown_quota_resource(change.resource)) for change in changes]


def _recorded(resource: str | None) -> str | None:
    """Return a resource as it is recorded. Only users of quotas are recorded without the escape that is shown."""
    kind, _, name = (resource or "").partition(":")
    return quota_resource(parse_quota_resource(name)) if kind == QUOTA_RESOURCE else resource


def _read(options: argparse.Namespace, resource: str | None, *, limit: int) -> _Read:
    """Return the newest changes, and a function that reads when the kept ones begin; None if none were removed."""
    if options.data_dir is not None:
        return _of_directory(Path(options.data_dir), resource, limit)
    with connect(options) as admin:
        topics = _history_topics(admin)
        directory = None if topics else _local_directory(admin)
    if directory is not None:
        return _of_directory(directory, resource, limit)
    if not topics:
        raise RequestError(
            "No history was found: the broker's data directory is not on this machine (name it with --data-dir), and"
            " the cluster has no history of a klamm gateway that this principal may read"
        )
    return _of_gateways(options, topics, resource, limit)


def is_client_resource(resource: str) -> bool:
    """Return whether a resource, as the history shows it, is a user or a client id of a user.

    Their text is that of ``ClientConfigEntity``, which has no TYPE before a colon.
    """
    return resource.startswith((f"{EntityType.USER} '", f"the default {EntityType.USER}"))


def _of_directory(directory: Path, resource: str | None, limit: int) -> _Read:
    from klamm.storage.errors import DataDirectoryError  # noqa: PLC0415  # wrong flags need no database
    from klamm.storage.metadata.history import read_config_history, read_history_start  # noqa: PLC0415

    try:
        changes = read_config_history(directory, resource=resource, limit=limit)
    except DataDirectoryError as error:
        raise RequestError(str(error)) from error
    print_error(
        f"Read from {escaped(str(directory))}: all changes that this broker made, except those that"
        " config.history.max.entries has removed."
    )
    return changes, partial(read_history_start, directory)


def _of_gateways(options: argparse.Namespace, topics: Sequence[str], resource: str | None, limit: int) -> _Read:
    from klamm.gateway.history.log import (  # noqa: PLC0415
        CLIENT_CONFIGS_TOPIC,
        TOPIC,
        read_change_history,
        read_history_start,
    )
    from klamm.gateway.upstream.internal_topic import InternalTopicGoneError  # noqa: PLC0415
    from klamm.kafka_client.connection.transport import ConnectionSettings  # noqa: PLC0415  # wrong flags need no network library

    if resource is not None:
        wanted, what = (CLIENT_CONFIGS_TOPIC, "client configs") if is_client_resource(resource) else (TOPIC, "others")
        if wanted not in topics:
            raise RequestError(
                f"{resource}: the gateways of this cluster record no such changes, or this principal may not read"
                f" them. The history of {what} is in the topic {wanted}"
            )
        topics = [wanted]

    servers = parse_addresses(options.bootstrap_server)
    settings = ConnectionSettings.of(tuple(servers), read_client_properties(options.command_config), "klamm-admin")
    try:
        changes = read_change_history(settings, topics, resource=resource, limit=limit)
    except InternalTopicGoneError as error:
        raise RequestError(str(error)) from error
    except UnsupportedVersionError as error:
        raise RequestError(
            f"{', '.join(servers)} serves no Fetch, as a gateway with --admin-only: name the brokers in"
            " --bootstrap-server"
        ) from error
    print_error(
        f"Read from {' and '.join(topics)} of {', '.join(servers)}: changes made through klamm gateways. Not recorded:"
        " changes past the gateways, topics that brokers created, and what the retention of the topic has deleted."
    )
    return changes, partial(read_history_start, settings, topics[0])


def _history_topics(admin: AdminClient) -> Sequence[str]:
    """Return the topics in which gateways keep histories in the cluster, as far as the principal may know."""
    from klamm.gateway.history.log import CLIENT_CONFIGS_TOPIC, TOPIC  # noqa: PLC0415  # needs the network library

    topics = []
    for topic, outcome in admin.describe_topics([TOPIC, CLIENT_CONFIGS_TOPIC]).values().items():
        try:
            outcome.result()
        except (TopicAuthorizationError, UnknownTopicOrPartitionError):
            continue
        topics.append(topic)
    return topics


def _local_directory(admin: AdminClient) -> Path | None:
    """Return the ``log.dirs`` of the first broker; None if it is not on this machine or must not be seen."""
    from klamm.admin import ConfigResource  # noqa: PLC0415  # with --data-dir this needs no network library

    cluster = admin.describe_cluster().result()
    broker = ConfigResource(ResourceType.BROKER, str(cluster.nodes[0].id))
    try:
        entry = admin.describe_configs({broker: [_LOG_DIRS]}).all().result()[broker].get(_LOG_DIRS)
    except KafkaApiError:
        return None
    if entry is None or entry.value is None or not (directory := Path(entry.value)).is_dir():
        return None
    stored = _cluster_id(directory)
    return None if stored is None or stored != cluster.cluster_id else directory


def check_cluster(options: argparse.Namespace) -> None:
    """Check that ``--data-dir`` does not belong to another cluster than ``--bootstrap-server``.

    Raises:
        RequestError: It does. Its values must not be applied to this cluster.
    """
    stored = None if options.data_dir is None else _cluster_id(Path(options.data_dir))
    if stored is None:
        return
    with connect(options) as admin:
        cluster_id = admin.describe_cluster().result().cluster_id
    if cluster_id not in (None, stored):
        raise RequestError(
            f"{options.data_dir} belongs to the cluster {stored}, but {options.bootstrap_server} to the cluster"
            f" {cluster_id}: name the data directory of a broker of that cluster"
        )


def _cluster_id(directory: Path) -> str | None:
    """Return the cluster id that a data directory stores; None if it is not one of a klamm broker."""
    from klamm.storage.metadata.identity import LOGS_DIRECTORY, read_cluster_id  # noqa: PLC0415  # see _of_directory

    return read_cluster_id(directory / LOGS_DIRECTORY)
