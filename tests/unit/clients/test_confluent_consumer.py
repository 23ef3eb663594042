"""Replacement of confluent-kafka's consumer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

from klamm.clients import confluent, confluent_consumer
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsResponse
from tests.support.stub_broker import StubBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


END = confluent_kafka.OFFSET_END


class FakeConsumer:
    """A consumer whose close calls an application's on_commit, which fails."""

    def __init__(self, properties: dict[str, Any], **_: Any) -> None:
        self.session_timeout_ms = properties["session.timeout.ms"]
        self.topics: list[str] = []
        self.user = properties.get("sasl.username")
        self.assigned: list[Any] = []
        self.commits: list[Any] = []
        self.calls: list[tuple[str, Any]] = []

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any) -> None:
        self.topics, self.on_assign, self.on_revoke = topics, on_assign, on_revoke

    def unsubscribe(self) -> None:
        self.topics = []

    def assignment(self) -> list[Any]:
        return self.assigned

    def position(self, partitions: list[Any]) -> list[Any]:
        return partitions

    def pause(self, partitions: list[Any]) -> None:
        self.calls.append(("pause", partitions))

    def poll(self, timeout: float) -> None:
        self.calls.append(("poll", timeout))

    def assign(self, partitions: list[Any]) -> None:
        self.assigned = partitions

    def incremental_assign(self, partitions: list[Any]) -> None:
        assert not {one.partition for one in self.assigned} & {one.partition for one in partitions}, "_CONFLICT"
        self.assigned = [*self.assigned, *partitions]

    def incremental_unassign(self, partitions: list[Any]) -> None:
        assert {one.partition for one in self.assigned} >= {one.partition for one in partitions}, "_INVALID_ARG"
        self.assigned = [one for one in self.assigned if one not in partitions]

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        assert timeout > 0
        return [confluent_kafka.TopicPartition(one.topic, one.partition) for one in partitions]

    def get_watermark_offsets(self, _: Any, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        return 0, 9

    def seek(self, partition: Any) -> None:
        assert partition.partition in {one.partition for one in self.assigned}, "_UNKNOWN_PARTITION"

    def memberid(self) -> str:
        return "member"

    def commit(self, *, asynchronous: bool, offsets: Sequence[Any] = ()) -> list[Any]:
        assert not asynchronous
        assert ("close", None) not in self.calls, "Consumer closed"
        self.commits += [(one.partition, one.offset) for one in offsets]
        return list(offsets)

    def set_sasl_credentials(self, username: str, password: str) -> None: ...

    def close(self) -> None:
        self.calls.append(("close", None))
        raise LookupError("on_commit failed")


class RebalancedConsumer(FakeConsumer):
    """A consumer that calls the listeners, and assigns partitions where they do not, as confluent-kafka does."""

    def __init__(self, properties: dict[str, Any], **more: Any) -> None:
        super().__init__(properties, **more)
        self.waiting: list[Callable[[], None]] = []
        """Callbacks that the next ``poll`` calls."""

    def receive(self, *partitions: int) -> None:
        """Let an assignment of the group wait for the next ``poll``."""
        assigned = [confluent_kafka.TopicPartition("t", partition) for partition in partitions]

        def call() -> None:
            self.assigned = []
            self.on_assign(self, [confluent_kafka.TopicPartition("t", partition) for partition in partitions])
            self.assigned = self.assigned or assigned

        self.waiting.append(call)

    def poll(self, timeout: float) -> None:
        super().poll(timeout)
        while self.waiting:
            self.waiting.pop(0)()

    def store_offsets(self, **offsets: Any) -> None:
        self.calls.append(("store_offsets", offsets))

    def close(self) -> None:
        self.calls.append(("close", None))
        self.on_revoke(self, self.assigned)


VALUES = {"session.timeout.ms": "7000", "heartbeat.interval.ms": "1000"}


def change(consumer: confluent.Consumer, session_timeout_ms: str) -> None:
    effective = VALUES | {"session.timeout.ms": session_timeout_ms}
    consumer._inbox.put(confluent.ConfigUpdate(changes=(), effective=effective))


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> confluent.Consumer:
    """A consumer that is not subscribed yet and commits when the application does."""
    monkeypatch.setattr(confluent_kafka, "Consumer", RebalancedConsumer)
    properties = {
        "group.id": "g",
        "session.timeout.ms": "6000",
        "enable.auto.commit": "false",
        "auto.offset.reset": "earliest",
    }
    return confluent.Consumer(properties, enable_dynamic_config=False)


def test_assignment_that_waits_during_a_second_replacement_keeps_the_positions(consumer: confluent.Consumer) -> None:
    """The group answers the first successor between two polls, and a second change arrives before the next poll."""
    # given
    revoked: list[Any] = []
    consumer.subscribe(["t"], on_revoke=lambda _, partitions: revoked.extend(partitions))
    consumer._consumer.assign([confluent_kafka.TopicPartition("t", 0, 5)])
    change(consumer, "7000")
    consumer.poll(0)
    consumer._consumer.receive(0)
    # when
    change(consumer, "8000")
    consumer.poll(0)
    consumer._consumer.receive(0)
    consumer.poll(0)
    # then
    assert revoked == []
    assert [(one.partition, one.offset) for one in consumer.assignment()] == [(0, 5)]
    assert [(one.partition, one.offset) for one in consumer.commit(asynchronous=False)] == [(0, 5)]


def test_assignment_and_seek_continue_before_the_new_assignment(consumer: confluent.Consumer) -> None:
    """librdkafka's new consumer has no partitions then, and rejects a seek."""
    # given
    consumer.subscribe(["t"])
    consumer._consumer.assign([confluent_kafka.TopicPartition("t", partition, 5) for partition in range(3)])
    change(consumer, "7000")
    consumer.poll(0)
    assert consumer._consumer.assignment() == []
    # when
    assigned = [one.partition for one in consumer.assignment()]
    consumer.seek(confluent_kafka.TopicPartition("t", 1, 2))
    consumer.seek(confluent_kafka.TopicPartition("t", 2, confluent_kafka.OFFSET_BEGINNING))
    consumer._consumer.receive(0, 1, 2)
    consumer.poll(0)
    # then
    assert assigned == [0, 1, 2]
    offsets = {one.partition: one.offset for one in consumer.assignment()}
    assert offsets == {0: 5, 1: 2, 2: confluent_kafka.OFFSET_BEGINNING}


@pytest.fixture
def dynamic_consumer(consumer: confluent.Consumer, monkeypatch: pytest.MonkeyPatch) -> confluent.Consumer:
    """A consumer that requests dynamic configs. The end of each partition is 9 when it is first looked up."""
    ends = iter(range(9, 100))
    monkeypatch.setattr(consumer, "_connection", SimpleNamespace(is_on=True))
    monkeypatch.setattr(FakeConsumer, "get_watermark_offsets", lambda *_, **__: (0, next(ends)))
    return consumer


@pytest.mark.parametrize(
    ("offset", "resumed"), [(confluent_kafka.OFFSET_BEGINNING, confluent_kafka.OFFSET_BEGINNING), (END, 9)]
)
def test_seek_outlives_a_replacement(dynamic_consumer: confluent.Consumer, offset: int, resumed: int) -> None:
    # given
    dynamic_consumer.subscribe(["t"])
    dynamic_consumer._consumer.receive(0)
    dynamic_consumer.poll(0)
    dynamic_consumer.seek(confluent_kafka.TopicPartition("t", 0, offset))
    # when
    change(dynamic_consumer, "7000")
    dynamic_consumer.poll(0)
    dynamic_consumer._consumer.receive(0)
    dynamic_consumer.poll(0)
    # then
    assert [one.offset for one in dynamic_consumer.assignment()] == [resumed]


def test_seek_to_the_end_before_the_new_assignment_means_the_end_of_that_time(
    dynamic_consumer: confluent.Consumer,
) -> None:
    dynamic_consumer.subscribe(["t"])
    dynamic_consumer._consumer.assign([confluent_kafka.TopicPartition("t", 0, 5)])
    change(dynamic_consumer, "7000")
    dynamic_consumer.poll(0)
    dynamic_consumer.seek(confluent_kafka.TopicPartition("t", 0, END))
    dynamic_consumer._consumer.receive(0)
    dynamic_consumer.poll(0)
    assert offsets(dynamic_consumer) == {0: 9}


@pytest.mark.parametrize("assign", ["assign", "incremental_assign"])
@pytest.mark.parametrize(("reset", "offset"), [("earliest", END), ("latest", confluent_kafka.OFFSET_INVALID)])
def test_application_that_starts_at_the_end_stays_there_after_a_replacement(
    dynamic_consumer: confluent.Consumer, assign: str, reset: str, offset: int
) -> None:
    """Neither the records before that end are returned, nor are those after it skipped."""
    # given
    assigned: list[Any] = []

    def on_assign(client: confluent.Consumer, partitions: list[Any]) -> None:
        for one in partitions:
            one.offset = offset
        getattr(client, assign)(partitions)
        assigned.extend(partitions)

    dynamic_consumer._progress = confluent_consumer.DeliveryProgress({"auto.offset.reset": reset})
    dynamic_consumer.subscribe(["t"], on_assign=on_assign)
    dynamic_consumer._consumer.receive(0)
    dynamic_consumer.poll(0)
    started_at = offsets(dynamic_consumer)
    # when
    change(dynamic_consumer, "7000")
    dynamic_consumer.poll(0)
    dynamic_consumer._consumer.receive(0)
    dynamic_consumer.poll(0)
    # then
    assert (started_at, offsets(dynamic_consumer)) == ({0: 9}, {0: 9})
    assert [one.offset for one in assigned] == [offset]  # the application's own objects


def test_assignment_without_offset_does_not_resume_at_an_earlier_one(consumer: confluent.Consumer) -> None:
    consumer.subscribe(["t"])
    for offset in (5, confluent_kafka.OFFSET_INVALID):
        consumer.assign([confluent_kafka.TopicPartition("t", 0, offset)])
    change(consumer, "7000")
    consumer.poll(0)
    consumer._consumer.receive(0)
    consumer.poll(0)
    assert offsets(consumer) == {0: confluent_kafka.OFFSET_INVALID}


def resume_with(consumer: confluent.Consumer, *partitions: int, **listeners: Any) -> None:
    """Replace a consumer that has read partition 0 up to offset 5 and paused it."""
    consumer.subscribe(["t"], **listeners)
    consumer._consumer.assign([confluent_kafka.TopicPartition("t", 0, 5)])
    consumer.pause(consumer.assignment())
    change(consumer, "7000")
    consumer.poll(0)
    consumer._consumer.receive(*partitions)
    consumer.poll(0)


def offsets(consumer: confluent.Consumer) -> dict[int, int]:
    return {one.partition: one.offset for one in consumer.assignment()}


def test_application_assigns_after_a_replacement(consumer: confluent.Consumer) -> None:
    """Its own offset counts. Without one, the partition resumes at its position."""

    def on_assign(client: confluent.Consumer, partitions: list[Any]) -> None:
        client.assign([partitions[0], confluent_kafka.TopicPartition("t", 1, 3)])

    # when
    resume_with(consumer, 0, 1, on_assign=on_assign)
    # then
    assert offsets(consumer) == {0: 5, 1: 3}
    assert [[one.partition for one in paused] for name, paused in consumer._consumer.calls if name == "pause"] == [[0]]


def test_application_assigns_cooperatively_after_a_replacement(consumer: confluent.Consumer) -> None:
    """librdkafka rejects a second assignment of a partition, and the removal of one that it does not have."""
    consumer._properties["partition.assignment.strategy"] = "cooperative-sticky"
    resume_with(
        consumer,
        1,
        on_assign=lambda client, partitions: client.incremental_assign(partitions),
        on_revoke=lambda client, partitions: client.incremental_unassign(partitions),
    )
    assert list(offsets(consumer)) == [1]


def test_failing_listener_does_not_lose_the_positions(consumer: confluent.Consumer) -> None:
    def fail(*_: Any) -> None:
        raise LookupError("the listener failed")

    with pytest.raises(LookupError, match="the listener failed"):
        resume_with(consumer, 0, 1, on_assign=fail, on_revoke=fail)
    assert offsets(consumer) == {0: 5, 1: confluent_kafka.OFFSET_INVALID}


def test_partition_gained_by_a_replacement_starts_at_its_present_end(consumer: confluent.Consumer) -> None:
    """The next replacement could otherwise skip records."""
    consumer._progress = confluent_consumer.DeliveryProgress({"auto.offset.reset": "latest"})
    resume_with(consumer, 0, 1)
    assert offsets(consumer) == {0: 5, 1: 9}


def test_on_revoke_commits_partitions_that_a_replacement_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new consumer may be assigned other partitions than the old one."""
    monkeypatch.setattr(confluent_kafka, "Consumer", FakeConsumer)
    properties = {"group.id": "g", "session.timeout.ms": "6000", "enable.auto.commit": "false"}
    consumer = confluent.Consumer(properties, enable_dynamic_config=False)
    revoked: list[Any] = []

    def on_revoke(client: Any, partitions: list[Any]) -> None:
        revoked.extend(partitions)
        client.commit(asynchronous=False)

    consumer.subscribe(["t"], on_revoke=on_revoke)
    consumer._consumer.assign([confluent_kafka.TopicPartition("t", 0, 5), confluent_kafka.TopicPartition("t", 1, 7)])
    consumer._inbox.put(confluent.ConfigUpdate(changes=(), effective=VALUES))
    with pytest.raises(LookupError, match="on_commit failed"):
        consumer.poll(0)
    # when
    successor = consumer._consumer
    successor.on_assign(successor, [confluent_kafka.TopicPartition("t", 1)])
    # then
    assert [one.partition for one in revoked] == [0, 1]
    assert successor.commits == [(0, 5), (1, 7)]
    assert [(one.partition, one.offset) for one in successor.assigned] == [(1, 7)]


@pytest.fixture
def storing_consumer(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> confluent.Consumer:
    """A consumer that has stored offset 7 after a replacement, before the new assignment. It commits automatically.

    The parameter is ``enable.auto.commit``.
    """
    monkeypatch.setattr(confluent_kafka, "Consumer", RebalancedConsumer)
    properties = {
        "group.id": "g",
        "session.timeout.ms": "6000",
        "enable.auto.offset.store": "false",
        "enable.auto.commit": getattr(request, "param", "true"),
    }
    consumer = confluent.Consumer(properties, enable_dynamic_config=False)
    consumer.subscribe(["t"])
    consumer._consumer.assign([confluent_kafka.TopicPartition("t", 0, 5)])
    change(consumer, "7000")
    consumer.poll(0)
    consumer.store_offsets(offsets=[confluent_kafka.TopicPartition("t", 0, 7)])
    return consumer


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda consumer: consumer.close(), id="close"),
        pytest.param(lambda consumer: consumer.unsubscribe(), id="unsubscribe"),
        pytest.param(lambda consumer: consumer.subscribe(["u"]), id="subscribe"),
    ],
)
def test_offsets_stored_before_the_new_assignment_are_committed(
    end: Callable[[confluent.Consumer], None], storing_consumer: confluent.Consumer
) -> None:
    """librdkafka does not know them, so its automatic commits leave them out."""
    # when
    end(storing_consumer)
    # then
    assert storing_consumer._consumer.commits == [(0, 7)]


def test_close_does_not_wait_for_offsets_that_the_former_consumer_has_committed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    monkeypatch.setattr(confluent_kafka, "Consumer", RebalancedConsumer)
    properties = {"group.id": "g", "session.timeout.ms": "6000", "enable.auto.offset.store": "false"}
    consumer = confluent.Consumer(properties, enable_dynamic_config=False)
    consumer.subscribe(["t"])
    consumer._consumer.assign([confluent_kafka.TopicPartition("t", 0, 5)])
    consumer.store_offsets(offsets=[confluent_kafka.TopicPartition("t", 0, 7)])
    change(consumer, "7000")
    consumer.poll(0)
    monkeypatch.setattr(consumer._consumer, "memberid", lambda: pytest.fail("close waits for the new consumer"))
    # when
    consumer.close()
    # then
    assert consumer._consumer.commits == []
    assert "not committed" not in caplog.text


def test_rejected_commit_of_stored_offsets_does_not_prevent_close(
    storing_consumer: confluent.Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    monkeypatch.setattr(confluent_consumer, "_JOIN_TIMEOUT_S", 0.0)
    monkeypatch.setattr(storing_consumer._consumer, "memberid", lambda: "")
    # when
    storing_consumer.close()
    storing_consumer.close()
    # then
    assert "t-0: 7" in caplog.text
    assert storing_consumer._consumer.commits == []
    assert storing_consumer._consumer.calls[-1] == ("close", None)


@pytest.mark.parametrize("storing_consumer", ["false"], indirect=True)
def test_close_does_not_commit_stored_offsets_if_commits_are_manual(storing_consumer: confluent.Consumer) -> None:
    # when
    storing_consumer.close()
    # then
    assert storing_consumer._consumer.commits == []


def test_waiting_callbacks_are_called_before_close_and_no_record_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an assignment among them, the close of librdkafka may not return."""
    monkeypatch.setattr(confluent_kafka, "Consumer", FakeConsumer)
    consumer = confluent.Consumer({"group.id": "g", "session.timeout.ms": "6000"}, enable_dynamic_config=False)
    assigned = [confluent_kafka.TopicPartition("t", 0)]
    consumer._consumer.assign(assigned)
    with pytest.raises(LookupError, match="on_commit failed"):
        consumer.close()
    assert consumer._consumer.calls == [("pause", assigned), ("poll", 0), ("close", None)]


def test_failing_callback_does_not_end_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error reaches the application. The closed consumer is not used any more."""
    monkeypatch.setattr(confluent_kafka, "Consumer", FakeConsumer)
    consumer = confluent.Consumer({"group.id": "g", "session.timeout.ms": "6000"}, enable_dynamic_config=False)
    consumer.subscribe(["t"])
    consumer.set_sasl_credentials("b", "2")
    consumer._inbox.put(confluent.ConfigUpdate(changes=(), effective=VALUES))
    with pytest.raises(LookupError, match="on_commit failed"):
        consumer.poll(0)
    assert consumer.poll(0) is None
    assert (consumer.session_timeout_ms, consumer.topics, consumer.user) == ("7000", ["t"], "b")


def test_consumed_messages_are_returned_before_a_replacement(
    consumer: confluent.Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callbacks of the former consumer may raise, and the messages would be lost."""
    # given
    consumer.subscribe(["t"])

    def consume(*_: Any) -> list[confluent_kafka.Message]:
        change(consumer, "7000")
        return [confluent_kafka.Message("t", 0, 0)]

    monkeypatch.setattr(consumer._consumer, "consume", consume, raising=False)
    # when
    messages = consumer.consume(2)
    # then
    assert len(messages) == 1


@pytest.mark.parametrize("has_unsubscribed", [False, True])
def test_failing_callback_does_not_keep_a_closed_consumer_in_its_group(
    has_unsubscribed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests for configs end, and the generated static member leaves."""
    # given
    left: list[str] = []
    monkeypatch.setattr(confluent_kafka, "Consumer", FakeConsumer)
    monkeypatch.setattr(confluent_consumer, "leave_group", lambda _, group, __: left.append(group))
    with StubBroker(features={"client.configs": (1, 1)}, versions={50: (0, 0)}) as stub:
        entry = DescribeClientConfigsResponse.EntryData(entity=[], values=[])
        stub.answer(50, lambda _: DescribeClientConfigsResponse(error_message=None, entries=[entry]))
        properties = {"bootstrap.servers": stub.bootstrap_servers, "group.id": "g", "session.timeout.ms": "6000"}
        consumer = confluent.Consumer(properties)
        consumer.subscribe(["t"])
        if has_unsubscribed:
            consumer.unsubscribe()
        # when
        with pytest.raises(LookupError, match="on_commit failed"):
            consumer.close()
        # then
        assert left == ["g"]
        assert consumer._connection is not None
        assert consumer._connection._pool.is_closed
