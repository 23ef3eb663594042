"""Connections to both clusters of a flow, for the translation of group offsets."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.lazy_dataclass import dataclass
from klamm.mirror.cluster_admin import admin_client, check_reachable
from klamm.mirror.groups.equal_logs import EqualityCheck
from klamm.mirror.groups.plans import Logs, ends_without_syncs, remote_topic_of
from klamm.mirror.groups.stores import EqualOffsets, MirroredOffsets, SyncStore
from klamm.mirror.records.internal_topic import ControlConnection
from klamm.mirror.records.worker_offsets import mirrored_offsets
from klamm.mirror.replica.placement import led_by_brokers
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from klamm.admin import AdminClient
    from klamm.mirror.cluster_admin import CommittedOffsets
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.types import PartitionTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class BothSides:
    """Connections to both clusters of a flow, and what is stored of its progress."""

    source: AdminClient
    target: AdminClient
    source_reader: ControlConnection
    target_reader: ControlConnection
    syncs: SyncStore
    mirrored: MirroredOffsets
    equality: EqualityCheck | None = None
    """Check that offsets are equal. None: the flow does not keep them, or klamm leads the remote partitions."""

    def logs(self, flow: FlowSettings, offsets: Iterable[CommittedOffsets]) -> Logs:
        """Return the logs of the partitions on which groups have offsets. Errors as of ``ControlConnection``."""
        offsets = list(offsets)
        local = sorted({where for of_group in offsets for where in of_group})
        remote = {(topic, at): (remote_topic_of(flow, topic), at) for topic, at in local}
        target = self.target_reader.log_bounds(sorted(set(remote.values())))
        source = self.source_reader.log_bounds(local)
        led = self.led_by_brokers(flow, {name for name, _ in remote.values()})
        handed_over = [where for where in local if remote[where][0] in led]
        ends: dict[PartitionTuple, int] = {}
        for of_group in offsets:
            ends |= ends_without_syncs(of_group, self.syncs, source)
        next_offsets = self.mirrored.next_offsets(ends, final=handed_over)
        return Logs(
            target=target,
            source=source,
            next_offsets=next_offsets,
            handed_over={where: next_offsets.get(where, -1) for where in handed_over},
            unequal={} if self.equality is None else self.equality.run(offsets, target=target, source=source),
        )

    def led_by_brokers(self, flow: FlowSettings, remote_topics: Collection[str]) -> frozenset[str]:
        """Return the remote topics that were handed over, also while klamm takes them back."""
        if flow.replica is None:
            return frozenset()
        return led_by_brokers(self.target, remote_topics, flow.replica.node_id)


@contextlib.contextmanager
def both_sides(flow: FlowSettings) -> Iterator[BothSides]:
    """Open connections to both clusters for the duration of the context.

    Raises:
        SettingsError: A client property is not supported, or offset syncs are disabled for the flow.
        ConnectionLostError: A cluster is unavailable.
    """
    with contextlib.ExitStack() as stack:
        sides = open_both_sides(stack, flow)
        check_reachable(sides.source, flow.source.alias)
        check_reachable(sides.target, flow.target.alias)
        yield sides


def open_both_sides(stack: contextlib.ExitStack, flow: FlowSettings) -> BothSides:
    """Open connections to both clusters. No cluster is asked yet.

    Args:
        stack: Owner of the connections.
        flow: Settings of the flow.

    Raises:
        SettingsError: A client property is not supported, or offset syncs are disabled for the flow.
    """
    source_reader = side_connection(stack, flow, "source", "consumer")
    target_reader = side_connection(stack, flow, "target", "consumer")
    replays = flow.preserves_offsets and flow.replica is None
    return BothSides(
        source=stack.enter_context(admin_client(flow, "source")),
        target=stack.enter_context(admin_client(flow, "target")),
        source_reader=source_reader,
        target_reader=target_reader,
        syncs=_syncs(stack, flow),
        mirrored=MirroredOffsets(flow, mirrored_offsets),
        equality=EqualityCheck(flow, source_reader, target_reader) if replays else None,
    )


def side_connection(stack: contextlib.ExitStack, flow: FlowSettings, side: str, role: str) -> ControlConnection:
    """Open a connection to the source or the target with the properties of a client.

    Args:
        stack: Owner of the connection.
        flow: Settings of the flow.
        side: ``source`` or ``target``.
        role: ``consumer`` or ``producer``.

    Raises:
        SettingsError: A client property is not supported.
    """
    cluster = flow.source if side == "source" else flow.target
    client = flow.clients[f"{side}.{role}"]
    settings = ConnectionSettings.of(cluster.bootstrap_servers, client, f"klamm-mirror-{flow.name}")
    return stack.enter_context(contextlib.closing(ControlConnection(settings)))


def _syncs(stack: contextlib.ExitStack, flow: FlowSettings) -> SyncStore:
    if flow.preserves_offsets:
        return EqualOffsets(side_connection(stack, flow, "target", "consumer"))
    if flow.syncs_topic is None:
        raise SettingsError(
            f"{flow.name}: emit.offset-syncs.enabled=false: group offsets cannot be translated without offset syncs"
        )
    return SyncStore(side_connection(stack, flow, flow.syncs_location.value, "consumer"), flow.syncs_topic)
