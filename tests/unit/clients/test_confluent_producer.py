"""Closing confluent-kafka's producer while other threads produce."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest

from klamm.clients import confluent


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
