"""The mirror's own copier and loop of groups, in this process and without Spark."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from klamm.admin import AdminClient, OffsetAndMetadata, TopicPartition
from klamm.mirror.cluster_admin import admin_client
from klamm.mirror.copy.settings import copy_settings, partitions_of
from klamm.mirror.groups.control import group_control
from klamm.mirror.progress.flow_progress import FlowGroups, GroupStatus, MirrorStatus
from klamm.mirror.spark.leases import FlowShare, partition_groups
from klamm.mirror.spark.worker import new_copier
from klamm.mirror.topics.control import Assignment, FlowControl
from tests.support.copiers import copy_all
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from types import TracebackType

    from klamm.mirror.copy.partition import PartitionId
    from klamm.mirror.progress.partition_progress import PartitionProgress
    from klamm.mirror.settings.flow import FlowSettings


class Copying:
    """A flow's topics and records, copied in a thread as a task would."""

    def __init__(self, flow: FlowSettings) -> None:
        self._flow = flow
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self.copier = new_copier(copy_settings(self._flow), _assigned(self._flow))
        self._thread = threading.Thread(target=self.copier.run, args=(self._stop.is_set,))
        self._thread.start()
        return self

    def wait_for(self, count: int) -> None:
        """Wait until so many source offsets are copied."""
        wait_until(
            lambda: sum(max(0, row.next_offset) for row in self.copier.progress()) >= count,
            timeout_s=60,
            what=f"{count} copied records",
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)
        self.copier.close()
        assert not self._thread.is_alive()


def _assigned(flow: FlowSettings) -> tuple[PartitionId, ...]:
    """Create a flow's topics on the target and return its source partitions."""
    assignments = list[Assignment]()
    with (
        admin_client(flow, "source", timeout_ms=20_000) as here,
        admin_client(flow, "target", timeout_ms=20_000) as there,
    ):
        FlowControl(flow, here, there, status=MirrorStatus([flow.name]), publish=assignments.append).turn()
    return partitions_of(assignments[-1])


def copy_flow(flow: FlowSettings) -> list[PartitionProgress]:
    """Copy a flow until each partition is complete or stopped, shard by shard; return the progress."""
    share = FlowShare(settings=copy_settings(flow), partitions=_assigned(flow))
    groups = partition_groups([share], slots=1, tasks_max={})
    return [row for group in groups for part in group.shares for row in copy_all(part.settings, *part.partitions)]


def commit(address: str, group: str, topic: str, offset: int, metadata: str = "") -> None:
    """Commit an offset of partition 0 for a group without members."""
    with AdminClient(address) as admin:
        committed = OffsetAndMetadata(offset=offset, metadata=metadata)
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): committed}).all().result(300)


def committed(address: str, group: str) -> dict[str, int]:
    """Return the committed offsets of a group by topic."""
    with AdminClient(address) as admin:
        offsets = admin.list_group_offsets({group: None}).values()[group].result(300)
    return {at.topic: committed.offset for at, committed in offsets.items()}


def rounds(flow: FlowSettings, *, count: int = 1) -> FlowGroups:
    """Run a number of rounds of a flow's group loop from its start; return the offsets that it reports."""
    status = GroupStatus()
    for _ in range(count):
        with group_control(flow, status) as control:
            control.turn()
    return status.snapshot()[flow.name]
