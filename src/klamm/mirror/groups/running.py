"""From a flow's settings to its running loop of groups."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from klamm.mirror.admin import KafkaAdmin
from klamm.mirror.control_records import ControlConnection
from klamm.mirror.groups.control import GroupControl
from klamm.mirror.groups.stores import CheckpointStore, SyncStore
from klamm.mirror.wire.transport import ConnectionSettings

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from klamm.mirror.flow_settings import FlowSettings
    from klamm.mirror.groups.status import GroupStatus

logger = logging.getLogger(__name__)


def translate_groups(flow: FlowSettings, status: GroupStatus, stop: threading.Event) -> None:
    """Translate the offsets of a flow's groups until ``stop``; blocks.

    Does nothing where the file does not want it.
    """
    if flow.groups is None or flow.syncs_topic is None:
        return
    try:
        with group_control(flow, status) as control:
            control.run(stop)
    except Exception:  # a thread never dies silently
        logger.exception("%s: offsets of groups are not translated any more", flow.name)


@contextlib.contextmanager
def group_control(flow: FlowSettings, status: GroupStatus) -> Iterator[GroupControl]:
    """Open a loop's connections for as long as the context lasts; ``turn`` may be called by hand.

    Raises:
        SettingsError: a client property that can not be honoured.
        ValueError: the flow does nothing about groups.
    """
    if flow.groups is None or flow.syncs_topic is None:
        raise ValueError(f"{flow.name} does nothing about groups")
    timeout_ms = int(flow.admin_timeout.total_seconds() * 1000)
    with contextlib.ExitStack() as stack:

        def opened(side: str, role: str) -> ControlConnection:
            cluster = flow.source if side == "source" else flow.target
            client = flow.clients[f"{side}.{role}"]
            settings = ConnectionSettings.of(cluster.bootstrap_servers, client, f"klamm-mirror-{flow.name}")
            connection = ControlConnection(settings)
            stack.callback(connection.close)
            return connection

        source, target = (
            stack.enter_context(
                contextlib.closing(
                    KafkaAdmin(cluster.bootstrap_servers, flow.clients[f"{side}.admin"], timeout_ms=timeout_ms)
                )
            )
            for side, cluster in (("source", flow.source), ("target", flow.target))
        )
        reader, writer = opened("target", "consumer"), opened("target", "producer")
        syncs = SyncStore(opened(flow.syncs_location.value, "consumer"), flow.syncs_topic)
        wanted = flow.groups.group_filter.should_replicate_group
        yield GroupControl(
            flow,
            flow.groups,
            source,
            target,
            syncs=syncs,
            checkpoints=CheckpointStore(reader, writer, flow.groups.checkpoints_topic, wanted=wanted),
            end_offsets=reader.end_offsets,
            status=status,
        )
