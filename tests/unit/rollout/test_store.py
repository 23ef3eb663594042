"""The records of roll-outs: attempts to write them, and the removal of old ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest

from klamm.client_configs.json_records import encode_document
from klamm.gateway.upstream.internal_topic import InternalTopic, InternalTopicGoneError, TransactionalTopic
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.records import RecordsRejectedError
from klamm.kafka_client.errors import TransactionLostError
from klamm.protocol.errors import ErrorCode
from klamm.protocol.records import Record
from klamm.rollout import store
from klamm.rollout.record import RolloutRecord, RolloutState, Wave, begun, to_document
from klamm.rollout.store import MAX_ENDED, MAX_RECORD_BYTES, TOPIC, RolloutConflictError, RolloutStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WAVE = Wave(name="1", settings={"TOPIC:a": {"k": "1"}})


def record_of(rollout_id: str, state: RolloutState = RolloutState.PLANNED, *, at_ms: int = 0) -> RolloutRecord:
    record = RolloutRecord(id=rollout_id, waves=(WAVE,), bake_ms=1, check_ms=1, runner="r")
    return replace(begun(record, at_ms=at_ms), state=state)


class Topic:
    """Log of the records, and a writer that fences the others."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, *records: RolloutRecord) -> None:
        for record in records:
            self._append(Record(record.id.encode(), encode_document(to_document(record))))

    def remove(self, rollout_id: str) -> None:
        self._append(Record(rollout_id.encode(), None))

    def read(self, position: int = 0) -> tuple[list[Record], int]:
        return self.records[position:], len(self.records)

    def commit(self, records: Mapping[str, Sequence[Record]]) -> None:
        for record in records[TOPIC]:
            self._append(record)

    def _append(self, record: Record) -> None:
        self.records.append(record._replace(offset=len(self.records)))


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()
    monkeypatch.setattr(InternalTopic, "load", lambda _: topic.read())
    monkeypatch.setattr(TransactionalTopic, "take_over", lambda _, position: topic.read(position))
    monkeypatch.setattr(TransactionalTopic, "commit", lambda _, records: topic.commit(records))
    monkeypatch.setattr(store, "create_internal_topics", AsyncMock())
    return topic


@pytest.fixture
def rollouts(topic: Topic) -> Iterator[RolloutStore]:
    admin: Any = None
    rollouts = RolloutStore(ConnectionSettings.of(("127.0.0.1:1",), {}, "test"), admin)
    yield rollouts
    rollouts.close()


def test_new_roll_out_removes_the_oldest_ended_ones(
    topic: Topic, rollouts: RolloutStore, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    held = replace(record_of("held", RolloutState.HELD), waves=())
    ended = [record_of(str(number), RolloutState.DONE, at_ms=number) for number in range(MAX_ENDED + 2)]
    topic.write(held, *reversed(ended))
    # when
    rollouts.add(record_of("new", at_ms=1000))
    # then
    assert [(record.key, record.value is None) for record in topic.records[-3:]] == [
        (b"new", False),
        (b"0", True),
        (b"1", True),
    ]
    assert [record.id for record in rollouts.records()] == ["held", *(record.id for record in ended[2:]), "new"]
    assert not caplog.records


def test_later_writes_of_a_roll_out_remove_none(topic: Topic, rollouts: RolloutStore) -> None:
    # given
    topic.write(*(record_of(str(number), RolloutState.DONE) for number in range(MAX_ENDED)))
    record = rollouts.add(record_of("new"))
    topic.write(record_of("ended", RolloutState.DONE))
    # when
    rollouts.replace(record, replace(record, version=2))
    # then
    assert [record.key for record in topic.records[-3:]] == [b"new", b"ended", b"new"]


def test_removed_roll_out_is_not_continued(topic: Topic, rollouts: RolloutStore) -> None:
    # given
    record = rollouts.add(record_of("hung"))
    topic.write(replace(record, state=RolloutState.REVERTED, version=2))
    topic.remove("hung")
    # then
    with pytest.raises(RolloutConflictError, match="hung has ended"):
        rollouts.replace(record, replace(record, state=RolloutState.APPLYING, version=2))


def test_conflicting_addition_is_rejected_before_it_is_written(topic: Topic, rollouts: RolloutStore) -> None:
    # given
    topic.write(record_of("held", RolloutState.HELD), record_of("done", RolloutState.DONE))
    # then
    with pytest.raises(RolloutConflictError, match=r"TOPIC:a: roll-out held of .* is held"):
        rollouts.check_addition(record_of("new"))
    topic.write(record_of("held", RolloutState.REVERTED))
    rollouts.check_addition(record_of("new"))
    assert len(topic.records) == 3


def test_start_rejects_roll_out_with_too_large_record(topic: Topic, rollouts: RolloutStore) -> None:
    # given
    large = Wave(name="1", settings={"TOPIC:a": {"k": "v" * (MAX_RECORD_BYTES - 100_000)}})
    record = replace(record_of("1"), waves=(large,))
    # then
    for attempt in (rollouts.check_addition, rollouts.add):
        with pytest.raises(RolloutConflictError, match="at most 3,145,728 are possible: divide"):
            attempt(record)
    # when
    rollouts.replace(record, replace(record, version=2))
    # then
    assert len(topic.records) == 1


def test_record_is_sent_again_while_a_broker_does_not_know_the_new_topic(
    topic: Topic, rollouts: RolloutStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    brokers: list[InternalTopicGoneError | tuple[list[Record], int]] = [
        InternalTopicGoneError("it does not exist"),
        topic.read(),
    ]

    def load(_: InternalTopic) -> tuple[list[Record], int]:
        answer = brokers.pop(0)
        if isinstance(answer, InternalTopicGoneError):
            raise answer
        return answer

    monkeypatch.setattr(InternalTopic, "load", load)
    # when
    rollouts.add(record_of("1"))
    # then
    assert (len(topic.records), brokers) == (1, [])


def test_record_is_sent_again_until_it_is_always_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NONE]

    def reject(_: TransactionalTopic, records: Mapping[str, Sequence[Record]]) -> None:
        raise RecordsRejectedError(next(iter(records)), [codes.pop(0)])

    def nothing(_: object, position: int = 0) -> tuple[list[Record], int]:
        return [], position

    monkeypatch.setattr(InternalTopic, "load", nothing)
    monkeypatch.setattr(TransactionalTopic, "take_over", nothing)
    monkeypatch.setattr(TransactionalTopic, "commit", reject)
    admin: Any = None
    rollouts = RolloutStore(ConnectionSettings.of(("127.0.0.1:1",), {}, "test"), admin)
    record = record_of("1")
    # when
    with pytest.raises(RecordsRejectedError, match="MESSAGE_TOO_LARGE"):
        rollouts.replace(record, record)
    rollouts.close()
    # then
    assert codes == [ErrorCode.NONE]


def test_record_is_sent_again_if_its_topic_is_unknown_at_the_commit(
    topic: Topic, rollouts: RolloutStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    errors = [InternalTopicGoneError("it does not exist")]

    def commit(_: TransactionalTopic, records: Mapping[str, Sequence[Record]]) -> None:
        if errors:
            raise errors.pop()
        topic.commit(records)

    monkeypatch.setattr(TransactionalTopic, "commit", commit)
    # when
    rollouts.add(record_of("1"))
    # then
    assert len(topic.records) == 1


def test_writer_fenced_until_time_limit_reports_conflict(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    def fence(_: TransactionalTopic, position: int) -> tuple[list[Record], int]:
        raise TransactionLostError("EndTxn for __klamm_rollouts: PRODUCER_FENCED")

    monkeypatch.setattr(TransactionalTopic, "take_over", fence)
    admin: Any = None
    rollouts = RolloutStore(ConnectionSettings.of(("127.0.0.1:1",), {}, "test"), admin, patience_s=0)
    # when
    with pytest.raises(RolloutConflictError, match=r"write records at the same time \(EndTxn .*FENCED\); check"):
        rollouts.add(record_of("1"))
    rollouts.close()
    # then
    assert not topic.records
