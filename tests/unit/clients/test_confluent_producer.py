"""Replacement and close of confluent-kafka's producer."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

from klamm.clients import confluent, confluent_producer

if TYPE_CHECKING:
    from collections.abc import Callable

_TIMEOUT_S = 5


def test_record_produced_during_last_flush_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    made: list[FakeProducer] = []

    class FakeProducer:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.queued: list[str] = []
            self.delivered: list[str] = []
            self.during_flush = ["late"]
            made.append(self)

        def produce(self, topic: str) -> None:
            self.queued.append(topic)

        def flush(self, _: float) -> int:
            self.delivered += self.queued
            self.queued = []
            while self.during_flush:
                producer.produce(self.during_flush.pop())
            return len(self.queued)

    monkeypatch.setattr(confluent_kafka, "Producer", FakeProducer)
    producer = confluent.Producer({}, enable_dynamic_config=False)
    producer.produce("early")
    # when
    left = producer.close()
    # then
    assert (left, made[0].delivered) == (0, ["early", "late"])
    with pytest.raises(RuntimeError, match="closed"):
        producer.produce("too late")


def test_failing_delivery_callback_does_not_end_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error reaches the application, as from flush; the change is not lost."""
    # given
    made: list[FailingProducer] = []

    class FailingProducer:
        def __init__(self, properties: dict[str, str], **_: Any) -> None:
            self.acks = properties.get("acks")
            self.queued: list[str] = []
            self.errors = [ValueError("not delivered"), KeyboardInterrupt()]
            made.append(self)

        def produce(self, topic: str) -> None:
            self.queued.append(topic)

        def __len__(self) -> int:
            return len(self.queued)

        def flush(self, _: float) -> None:
            self.queued.pop()
            raise self.errors.pop()

    monkeypatch.setattr(confluent_kafka, "Producer", FailingProducer)
    producer = confluent.Producer({"acks": "1"}, enable_dynamic_config=False)
    for topic in ("a", "b"):
        producer.produce(topic)
    # when
    producer._inbox.put(confluent.ConfigUpdate(changes=(), effective={"acks": "all"}))
    with pytest.raises(KeyboardInterrupt):
        producer.produce("c")
    with pytest.raises(ValueError, match="not delivered"):
        producer.produce("c")
    producer.produce("d")
    # then
    assert (made[0].acks, made[0].queued) == ("1", [])
    assert (made[-1].acks, made[-1].queued) == ("all", ["d"])


def test_rejected_replacement_keeps_the_producer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a certificate that was removed since the start."""
    producer = confluent.Producer({"acks": "1"}, enable_dynamic_config=False)

    def fail(*_: Any, **__: Any) -> None:
        raise confluent_kafka.KafkaException("no such file")

    monkeypatch.setattr(confluent_kafka, "Producer", fail)
    producer._inbox.put(confluent.ConfigUpdate(changes=(), effective={"acks": "all"}))
    producer.produce("a")
    assert len(producer) == 1
    assert "acks=all is rejected by librdkafka, the last value stays" in caplog.text
    producer.purge()
    producer.flush(1)


def test_new_credentials_outlive_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones may be invalid by then."""
    made: list[dict[str, str]] = []

    class LoggedInProducer:
        def __init__(self, properties: dict[str, str], **_: Any) -> None:
            made.append(properties)

        def set_sasl_credentials(self, username: str, password: str) -> None:
            made[-1] |= {"set": f"{username}/{password}"}

        def produce(self, topic: str) -> None: ...

        def __len__(self) -> int:
            return 0

    monkeypatch.setattr(confluent_kafka, "Producer", LoggedInProducer)
    first = {"acks": "1", "sasl.username": "a", "sasl.password": "1"}
    producer = confluent.Producer(first, enable_dynamic_config=False)
    producer.set_sasl_credentials("b", "2")
    producer._inbox.put(confluent.ConfigUpdate(changes=(), effective={"acks": "all"}))
    producer.produce("t")
    assert made == [
        {**first, "set": "b/2"},
        {"acks": "all", "sasl.username": "b", "sasl.password": "2"},
    ]


def test_failing_delivery_callback_does_not_keep_the_connection_for_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    class FailingProducer:
        def __init__(self, _: dict[str, str], **__: Any) -> None: ...

        def flush(self, _: float) -> int:
            raise LookupError("on_delivery failed")

    closed: list[bool] = []
    monkeypatch.setattr(confluent_kafka, "Producer", FailingProducer)
    monkeypatch.setattr(
        confluent_producer, "connect", lambda *_: SimpleNamespace(is_on=True, close=lambda: closed.append(True))
    )
    with pytest.raises(LookupError, match="on_delivery failed"):
        confluent.Producer({"acks": "1"}).close()
    assert closed == [True]


def test_batch_goes_to_the_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    made: list[BatchProducer] = []

    class BatchProducer:
        def __init__(self, properties: dict[str, str], **_: Any) -> None:
            self.acks = properties["acks"]
            self.queued: list[Any] = []
            made.append(self)

        def produce_batch(self, _: str, messages: list[Any], partition: int) -> int:
            assert partition == 3
            self.queued += messages
            return len(messages)

        def flush(self, _: float) -> int:
            self.queued = []
            return 0

        def __len__(self) -> int:
            return len(self.queued)

    monkeypatch.setattr(confluent_kafka, "Producer", BatchProducer)
    producer = confluent.Producer({"acks": "1"}, enable_dynamic_config=False)
    producer.produce_batch("t", [{}], partition=3)
    # when
    producer._inbox.put(confluent.ConfigUpdate(changes=(), effective={"acks": "all"}))
    queued = producer.produce_batch("t", [{}, {}], partition=3)
    # then
    assert queued == 2
    assert [(each.acks, len(each)) for each in made] == [("1", 0), ("all", 2)]
    assert producer.close() == 0
    with pytest.raises(RuntimeError, match="closed"):
        producer.produce_batch("t", [{}], partition=3)


def test_producer_without_records_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """As confluent-kafka's is."""
    monkeypatch.setattr(confluent_kafka, "Producer", lambda *_: [])
    producer = confluent.Producer({}, enable_dynamic_config=False)
    assert (len(producer), bool(producer)) == (0, True)


class CallingProducer:
    """A producer that counts a record as not delivered until its callback returns, as librdkafka does."""

    def __init__(self, properties: dict[str, str], **_: Any) -> None:
        self.acks = properties["acks"]
        self.queued: list[tuple[str, Callable[[], None]]] = []
        self.delivered: list[str] = []
        self.has_returned = threading.Event()
        self.has_returned.set()
        self.is_flushing = threading.Event()
        self.credentials: tuple[str, str] | None = None

    def produce(self, topic: str, on_delivery: Callable[[], None] = lambda: None) -> None:
        self.queued.append((topic, on_delivery))

    def poll(self, _: float) -> int:
        topic, on_delivery = self.queued.pop()
        self.has_returned.clear()
        on_delivery()
        self.delivered.append(topic)
        self.has_returned.set()
        return 1

    def set_sasl_credentials(self, username: str, password: str) -> None:
        self.credentials = (username, password)

    def flush(self, _: float) -> int:
        self.is_flushing.set()
        if not self.has_returned.wait(_TIMEOUT_S):
            pytest.fail("the callback waits for the flush, which waits for the callback")
        while self.queued:
            self.poll(0)
        return 0

    def __len__(self) -> int:
        return len(self.queued) + (not self.has_returned.is_set())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[CallingProducer]:
    """The producers of librdkafka, the latest last."""
    made: list[CallingProducer] = []

    def build(properties: dict[str, str], **more: Any) -> CallingProducer:
        made.append(CallingProducer(properties, **more))
        return made[-1]

    monkeypatch.setattr(confluent_kafka, "Producer", build)
    return made


@pytest.fixture
def producer(made: list[CallingProducer]) -> confluent.Producer:
    """A producer with acks=1."""
    assert not made
    return confluent.Producer({"acks": "1"}, enable_dynamic_config=False)


def change_acks(producer: confluent.Producer) -> None:
    producer._inbox.put(confluent.ConfigUpdate(changes=(), effective={"acks": "all"}))


def test_callback_of_a_poll_thread_produces_during_a_replacement(
    producer: confluent.Producer, made: list[CallingProducer]
) -> None:
    """The record is delivered before the replacement, which waits for the callback."""
    # given
    is_called = threading.Event()

    def on_delivery() -> None:
        is_called.set()
        assert made[0].is_flushing.wait(_TIMEOUT_S)
        producer.produce("dead-letters")

    producer.produce("a", on_delivery=on_delivery)
    poll_thread = threading.Thread(target=producer.poll)
    poll_thread.start()
    assert is_called.wait(_TIMEOUT_S)
    # when
    change_acks(producer)
    try:
        producer.produce("b")
    finally:
        poll_thread.join()
    # then
    assert [(each.acks, each.delivered) for each in made] == [("1", ["a", "dead-letters"]), ("all", [])]
    assert [topic for topic, _ in made[1].queued] == ["b"]


def test_callback_does_not_replace_the_producer(producer: confluent.Producer, made: list[CallingProducer]) -> None:
    """Its flush would wait for the callback."""
    # given
    producer.produce("a", on_delivery=lambda: producer.produce("retry"))
    change_acks(producer)
    # when
    producer.poll(0)
    # then
    assert [(each.acks, [topic for topic, _ in each.queued]) for each in made] == [("1", ["retry"])]
    producer.produce("b")
    assert [(each.acks, each.delivered) for each in made] == [("1", ["a", "retry"]), ("all", [])]


def test_poll_without_limit_continues_with_the_replacement(
    producer: confluent.Producer, made: list[CallingProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that only polls would otherwise wait for callbacks of the old producer."""

    def poll(timeout: float) -> int:
        assert 0 < timeout < _TIMEOUT_S
        change_acks(producer)
        thread = threading.Thread(target=producer.produce, args=("a",))
        thread.start()
        thread.join()
        return 0

    monkeypatch.setattr(made[0], "poll", poll)
    assert producer.poll() == 1
    assert made[1].delivered == ["a"]


def test_new_credentials_are_set_during_a_replacement(
    producer: confluent.Producer, made: list[CallingProducer]
) -> None:
    """The old producer may need them to deliver its records, the new one needs them afterwards."""

    # given
    def on_delivery() -> None:
        thread = threading.Thread(target=producer.set_sasl_credentials, args=("b", "2"), daemon=True)
        thread.start()
        thread.join(_TIMEOUT_S)

    producer.produce("a", on_delivery=on_delivery)
    # when
    change_acks(producer)
    producer.produce("b")
    # then
    assert [(each.acks, each.credentials) for each in made] == [("1", ("b", "2")), ("all", ("b", "2"))]
    assert (producer._properties["acks"], producer._properties["sasl.username"]) == ("all", "b")
