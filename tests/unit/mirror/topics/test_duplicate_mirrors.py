from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from klamm.mirror.records.internal_topic import ControlConnection, TopicGoneError
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.heartbeats import Heartbeats, OtherMirrors, new_instance
from tests.support.mirror_fakes import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from klamm.protocol.records import Record

FILE = {"clusters": "A,B", "A.bootstrap.servers": "a:1", "B.bootstrap.servers": "b:1", "A->B.enabled": "true"}
PAIRS = {pair.name: pair for pair in parse_settings(FILE).heartbeats}


class Topic(ControlConnection):
    """The topic of heartbeats, in memory."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.is_gone = False

    def write(self, topic: str, records: Sequence[Record]) -> None:
        assert topic == "heartbeats"
        self.records += records

    def end_offsets(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, len(self.records))

    def read(self, topic: str, from_offset: int) -> tuple[list[Record], int]:
        if self.is_gone:
            raise TopicGoneError(topic)
        return self.records[from_offset:], len(self.records)


def mirror(topic: Topic, instance: str, flow: str = "A->B") -> Heartbeats:
    return Heartbeats(PAIRS[flow], FakeCluster(), topic, others=OtherMirrors(flow, instance, topic))


def beat(count: int, *mirrors: Heartbeats) -> None:
    for _ in range(count):
        for each in mirrors:
            assert each.beat()


def logged_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.ERROR]


def test_duplicate_mirrors_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    topic = Topic()
    first, second = mirror(topic, "here, process 1, ab"), mirror(topic, "there, process 1, cd")
    beat(20, first)
    assert logged_warnings(caplog) == []
    beat(30, first, second)
    assert sorted(logged_warnings(caplog)) == [
        f"A->B: another process mirrors this flow as well ({host}, process 1), so both copy the same records. "
        "Stop one of them"
        for host in ("here", "there")
    ]


def test_restarted_mirror_and_other_flows_are_no_duplicates(caplog: pytest.LogCaptureFixture) -> None:
    topic = Topic()
    before, now = mirror(topic, new_instance()), mirror(topic, new_instance())
    beat(20, before)
    beat(2, before, now)
    without_flow = Heartbeats(PAIRS["A->B"], FakeCluster(), topic)
    beat(20, now, mirror(topic, new_instance(), "B->A"), without_flow)
    assert logged_warnings(caplog) == []


def test_unreadable_heartbeats_topic_does_not_stop_heartbeats(caplog: pytest.LogCaptureFixture) -> None:
    topic = Topic()
    topic.is_gone = True
    beat(20, mirror(topic, new_instance()))
    assert len(topic.records) == 20
    assert logged_warnings(caplog) == []
