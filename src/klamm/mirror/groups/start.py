"""Construction of a flow's group control loop from its settings."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.mirror.cluster_admin import admin_client, check_reachable
from klamm.mirror.control_connection import ControlConnection
from klamm.mirror.groups.control import GroupControl
from klamm.mirror.groups.stores import CheckpointStore, MirroredOffsets, SyncStore
from klamm.mirror.records.worker_offsets import mirrored_offsets
from klamm.properties import SettingsError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from klamm.admin import AdminClient
    from klamm.mirror.groups.control import Bounds
    from klamm.mirror.progress.group_status import GroupStatus
    from klamm.mirror.settings.flow import FlowSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BothSides:
    """Connections to both clusters that a cutover needs."""

    source: AdminClient
    target: AdminClient
    syncs: SyncStore
    source_bounds: Bounds
    """Returns first and end offsets. Partitions that do not exist or have no leader are missing."""
    target_bounds: Bounds
    mirrored: MirroredOffsets


def translate_groups(flow: FlowSettings, status: GroupStatus, stop: threading.Event) -> None:
    """Run the group control loop of a flow until ``stop`` is set. Blocks.

    Returns at once if the flow has ``emit.checkpoints.enabled=false``.
    """
    if flow.groups is None:
        return
    try:
        with group_control(flow, status) as control:
            control.run(stop)
    except Exception:  # log every error before the thread ends
        logger.exception("%s: offsets of groups are no longer translated, because of an unexpected error", flow.name)


@contextlib.contextmanager
def group_control(flow: FlowSettings, status: GroupStatus) -> Iterator[GroupControl]:
    """Open the connections of a group control loop for the duration of the context. ``turn`` may be called directly.

    Raises:
        SettingsError: A client property is not supported, or checkpoints are disabled for the flow.
    """
    if flow.groups is None:
        raise SettingsError(
            f"{flow.name}: emit.checkpoints.enabled=false: group offsets cannot be translated without checkpoints"
        )
    with contextlib.ExitStack() as stack:
        target = _admin(stack, flow, "target")
        reader, writer = _connection(stack, flow, "target", "consumer"), _connection(stack, flow, "target", "producer")
        wanted = flow.groups.group_filter.should_replicate_group
        yield GroupControl(
            flow,
            flow.groups,
            _admin(stack, flow, "source"),
            target,
            syncs=_syncs(stack, flow),
            checkpoints=CheckpointStore(reader, writer, flow.groups.checkpoints_topic, wanted=wanted),
            source_bounds=_connection(stack, flow, "source", "consumer").log_bounds,
            target_bounds=reader.log_bounds,
            mirrored=MirroredOffsets(flow, mirrored_offsets),
            status=status,
        )


@contextlib.contextmanager
def both_sides(flow: FlowSettings) -> Iterator[BothSides]:
    """Open connections to both clusters for the duration of the context.

    Raises:
        SettingsError: A client property is not supported, or offset syncs are disabled for the flow.
        ConnectionLostError: A cluster is unavailable.
    """
    with contextlib.ExitStack() as stack:
        source, target = _admin(stack, flow, "source"), _admin(stack, flow, "target")
        check_reachable(source, flow.source.alias)
        check_reachable(target, flow.target.alias)
        yield BothSides(
            source=source,
            target=target,
            syncs=_syncs(stack, flow),
            source_bounds=_connection(stack, flow, "source", "consumer").log_bounds,
            target_bounds=_connection(stack, flow, "target", "consumer").log_bounds,
            mirrored=MirroredOffsets(flow, mirrored_offsets),
        )


def _admin(stack: contextlib.ExitStack, flow: FlowSettings, side: Literal["source", "target"]) -> AdminClient:
    return stack.enter_context(admin_client(flow, side))


def _connection(stack: contextlib.ExitStack, flow: FlowSettings, side: str, role: str) -> ControlConnection:
    cluster = flow.source if side == "source" else flow.target
    client = flow.clients[f"{side}.{role}"]
    settings = ConnectionSettings.of(cluster.bootstrap_servers, client, f"klamm-mirror-{flow.name}")
    return stack.enter_context(contextlib.closing(ControlConnection(settings)))


def _syncs(stack: contextlib.ExitStack, flow: FlowSettings) -> SyncStore:
    if flow.syncs_topic is None:
        raise SettingsError(
            f"{flow.name}: emit.offset-syncs.enabled=false: group offsets cannot be translated without offset syncs"
        )
    return SyncStore(_connection(stack, flow, flow.syncs_location.value, "consumer"), flow.syncs_topic)
