"""Closing confluent-kafka's producer while other threads produce."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest

from klamm.clients import confluent, confluent_producer


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
