"""klamm consume --group commits only printed records. The consumer is in memory."""

from __future__ import annotations

import re
import signal
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import (
    InvalidGroupIdError,
    KafkaConfigurationError,
    KafkaTimeoutError,
    TopicAuthorizationFailedError,
)

from klamm.cli.connection import RequestError
from klamm.cli.console import receiver
from klamm.cli.console.interrupts import Interrupts
from klamm.cli.console.receiver import Interest, RecordReceiver
from klamm.cli.console.settings import (
    explain_client_error,
    kafka_python_settings,
    unknown_properties,
    with_socket_options,
)
from klamm.protocol.errors import InvalidTopicError

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITION = TopicPartition("t", 0)


class Consumer:
    """Returns ten records at once; ``committed`` is its position when it is closed, unless it does not commit then."""

    committed: int | None = None
    during_poll: Callable[[], object] = int
    """Called when the position has moved, before the records are returned."""
    pattern: str | None = None
    """Regular expression of the last subscription."""

    def __init__(self, **_: Any) -> None:
        self.position = 0

    def subscribe(self, topics: Any = (), pattern: str | None = None) -> None:
        Consumer.pattern = pattern

    def assignment(self) -> set[TopicPartition]:
        return {PARTITION}

    def seek(self, _: TopicPartition, offset: int) -> None:
        self.position = offset

    def poll(self, *, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        _ = timeout_ms
        begin, self.position = self.position, self.position + min(10, max_records)
        Consumer.during_poll()
        fields = {"topic": "t", "partition": 0, "timestamp": 1, "timestamp_type": 0, "headers": [], "leader_epoch": 0}
        return {
            PARTITION: [
                SimpleNamespace(offset=offset, key=None, value=b"v", **fields) for offset in range(begin, self.position)
            ]
        }

    def close(self, *, autocommit: bool = True) -> None:
        if autocommit:
            Consumer.committed = self.position


@pytest.fixture(autouse=True)
def consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "KafkaConsumer", Consumer)
    monkeypatch.setattr(Consumer, "committed", None)


def consume(write: Callable[[int], object], *, flush: Callable[[], object] = int, at_most: int | None = None) -> None:
    interest = Interest(topic="t", include=None, partition=None, offset=-1)
    interrupts = Interrupts()
    with interrupts.deferred(), RecordReceiver(interest, {}, flush=flush, interrupts=interrupts) as receiver:
        for record in receiver.records(at_most=at_most, timeout_ms=None):
            write(record.offset)


@pytest.mark.parametrize(
    ("include", "matched"),
    [("a", "a"), ("a|b", "ab"), ("(?i)A", "aA"), ("(?i)(?s)b.?", "bB"), ("", ""), ("(?x) a | b", "ab")],
)
def test_include_matches_whole_names(include: str, matched: str) -> None:
    interest = Interest(topic=None, include=include, partition=None, offset=-1)
    with RecordReceiver(interest, {}, flush=int, interrupts=Interrupts()):
        assert Consumer.pattern is not None
        pattern = re.compile(Consumer.pattern)
    assert [name for name in ("a", "b", "A", "B", "ab1") if pattern.match(name)] == list(matched)


@pytest.mark.parametrize("include", ["(", ")(", "a(?i)b"])
def test_invalid_include_is_rejected(include: str) -> None:
    interest = Interest(topic=None, include=include, partition=None, offset=-1)
    with pytest.raises(RequestError, match=f"--include {re.escape(include)}: "):
        RecordReceiver(interest, {}, flush=int, interrupts=Interrupts())


@pytest.mark.parametrize("partition", [None, 0])
@pytest.mark.parametrize("topic", ["", "a,b", "é", ".."])
def test_invalid_topic_is_rejected(topic: str, partition: int | None) -> None:
    interest = Interest(topic=topic, include=None, partition=partition, offset=-1)
    with pytest.raises(InvalidTopicError, match="Topic name is invalid"):
        RecordReceiver(interest, {}, flush=int, interrupts=Interrupts())


def failing_at(limit: int) -> Callable[[int], None]:
    def write(offset: int) -> None:
        if offset == limit:
            raise OSError("the disk is full")

    return write


@pytest.mark.parametrize("limit", [0, 3, 10, 14])
def test_unwritten_record_is_not_committed(limit: int) -> None:
    with pytest.raises(OSError, match="the disk is full"):
        consume(failing_at(limit))
    assert Consumer.committed == limit


def test_unflushed_records_are_not_committed() -> None:
    calls = iter(range(100))

    def flush() -> None:
        if next(calls) >= 2:  # before the third wait: the second batch of ten is lost
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        consume(lambda _: None, flush=flush)
    assert Consumer.committed == 10


def test_output_is_flushed_before_commit() -> None:
    order: list[object] = []
    consume(order.append, flush=lambda: order.append("flush"), at_most=2)
    assert (order, Consumer.committed) == (["flush", 0, 1, "flush"], 2)


def interrupting_after(count: int, printed: list[int], *numbers: signal.Signals) -> Callable[[], None]:
    """Return a function that raises signals as soon as this many records are printed."""

    def interrupt() -> None:
        if len(printed) == count:
            for number in numbers:
                signal.raise_signal(number)

    return interrupt


@pytest.mark.parametrize("count", [0, 10])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_during_poll_does_not_commit_unprinted_records(
    number: signal.Signals, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    printed: list[int] = []
    monkeypatch.setattr(Consumer, "during_poll", interrupting_after(count, printed, number, signal.SIGTERM))
    inherited = signal.signal(number, signal.default_int_handler)  # nohup lets SIGHUP be ignored
    # when
    try:
        with pytest.raises((KeyboardInterrupt, SystemExit)) as ended:
            consume(printed.append)
    finally:
        signal.signal(number, inherited)
    # then
    assert (Consumer.committed, printed) == (count, list(range(count)))
    assert getattr(ended.value, "code", 130) == 128 + number


def test_second_interrupt_during_poll_ends_without_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[int] = []
    monkeypatch.setattr(Consumer, "during_poll", interrupting_after(10, printed, signal.SIGINT, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        consume(printed.append)
    assert (Consumer.committed, len(printed)) == (None, 10)


def test_signal_during_poll_without_records_ends_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    polls = iter([signal.SIGTERM])  # a second poll fails

    def poll(*_: Any, **__: Any) -> dict[TopicPartition, list[Any]]:
        signal.raise_signal(next(polls))
        return {}

    monkeypatch.setattr(Consumer, "poll", poll)
    with pytest.raises(SystemExit, match="143"):
        consume(lambda _: None)
    assert Consumer.committed == 0


def test_signal_interrupts_write_at_once() -> None:
    printed: list[int] = []

    def write(offset: int) -> None:
        interrupting_after(3, printed, signal.SIGTERM)()
        printed.append(offset)

    with pytest.raises(SystemExit, match="143"):
        consume(write)
    assert (Consumer.committed, printed) == (3, [0, 1, 2])


def test_interrupted_last_flush_ends_without_commit() -> None:
    printed: list[int] = []
    with pytest.raises(SystemExit, match="143"):
        consume(printed.append, flush=interrupting_after(2, printed, signal.SIGTERM), at_most=2)
    assert Consumer.committed is None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InvalidGroupIdError(), "Invalid group id (INVALID_GROUP_ID)"),
        (TopicAuthorizationFailedError({"b", "a"}), "Topic authorization failed (TOPIC_AUTHORIZATION_FAILED): a: b"),
        (KafkaConfigurationError("Unrecognized isolation_level"), "Unrecognized isolation_level"),
        (KafkaTimeoutError(), "KafkaTimeoutError"),
    ],
)
def test_client_library_errors_have_kafka_messages(error: Exception, text: str) -> None:
    assert explain_client_error(error) == text


def test_numbers_of_properties_fit_the_requests_of_the_client_library() -> None:
    defaults = {"metadata_max_age_ms": 300_000}
    settings = kafka_python_settings({"metadata.max.age.ms": str(2**63 - 1)}, defaults)
    assert settings["metadata_max_age_ms"] == 2**31 - 1
    with pytest.raises(RequestError, match="=9223372036854775808: expected a whole number"):
        kafka_python_settings({"metadata.max.age.ms": str(2**63)}, defaults)


@pytest.mark.parametrize("client", [KafkaConsumer, KafkaProducer])
def test_java_classes_of_properties_have_no_effect(client: Any) -> None:
    java_properties = {
        "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
        "value.serializer": "org.apache.kafka.common.serialization.StringSerializer",
        "key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
        "value.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        "metric.reporters": "org.apache.kafka.common.metrics.JmxReporter",
    }
    properties = {**java_properties, "client.id": "orders"}
    settings = kafka_python_settings(properties, client.DEFAULT_CONFIG)
    assert settings == {"security_protocol": "PLAINTEXT", "client_id": "orders"}
    assert unknown_properties(properties, client.DEFAULT_CONFIG) == list(java_properties)


def test_sizes_of_socket_buffers_are_socket_options() -> None:
    defaults = KafkaConsumer.DEFAULT_CONFIG
    settings = kafka_python_settings({"receive.buffer.bytes": "65536", "send.buffer.bytes": "-1"}, defaults)
    options = with_socket_options(settings, defaults)["socket_options"]
    assert options == [*defaults["socket_options"], (socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)]
    with pytest.raises(RequestError, match=r"send\.buffer\.bytes=large: expected a whole number"):
        kafka_python_settings({"send.buffer.bytes": "large"}, defaults)
