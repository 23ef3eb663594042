from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from klamm.admin import OffsetAndMetadata
from klamm.mirror.groups import equal_logs
from klamm.mirror.groups.equal_logs import EqualityCheck
from klamm.mirror.records.internal_topic import ControlConnection, LogBounds
from klamm.mirror.settings.mirror import parse_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from klamm.mirror.replay.tails import CheckedPartition
    from klamm.protocol.types import PartitionTuple

ORDERS, REMOTE = ("orders", 0), ("A.orders", 0)
FLOW = parse_settings(
    {
        "clusters": "A,B",
        "A.bootstrap.servers": "a:1",
        "B.bootstrap.servers": "b:1",
        "A->B.enabled": "true",
        "topics": "orders",
        "klamm.offsets": "preserve",
    }
).flows[0]


class Side(ControlConnection):
    """A cluster whose topics have one id."""

    def __init__(self) -> None:
        self.id = UUID(int=1)

    @property
    def cluster(self) -> Side:  # type: ignore[override]
        return self

    def topic_id(self, _topic: str) -> UUID:
        return self.id


class Run:
    """A check of one partition whose records are compared by a fake."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.foreign: dict[PartitionTuple, int] = {}
        self.differing: dict[PartitionTuple, int] = {}
        self.unread: dict[PartitionTuple, str] = {}
        self.compared: list[range] = []
        self.target = Side()
        monkeypatch.setattr(equal_logs, "TailCheck", lambda _source, _target: self)
        self.check = EqualityCheck(FLOW, Side(), self.target)

    def run(self, checked: Mapping[PartitionTuple, CheckedPartition]) -> None:
        self.compared += [each.target_offsets for each in checked.values()]

    def reason(self, committed: int, *, target: int, source: int) -> str:
        """Check the partition, and return why it is not equal. Empty: it is."""
        return self.check.run(
            [{ORDERS: OffsetAndMetadata(committed)}],
            target={REMOTE: LogBounds(0, target)},
            source={ORDERS: LogBounds(0, source)},
        ).get(ORDERS, "")


def test_each_record_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch)
    for committed, end in ((90, 100), (100, 200), (120, 300), (400, 300)):
        assert run.reason(committed, target=end, source=500) == ""
    assert run.compared == [range(100), range(100, 300)]


def test_recreated_remote_topic_is_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch)
    run.reason(90, target=100, source=100)
    run.target.id = UUID(int=2)
    run.reason(90, target=100, source=100)
    run.reason(40, target=50, source=100)
    assert run.compared == [range(100), range(100), range(50)]


def test_partition_that_is_not_equal_is_compared_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch)
    run.foreign[REMOTE] = 7
    foreign = "offset 7 of A.orders-0 was written by another producer: offsets are not equal"
    assert run.reason(9, target=10, source=10) == foreign
    run.foreign.clear()
    run.differing[REMOTE] = 8
    differing = "offset 8 of A.orders-0 holds another record than the source: offsets are not equal"
    assert run.reason(9, target=10, source=10) == differing
    run.differing.clear()
    run.unread[REMOTE] = "orders-0 has no leader at present"
    unread = "it is not verified yet that offsets are equal: orders-0 has no leader at present"
    assert run.reason(9, target=10, source=10) == unread
    run.unread.clear()
    assert run.reason(9, target=10, source=10) == ""


def test_remote_partition_that_is_longer_than_its_source_is_not_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch)
    longer = "A.orders-0 ends at offset 11, but the source ends at offset 10: offsets are not equal"
    assert run.reason(9, target=11, source=10) == longer
    assert run.compared == []
