"""Offsets of groups between klamm's brokers, with the mirror's own copier and loops, without Spark."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Self

import pytest

import klamm
from klamm.admin import AdminClient, OffsetAndMetadata, TopicPartition
from klamm.mirror.admin import KafkaAdmin
from klamm.mirror.control import Assignment, FlowControl
from klamm.mirror.copying import copy_settings, partitions_of
from klamm.mirror.formats import Checkpoint
from klamm.mirror.groups.running import group_control
from klamm.mirror.groups.status import FlowGroups, GroupStatus
from klamm.mirror.progress import MirrorStatus
from klamm.mirror.settings import parse_settings
from klamm.mirror.wire.copier import Copier
from klamm.properties import parse_properties
from tests.support.mirror import Seen, create_topic, produce, properties, wait_for_records
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from klamm.mirror.flow_settings import FlowSettings

SYNCED = "sync.group.offsets.enabled = true\n"


@pytest.fixture(scope="module")
def source() -> Iterator[klamm.Broker]:
    with klamm.Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def target() -> Iterator[klamm.Broker]:
    with klamm.Broker() as broker:
        yield broker


class Copying:
    """A flow's topics and records, copied in a thread as a task would."""

    def __init__(self, flow: FlowSettings) -> None:
        self._flow = flow
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        flow, assignments = self._flow, list[Assignment]()
        with (
            contextlib.closing(KafkaAdmin(flow.source.bootstrap_servers, {}, timeout_ms=20_000)) as here,
            contextlib.closing(KafkaAdmin(flow.target.bootstrap_servers, {}, timeout_ms=20_000)) as there,
        ):
            FlowControl(flow, here, there, status=MirrorStatus([flow.name]), publish=assignments.append).turn()
        self.copier = Copier(copy_settings(flow), partitions_of(assignments[-1]))
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


def flow_of(source: klamm.Broker, target: klamm.Broker, more: str = "", *, topics: str) -> FlowSettings:
    text = properties(source.bootstrap_servers, target.bootstrap_servers, more, topics=topics)
    return parse_settings(parse_properties(text)).flows[0]


def numbered(count: int, first: int = 0) -> list[tuple[int, Seen]]:
    return [(0, Seen(b"k", b"%d" % number, (), 1_700_000_000_000 + number)) for number in range(first, first + count)]


def commit(address: str, group: str, topic: str, offset: int) -> None:
    with AdminClient(address) as admin:
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(offset=offset)}).all().result(20)


def committed(address: str, group: str) -> dict[str, int]:
    with AdminClient(address) as admin:
        offsets = admin.list_group_offsets({group: None}).values()[group].result(20)
    return {at.topic: found.offset for at, found in offsets.items()}


def checkpoints(target: klamm.Broker, count: int) -> list[Checkpoint]:
    records = wait_for_records(target.bootstrap_servers, "A.checkpoints.internal", count)
    return [Checkpoint.parse(record.key or b"", record.value or b"") for record in records]


def rounds(flow: FlowSettings, *, count: int = 1) -> FlowGroups:
    """Let the loop of a flow's groups do so many rounds from its start; return where it says they stand."""
    status = GroupStatus()
    for _ in range(count):
        with group_control(flow, status) as control:
            control.turn()
    return status.snapshot()[flow.name]


def test_a_group_goes_on_where_it_stood(source: klamm.Broker, target: klamm.Broker) -> None:
    """K894-41, K894-43, K894-45: the offset is exact, though no offset sync is of that record."""
    # given
    create_topic(source.bootstrap_servers, "orders")
    produce(source.bootstrap_servers, "orders", numbered(700))
    flow = flow_of(source, target, SYNCED, topics="orders")
    commit(source.bootstrap_servers, "billing", "orders", 345)
    commit(source.bootstrap_servers, "console-consumer-1", "orders", 5)
    commit(source.bootstrap_servers, "elsewhere", "orders", -1)
    with Copying(flow) as copying:
        copying.wait_for(700)
    # when
    groups = rounds(flow)
    # then
    (checkpoint,) = checkpoints(target, 1)
    assert checkpoint == Checkpoint(
        group="billing", topic="A.orders", partition=0, upstream_offset=345, downstream_offset=345
    )
    assert committed(target.bootstrap_servers, "billing") == {"A.orders": 345}
    (row,) = groups.offsets
    assert (row.group, row.topic, row.source_offset, row.target_offset, row.committed) == (
        "billing",
        "orders",
        345,
        345,
        345,
    )
    assert (row.again_at_most, row.reason, row.sync_reason) == (0, "", "")
    assert row.checkpoint_latency_ms is not None
    assert dict(groups.skipped).keys() == {"console-consumer-1", "elsewhere"}
