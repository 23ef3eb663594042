"""Writer of the change history: what clients wait for, and what happens while the topic cannot be written."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from klamm.gateway.history import writer as module
from klamm.gateway.history.writer import HistoryWriter
from klamm.gateway.upstream.internal_topic import InternalTopicGoneError
from klamm.kafka_client.data.records import RecordsRejectedError
from klamm.kafka_client.errors import ConnectionLostError
from klamm.monitoring.exposition import Page
from klamm.protocol.errors import ErrorCode, TopicAuthorizationError
from klamm.protocol.records import Record
from tests.support.relay_rig import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_BACKOFF_S", 0.0001)
    monkeypatch.setattr(module, "_LAST_BACKOFF_S", 0.001)


def record(value: bytes) -> Record:
    return Record(key=b"TOPIC:a", value=value)


class FakeTopic:
    """Topic whose appends fail with the next of some errors; the last one of them repeats."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors) or [None]
        self.batches: list[list[bytes | None]] = []
        self.created = 0
        self.asked = 0
        self.is_closed = False
        self.may_answer = threading.Event()
        self.may_answer.set()

    def append(self, records: Sequence[Record]) -> None:
        self.asked += 1
        assert self.may_answer.wait(60)
        error = self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
        if error is not None:
            raise error
        assert [each.offset for each in records] == list(range(len(records)))
        self.batches.append([each.value for each in records])

    def close(self) -> None:
        self.is_closed = True

    async def create(self) -> None:
        self.created += 1


def run(topic: FakeTopic, test: Callable[[HistoryWriter], Awaitable[None]], *, create: Any = None) -> HistoryWriter:
    async def main() -> HistoryWriter:
        writer = HistoryWriter(topic)
        writer.start(create or topic.create)
        try:
            await test(writer)
        finally:
            await writer.close()
        await until(lambda: topic.is_closed)
        return writer

    return asyncio.run(main())


def counts(writer: HistoryWriter) -> dict[str, float]:
    """Return the metrics by label, or by name without one."""
    page = Page()
    writer.report(page)
    lines = [line for line in page.text().splitlines() if not line.startswith("#")]
    return {
        line.split()[0].removeprefix("klamm_gateway_history_").partition('outcome="')[2].rstrip('"}')
        or "waiting": float(line.split()[1])
        for line in lines
    }


def test_client_waits_until_its_records_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 60)
    topic = FakeTopic()
    topic.may_answer.clear()

    async def test(writer: HistoryWriter) -> None:
        writer.add([record(b"1"), record(b"2")], author="User:anna")
        waiting = asyncio.create_task(writer.written())
        await until(lambda: topic.created == 1)
        assert not waiting.done()
        assert counts(writer)["waiting"] == 2
        topic.may_answer.set()
        await waiting
        assert topic.batches == [[b"1", b"2"]]

    assert counts(run(topic, test)) == {"recorded": 2, "lost": 0, "waiting": 0}


def test_client_does_not_wait_for_long_and_the_next_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    topic = FakeTopic()
    topic.may_answer.clear()

    async def test(writer: HistoryWriter) -> None:
        writer.add([record(b"1")], author="User:anna")
        await writer.written()
        await until(lambda: topic.asked == 1)
        monkeypatch.setattr(module, "WAIT_S", 3600)
        writer.add([record(b"2")], author="User:anna")
        await asyncio.wait_for(writer.written(), 10)
        topic.may_answer.set()
        await until(lambda: topic.batches == [[b"1"], [b"2"]])
        writer.add([record(b"3")], author="User:anna")
        await asyncio.wait_for(writer.written(), 10)
        assert topic.batches[-1] == [b"3"]

    run(topic, test)


def test_deleted_topic_is_created_again() -> None:
    topic = FakeTopic(None, InternalTopicGoneError("gone"), None)

    async def test(writer: HistoryWriter) -> None:
        for value in (b"1", b"2"):
            writer.add([record(value)], author="User:anna")
            await writer.written()

    assert counts(run(topic, test)) == {"recorded": 2, "lost": 0, "waiting": 0}
    assert topic.batches == [[b"1"], [b"2"]]
    assert topic.created == 2


def test_denied_history_topic_does_not_delay_clients(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 3600)
    rights: list[bool] = []
    topic = FakeTopic()

    async def create() -> None:
        if not rights:
            raise TopicAuthorizationError("Not authorized to access topics")

    async def test(writer: HistoryWriter) -> None:
        writer.add([record(b"1")], author="User:anna")
        await asyncio.wait_for(writer.written(), 10)
        writer.add([record(b"2")], author="User:anna")
        await asyncio.wait_for(writer.written(), 10)
        assert counts(writer) == {"recorded": 0, "lost": 0, "waiting": 2}
        rights.append(True)
        await until(lambda: topic.batches == [[b"1", b"2"]])

    run(topic, test, create=create)
    trouble = [line for line in caplog.messages if "cannot be written, trying again" in line]
    assert trouble == ["The change history cannot be written, trying again: Not authorized to access topics"]


def test_records_beyond_the_limit_are_lost_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 1000)
    topic = FakeTopic(ConnectionLostError("down"))

    async def test(writer: HistoryWriter) -> None:
        writer.add([record(b"1"), record(b"2")], author="User:anna")
        writer.add([record(b"3"), record(b"4")], author="User:bob")
        await asyncio.wait_for(writer.written(), 10)
        assert counts(writer) == {"recorded": 0, "lost": 2, "waiting": 2}
        topic.errors = [None]
        await until(lambda: counts(writer)["waiting"] == 0)
        writer.add([record(b"5"), record(b"6")], author="User:bob")

    assert counts(run(topic, test)) == {"recorded": 4, "lost": 2, "waiting": 0}
    assert "The change history lacks 2 changes by User:bob: it cannot be written" in caplog.messages


def rejecting(value: bytes) -> Callable[[Sequence[Record]], Iterator[None]]:
    """Return an append that rejects a record with this value, and every batch that has it."""

    def append(records: Sequence[Record]) -> Iterator[None]:
        if value in [each.value for each in records]:
            raise RecordsRejectedError("history", [ErrorCode.MESSAGE_TOO_LARGE])
        return iter(())

    return append


def test_record_rejected_by_upstream_does_not_block_later_records(caplog: pytest.LogCaptureFixture) -> None:
    topic, append = FakeTopic(), FakeTopic.append
    check = rejecting(b"too large")

    def checked(self: FakeTopic, records: Sequence[Record]) -> None:
        check(records)
        append(self, records)

    topic.append = checked.__get__(topic)  # type: ignore[method-assign]  # as a broker with a small message.max.bytes

    async def test(writer: HistoryWriter) -> None:
        writer.add([record(value) for value in (b"1", b"too large", b"2")], author="User:anna")
        await writer.written()
        writer.add([record(b"3"), record(b"4")], author="User:anna")
        await writer.written()

    assert counts(run(topic, test)) == {"recorded": 4, "lost": 1, "waiting": 0}
    assert topic.batches == [[b"1"], [b"2"], [b"3", b"4"]]
    assert "The change history lacks a change of b'TOPIC:a' by User:anna" in caplog.text


def test_closed_writer_writes_waiting_records_or_logs_their_number(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def add(writer: HistoryWriter) -> None:
        writer.add([record(b"1")], author="User:carl")
        writer.add([record(b"2"), record(b"3")], author="User:anna")

    topic = FakeTopic()
    run(topic, add)
    assert topic.batches == [[b"1", b"2", b"3"]]
    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    run(FakeTopic(ConnectionLostError("down")), add)
    assert "The change history lacks 3 changes by User:anna, User:carl: it could not be written" in caplog.messages
