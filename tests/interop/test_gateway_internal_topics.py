"""Internal topics of the gateway on an upstream: fenced writers, what readers see, and topics that are deleted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from klamm.admin import AdminClient, NewTopic
from klamm.gateway.client_configs.config_log import TOPIC_CONFIGS
from klamm.gateway.client_configs.topic_image import FollowedTopic
from klamm.gateway.upstream.internal_topic import (
    InternalTopic,
    InternalTopicGoneError,
    TransactionalTopic,
    final_code,
)
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.records import RecordsRejectedError
from klamm.kafka_client.errors import TransactionLostError
from klamm.protocol.errors import ErrorCode
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import klamm
    from klamm.server.time_slice import TimeSlice


@pytest.fixture
def settings(klamm_session_broker: klamm.Broker) -> ConnectionSettings:
    return ConnectionSettings.of((klamm_session_broker.bootstrap_servers,), {}, "test")


@pytest.fixture
def topic(make_klamm_topic: Callable[..., str]) -> str:
    return make_klamm_topic(configs=dict(TOPIC_CONFIGS))


@pytest.fixture
def reader(settings: ConnectionSettings, topic: str) -> Iterator[InternalTopic]:
    internal_topic = InternalTopic(settings, topic)
    yield internal_topic
    internal_topic.close()


def record(value: bytes) -> Record:
    return Record(key=b"k", value=value)


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [each.value for each in records]


def test_new_writer_fences_the_previous_one_and_reads_its_records(
    settings: ConnectionSettings, topic: str, reader: InternalTopic
) -> None:
    first, two = TransactionalTopic(settings, topic), TransactionalTopic(settings, topic)
    try:
        assert first.take_over(0) == ([], 0)
        first.commit({topic: [record(b"1")]})
        first.commit({topic: [record(b"2"), record(b"3")]})
        read, position = two.take_over(0)
        assert values(read) == [b"1", b"2", b"3"]
        with pytest.raises(TransactionLostError):
            first.commit({topic: [record(b"fenced")]})
        two.commit({topic: [record(b"4")]})
        read, _ = first.take_over(position)
        assert values(read) == [b"4"]
        assert values(reader.load()[0]) == [b"1", b"2", b"3", b"4"]
    finally:
        first.close()
        two.close()


def test_large_change_is_written_in_several_batches(
    settings: ConnectionSettings, topic: str, reader: InternalTopic
) -> None:
    writer = TransactionalTopic(settings, topic)
    many = [Record(key=str(number).encode(), value=b"x" * 1000) for number in range(3000)]
    try:
        writer.take_over(0)
        writer.commit({topic: many})
        writer.commit({topic: many[:1]})
    finally:
        writer.close()
    records, position = reader.load()
    assert [each.key for each in records] == [each.key for each in [*many, many[0]]]
    assert reader.poll(position) == ([], position)


def test_transaction_includes_other_topics_or_fails_as_a_whole(
    settings: ConnectionSettings, topic: str, reader: InternalTopic, make_klamm_topic: Callable[..., str]
) -> None:
    further = make_klamm_topic()
    other, writer = InternalTopic(settings, further), TransactionalTopic(settings, topic)
    try:
        writer.take_over(0)
        for number in (b"1", b"2"):
            writer.commit({topic: [record(number)], further: [record(b"of " + number)]})
        with pytest.raises(InternalTopicGoneError, match="no-such-topic does not exist"):
            writer.commit({topic: [record(b"3")], "no-such-topic": [record(b"3")]})
        assert values(reader.load()[0]) == [b"1", b"2"]
        assert [values(some) for some in other.read_all()] == [[b"of 1", b"of 2"]]
    finally:
        other.close()
        writer.close()


def test_rejected_transaction_is_aborted_and_the_next_one_may_follow(
    settings: ConnectionSettings, topic: str, reader: InternalTopic, make_klamm_topic: Callable[..., str]
) -> None:
    small = make_klamm_topic(configs={"max.message.bytes": "500"})
    writer = TransactionalTopic(settings, topic)
    try:
        writer.take_over(0)
        writer.commit({topic: [record(b"1")]})
        with pytest.raises(RecordsRejectedError, match="MESSAGE_TOO_LARGE") as error:
            writer.commit({topic: [record(b"2")], small: [record(b"small"), record(b"x" * 1000)]})
        assert final_code(error.value) is ErrorCode.MESSAGE_TOO_LARGE
        writer.commit({topic: [record(b"3")], small: [record(b"of 3")]})
    finally:
        writer.close()
    assert values(reader.load()[0]) == [b"1", b"3"]
    other = InternalTopic(settings, small)
    assert values(other.load()[0]) == [b"of 3"]
    other.close()


def test_deleted_topic_is_detected(
    settings: ConnectionSettings, topic: str, reader: InternalTopic, klamm_session_broker: klamm.Broker
) -> None:
    reader.load()
    reader.append([record(b"1")])
    assert values(reader.poll(0)[0]) == [b"1"]
    with AdminClient(klamm_session_broker.bootstrap_servers) as admin:
        admin.delete_topics([topic]).all().result()
        with pytest.raises(InternalTopicGoneError):
            reader.poll(1)
        with pytest.raises(InternalTopicGoneError):
            reader.load()


def test_follower_reloads_a_recreated_topic(
    settings: ConnectionSettings, topic: str, klamm_session_broker: klamm.Broker
) -> None:
    class Image:
        def __init__(self) -> None:
            self.values: list[bytes | None] = []
            self.changed = asyncio.Event()

        async def on_load(self, records: Sequence[Record], slices: TimeSlice) -> None:
            await slices.give_way()
            self.values = []
            self.on_records(records)

        def on_records(self, records: Sequence[Record]) -> None:
            self.values += values(records)
            self.changed.set()

        async def until(self, expected: list[bytes]) -> None:
            async with asyncio.timeout(20):
                while self.values != expected:
                    await self.changed.wait()
                    self.changed.clear()

    async def run(admin: AdminClient) -> None:
        async def create() -> None:
            if topic not in await admin.list_topics():
                await admin.create_topics([NewTopic(topic, 1, 1)])

        image, follower = Image(), FollowedTopic(InternalTopic(settings, topic))
        follower.start(image, create)
        writer = InternalTopic(settings, topic)
        try:
            assert await follower.loaded(20)
            await asyncio.to_thread(writer.append, [record(b"1")])
            await image.until([b"1"])
            await admin.delete_topics([topic])
            await image.until([])
            writer.close()
            writer = InternalTopic(settings, topic)
            await asyncio.to_thread(writer.append, [record(b"2")])
            await image.until([b"2"])
            assert follower.loads == 2
        finally:
            writer.close()
            await follower.close()

    with AdminClient(klamm_session_broker.bootstrap_servers) as admin:
        asyncio.run(run(admin))
