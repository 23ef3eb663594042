"""Replacement of confluent-kafka's consumer."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest

from klamm.clients import confluent


class FakeConsumer:
    """A consumer whose close calls an application's on_commit, which fails."""

    def __init__(self, properties: dict[str, Any], **_: Any) -> None:
        self.session_timeout_ms = properties["session.timeout.ms"]
        self.topics: list[str] = []
        self.user = properties.get("sasl.username")

    def subscribe(self, topics: list[str], **_: Any) -> None:
        self.topics = topics

    def assignment(self) -> list[Any]:
        return []

    def position(self, partitions: list[Any]) -> list[Any]:
        return partitions

    def poll(self, _: float) -> None:
        return None

    def set_sasl_credentials(self, username: str, password: str) -> None: ...

    def close(self) -> None:
        raise LookupError("on_commit failed")


def test_failing_callback_does_not_end_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error reaches the application. The closed consumer is not used any more."""
    monkeypatch.setattr(confluent_kafka, "Consumer", FakeConsumer)
    consumer = confluent.Consumer({"group.id": "g", "session.timeout.ms": "6000"}, enable_dynamic_config=False)
    consumer.subscribe(["t"])
    consumer.set_sasl_credentials("b", "2")
    values = {"session.timeout.ms": "7000", "heartbeat.interval.ms": "1000"}
    consumer._inbox.put(confluent.ConfigUpdate(changes=(), effective=values))
    with pytest.raises(LookupError, match="on_commit failed"):
        consumer.poll(0)
    assert consumer.poll(0) is None
    assert (consumer.session_timeout_ms, consumer.topics, consumer.user) == ("7000", ["t"], "b")
