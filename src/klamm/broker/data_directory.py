"""Opening of a data directory: check that metadata and logs belong together, or rebuild lost metadata from the logs."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.broker.configs.policy_settings import max_history
from klamm.broker.producer_ids import SETTING as NEXT_PRODUCER_ID
from klamm.broker.security.authorizer import stored_acl
from klamm.broker.transactions.decisions import decision_from_payload
from klamm.broker.transactions.model import from_payload as transaction_from_payload
from klamm.client_configs.registrations import TOPIC as REGISTRATIONS_TOPIC
from klamm.configs.definitions import find_broker_config, group_configs, topic_configs
from klamm.configs.names import INTERNAL_TOPICS
from klamm.configs.values import parse_value
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.primitives import random_uuid, uuid_text
from klamm.protocol.types import ResourceType
from klamm.security.scram import ScramMechanism
from klamm.storage.errors import DAMAGED_VALUE
from klamm.storage.lock import make_durable_directory
from klamm.storage.log.directories import CLEAN_SHUTDOWN, CLEANER_OFFSETS, read_offsets
from klamm.storage.log.recovery import restore_markers
from klamm.storage.metadata.changes import PutSetting
from klamm.storage.metadata.identity import (
    CLUSTER_ID_SETTING,
    LOGS_DIRECTORY,
    MetadataLostError,
    check_metadata,
    largest_leader_epoch,
    largest_producer_id,
    metadata_lost,
    partition_directories,
    protect_metadata,
    put_metadata_aside,
    read_cluster_id,
    topics_in,
    write_cluster_id,
)
from klamm.storage.metadata.store import METADATA_FILE_NAME, MetadataStore

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.broker.settings import BrokerSettings

logger = logging.getLogger(__name__)

_LEADER_EPOCH: Final = "leader_epoch"
"""Name of the setting with the leader epoch of all partitions."""
_MARKERS_RESTORED: Final = "markers_restored"
"""Name of the setting that says that no log has a transaction marker without its control bit."""
_SKIPPED_PRODUCER_IDS: Final = 1_000_000
"""Gap between the largest producer id in the logs and the next new one. Larger ids may occur in damaged segments."""


_SKIPPED_LEADER_EPOCHS: Final = 1_000
"""Gap between the largest leader epoch in the checkpoints of the logs and the next one. The checkpoints may be old."""


class Metadata(NamedTuple):
    """The opened metadata of a data directory."""

    store: MetadataStore
    cluster_id: str
    leader_epoch: int
    """Leader epoch of all partitions until the broker stops."""


async def open_metadata(settings: BrokerSettings) -> Metadata:
    """Open the metadata of a locked data directory.

    An unclean shutdown may lose records, and new records then reuse their offsets. The leader epoch is therefore
    raised, as after an election in Kafka, so that clients that compare epochs (KIP-320) detect the truncation.

    Raises:
        MetadataLostError: The directory has logs, but their metadata is missing or damaged.
        DataDirectoryError: The metadata cannot be opened, or belongs to other logs.
    """
    metadata, logs = settings.data_dir / METADATA_FILE_NAME, settings.data_dir / LOGS_DIRECTORY
    was_clean = (logs / CLEAN_SHUTDOWN).exists()
    try:
        check_metadata(metadata, logs, was_clean=was_clean and not settings.recovers_metadata)
        store = await _open_store(settings)
    except MetadataLostError as error:
        if not settings.recovers_metadata:
            raise
        aside = put_metadata_aside(metadata)
        logger.warning("%s. Recovering%s", error, "" if aside is None else f"; the old file was renamed to {aside}")
        store = await _open_store(settings)
        identify = partial(_rebuild, store, settings, logs)
    else:
        if settings.recovers_metadata:
            logger.info("--recover has no effect: the metadata is intact")
        identify = partial(_identify, store, was_clean=was_clean)
    try:
        opened = await identify()
        make_durable_directory(logs)
        write_cluster_id(logs, opened.cluster_id)
        await _restore_markers(store, logs)
    except BaseException:
        await store.close()
        raise
    return opened


async def _open_store(settings: BrokerSettings) -> MetadataStore:
    """Open the metadata store, and check the values in it that the services need.

    Raises:
        MetadataLostError: A value cannot be read.
        DataDirectoryError: The metadata cannot be opened.
    """
    metadata = settings.data_dir / METADATA_FILE_NAME
    protect_metadata(metadata)
    store = MetadataStore.open(metadata, max_history=max_history(settings.static_configs))
    try:
        _check_values(store)
        if settings.recovers_metadata:
            store.load_group_offsets()
            store.load_pending_offsets()
            store.load_groups()
            store.load_client_configs()
    except (KafkaApiError, *DAMAGED_VALUE) as error:
        await store.close()
        raise metadata_lost(metadata, f"holds a value that cannot be used ({error})") from error
    except BaseException:
        await store.close()
        raise
    return store


def _check_values(store: MetadataStore) -> None:
    """Parse the stored values whose loss a broker must not guess. Damaged groups and client configs are skipped."""
    tables = {ResourceType.TOPIC: topic_configs(), ResourceType.GROUP: group_configs()}
    for row in store.load_configs():
        kind = ResourceType(row.resource_type)
        definition = tables[kind].get_definition(row.name) if kind in tables else find_broker_config(row.name)
        if definition is not None and row.value is not None:
            parse_value(row.name, row.value, definition.config_type)
        elif kind in tables:
            raise ValueError(f"{kind.name.lower()} {row.resource_name} has the unknown config {row.name}")
    for acl in store.load_acls():
        stored_acl(acl)
    for credential in store.load_scram_credentials():
        ScramMechanism.from_wire(credential.mechanism)
    for transaction in store.load_transactions():
        transaction_from_payload(transaction.transactional_id, transaction.payload)
    for decision in store.load_decisions():
        decision_from_payload(decision)
    for setting in store.load_settings():
        if setting.name in {_LEADER_EPOCH, NEXT_PRODUCER_ID}:
            int(setting.value)
    store.load_topics()
    store.load_quotas()


async def _rebuild(store: MetadataStore, settings: BrokerSettings, logs: Path) -> Metadata:
    """Store the metadata that the logs contain, in one commit."""
    cluster_id = read_cluster_id(logs)
    if cluster_id is None:
        cluster_id = _new_cluster_id()
        logger.warning("The cluster id is lost; the new cluster id is %s", cluster_id)
    (logs / CLEAN_SHUTDOWN).unlink(
        missing_ok=True
    )  # without this file the start recovers all logs, and so finds their open transactions
    next_producer_id = largest_producer_id(logs) + 1 + _SKIPPED_PRODUCER_IDS
    leader_epoch = largest_leader_epoch(logs) + _SKIPPED_LEADER_EPOCHS
    await store.submit(
        [
            PutSetting(name=CLUSTER_ID_SETTING, value=cluster_id),
            PutSetting(name=NEXT_PRODUCER_ID, value=str(next_producer_id)),
            PutSetting(name=_LEADER_EPOCH, value=str(leader_epoch)),
            *topics_in(logs, node_ids=settings.node_ids, internal=INTERNAL_TOPICS | {REGISTRATIONS_TOPIC}),
        ]
    )
    return Metadata(store, cluster_id, leader_epoch)


async def _identify(store: MetadataStore, *, was_clean: bool) -> Metadata:
    """Return the stored cluster id and leader epoch. A new store gets an id, and an unclean end a new epoch."""
    stored = {setting.name: setting.value for setting in store.load_settings()}
    cluster_id, leader_epoch = stored.get(CLUSTER_ID_SETTING), int(stored.get(_LEADER_EPOCH, "0"))
    if cluster_id is None:
        cluster_id = _new_cluster_id()
        await store.submit([PutSetting(name=CLUSTER_ID_SETTING, value=cluster_id)])
    elif not was_clean:
        leader_epoch += 1
        await store.submit([PutSetting(name=_LEADER_EPOCH, value=str(leader_epoch))])
    return Metadata(store, cluster_id, leader_epoch)


async def _restore_markers(store: MetadataStore, logs: Path) -> None:
    """Restore the markers of all partitions, unless an earlier start has done it. Reads the headers of all batches.

    If a partition cannot be read or written, this is logged, and the next start tries all of them again.
    """
    if any(setting.name == _MARKERS_RESTORED for setting in store.load_settings()):
        return
    compacted = read_offsets(logs / CLEANER_OFFSETS)
    is_complete = True
    for path, _, _ in partition_directories(logs):
        try:
            await asyncio.to_thread(restore_markers, path, is_compacted=path.name in compacted)
        except OSError as error:
            logger.error("%s: transaction markers cannot be checked: %s", path, error)  # noqa: TRY400 -- the message is complete
            is_complete = False
    if is_complete:
        await store.submit([PutSetting(name=_MARKERS_RESTORED, value="1")])


def _new_cluster_id() -> str:
    return uuid_text(random_uuid())
