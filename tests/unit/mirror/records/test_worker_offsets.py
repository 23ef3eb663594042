from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.records import requested_states, source_offsets, worker_offsets
from klamm.mirror.records.requested_states import RequestedState, RequestedStates
from klamm.mirror.records.source_offsets import EpochFloor, SourcePartition, StoredPromotion
from klamm.mirror.records.worker_offsets import copy_worker_offsets, forget_topics
from klamm.mirror.settings.mirror import parse_settings
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FLOW = parse_settings(
    {
        "clusters": "A,B",
        "A.bootstrap.servers": "a:1",
        "B.bootstrap.servers": "b:1",
        "A->B.enabled": "true",
        "offset.storage.topic": "workers",
        "A->B.offsets.storage.topic": "own",
    }
).flows[0]
PROMOTION_KEY = source_offsets.promotion_key("A", "orders")


class Target:
    """Offsets topics on the target, in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics = {name: SimpleNamespace(partitions=(0,)) for name in ("workers", "own")}
        self.records: dict[str, dict[bytes, Record]] = {"workers": {}, "own": {}}
        self.hidden = {"workers": "", "own": ""}
        self.leaderless = frozenset[bytes]()
        """Keys whose partition has no leader. Records of the same request in other partitions are written."""
        monkeypatch.setattr(worker_offsets, "_target", lambda _flow: contextlib.nullcontext(self))
        monkeypatch.setattr(worker_offsets, "read_newest", self.read)
        monkeypatch.setattr(worker_offsets, "write_records", self.write)

    def refresh(self, _topics: Sequence[str]) -> None:
        """Do nothing."""

    def read(self, _cluster: object, topic: str, **_: Any) -> tuple[dict[bytes, Record], str]:
        return dict(self.records[topic]), self.hidden[topic]

    def write(self, _cluster: object, topic: str, records: Mapping[int, Sequence[Record]], **_: Any) -> None:
        written = {bytes(each.key or b""): each for some in records.values() for each in some}
        self.records[topic] |= {key: record for key, record in written.items() if key not in self.leaderless}
        if self.leaderless & written.keys():
            raise ConnectionLostError("NOT_LEADER_OR_FOLLOWER")

    def request(self, topic: str, states: RequestedStates, flow: str = "A->B") -> None:
        key = requested_states.key_bytes("A", flow)
        self.records[topic][key] = Record(key=key, value=requested_states.value_bytes(states))

    def promote(self, topic: str, promotion: StoredPromotion) -> None:
        value = source_offsets.promotion_value(promotion)
        self.records[topic][PROMOTION_KEY] = Record(key=PROMOTION_KEY, value=value)

    def requested(self, topic: str) -> dict[str | None, RequestedStates | None]:
        """Return the stored states by flow."""
        return {
            requested_states.flow_of(key, "A"): requested_states.parse_value(record.value)
            for key, record in self.records[topic].items()
        }


STOPPED = RequestedStates().with_topics(["orders"], RequestedState.STOPPED)


def test_requested_states_are_copied_to_own_topic_of_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a stopped topic would be mirrored again."""
    target = Target(monkeypatch)
    target.request("workers", STOPPED)
    target.request("workers", RequestedStates(flow=RequestedState.PAUSED), flow="A->C")
    # when
    copy_worker_offsets(FLOW)
    # then
    assert target.requested("own") == {"A->B": STOPPED}
    # when the topic is resumed
    target.request("own", RequestedStates())
    copy_worker_offsets(FLOW)
    # then
    assert target.requested("own") == {"A->B": RequestedStates()}


def test_requested_states_are_not_copied_over_hidden_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch)
    target.request("workers", STOPPED)
    target.hidden["own"] = "own-0"
    with pytest.raises(ConnectionLostError, match="An open transaction hides source offsets in own-0"):
        copy_worker_offsets(FLOW)
    assert target.requested("own") == {}


def promoted(target: Target, topic: str) -> StoredPromotion | None:
    """Return the promotion of ``orders`` that an offsets topic holds."""
    record = target.records[topic].get(PROMOTION_KEY)
    return None if record is None else source_offsets.parse_promotion(record.value)


def test_promotions_are_copied_to_own_topic_of_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the promotion would be finished again: markers would abort transactions of the new producers."""
    # given
    target = Target(monkeypatch)
    finished = StoredPromotion(UUID(int=1), True, {0: (EpochFloor(5, 7),)})
    target.promote("workers", finished)
    # when
    copy_worker_offsets(FLOW)
    # then
    assert promoted(target, "own") == finished
    # when the topic is taken back and promoted again
    target.promote("own", later := StoredPromotion(UUID(int=1), False))
    copy_worker_offsets(FLOW)
    # then
    assert promoted(target, "own") == later


def test_promotions_of_deleted_topics_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topic id shows that a remote topic with the same name is another one."""
    target = Target(monkeypatch)
    target.promote("own", promotion := StoredPromotion(UUID(int=1), True))
    forget_topics(FLOW, ["orders"])
    assert promoted(target, "own") == promotion


def test_source_offset_that_cannot_be_deleted_keeps_its_topic_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a later topic with the name would be copied from that offset on."""
    # given
    target = Target(monkeypatch)
    orders = SourcePartition("A", "orders", 0)
    offset_key, id_key = source_offsets.key_bytes(orders), source_offsets.topic_id_key(orders)
    for key, value in (
        (offset_key, source_offsets.value_bytes(899)),
        (id_key, source_offsets.topic_id_value(UUID(int=1))),
    ):
        target.records["own"][key] = Record(key=key, value=value)
    target.leaderless = frozenset({offset_key})
    # when
    with pytest.raises(ConnectionLostError):
        forget_topics(FLOW, ["orders"])
    # then
    assert target.records["own"][id_key].value is not None
    # when
    target.leaderless = frozenset()
    forget_topics(FLOW, ["orders"])
    # then
    assert [target.records["own"][key].value for key in (offset_key, id_key)] == [None, None]
