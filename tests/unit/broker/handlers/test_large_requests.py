"""Requests with thousands of parts: handlers process them in time slices, so other clients are served."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from klamm.broker.cluster import AdvertisedBroker, ClusterInfo
from klamm.broker.handlers import (
    api_003_metadata,
    api_019_create_topics,
    api_020_delete_topics,
    api_032_describe_configs,
    api_033_alter_configs,
    api_037_create_partitions,
    api_044_incremental_alter_configs,
)
from klamm.broker.quotas import MutationQuotas, QuotaService
from klamm.broker.topics.catalog import TopicCatalog
from klamm.history.change import BROKER_ITSELF
from klamm.policy_runtime import Policies
from klamm.protocol.errors import ErrorCode, StorageError
from klamm.protocol.messages.alter_configs import AlterConfigsRequest
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest
from klamm.protocol.messages.create_topics import CreateTopicsRequest
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.storage.log import LogManager
from klamm.storage.metadata.store import METADATA_FILE_NAME, MetadataStore
from tests.support.configs import make_context, make_service, message_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

    from klamm.protocol.schema import Message
    from klamm.server.route import Route

NAMES = [f"topic-{number:05}" for number in range(2_000)]
TOPIC = 2
LEAST_TURNS = 3
"""A request takes some 50 ms and more, a slice 5."""


class Broker:
    """The state of a broker, without sockets."""

    def __init__(self, directory: Path, store: MetadataStore) -> None:
        self.store = store
        self.configs = make_service(store)  # type: ignore[arg-type]  # a real store
        self.logs = LogManager(directory, configs_of=lambda _: {})
        self.topics = TopicCatalog(store=store, configs=self.configs, logs=self.logs)

    async def ask(self, route: Route, request: Message, version: int) -> tuple[Any, int]:
        """Return the answer, and how many turns others had before it."""
        turns = 0

        async def other_task() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.001)

        other = asyncio.create_task(other_task())
        nodes = (AdvertisedBroker(node_id=1, host="a", port=1),)
        context = make_context(
            self.configs,
            api_version=version,
            topics=self.topics,
            logs=self.logs,
            policies=Policies(),
            mutation_quotas=MutationQuotas(QuotaService(self.store, now_ms=lambda: 0)),
            cluster=ClusterInfo(cluster_id="c", nodes=nodes),
        )
        answer = await route.handle(request, context)
        other.cancel()
        return answer, turns


@asynccontextmanager
async def a_broker(directory: Path) -> AsyncIterator[Broker]:
    store = MetadataStore.open(directory / METADATA_FILE_NAME)
    (directory / "logs").mkdir()
    broker = Broker(directory / "logs", store)
    try:
        yield broker
    finally:
        await store.close()


def create(names: list[str]) -> CreateTopicsRequest:
    spec = CreateTopicsRequest.CreatableTopic
    topics = [spec(name=name, num_partitions=2, replication_factor=1, assignments=[], configs=[]) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=60_000)


def incremental() -> IncrementalAlterConfigsRequest:
    kind = IncrementalAlterConfigsRequest
    flush = kind.AlterableConfig(name="flush.ms", config_operation=0, value="1234567")
    return kind(
        resources=[kind.AlterConfigsResource(resource_type=TOPIC, resource_name=n, configs=[flush]) for n in NAMES]
    )


def replace_all() -> AlterConfigsRequest:
    kind = AlterConfigsRequest
    flush = kind.AlterableConfig(name="flush.ms", value="7654321")
    return kind(
        resources=[kind.AlterConfigsResource(resource_type=TOPIC, resource_name=n, configs=[flush]) for n in NAMES]
    )


def describe() -> DescribeConfigsRequest:
    kind = DescribeConfigsRequest
    return kind(
        resources=[
            kind.DescribeConfigsResource(resource_type=TOPIC, resource_name=n, configuration_keys=["flush.ms"])
            for n in NAMES
        ]
    )


def grow() -> CreatePartitionsRequest:
    kind = CreatePartitionsRequest
    return kind(
        topics=[kind.CreatePartitionsTopic(name=n, count=3, assignments=None) for n in NAMES], timeout_ms=60_000
    )


def delete() -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in NAMES])


async def test_request_with_thousands_of_parts_yields_to_others(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        # topics are created
        answer, turns = await broker.ask(api_019_create_topics.ROUTE, create(NAMES), 7)
        assert set(answer.error_codes()) == {0}
        assert turns >= LEAST_TURNS
        # told of
        answer, turns = await broker.ask(api_003_metadata.ROUTE, MetadataRequest(topics=None), 12)
        assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [(name, 2) for name in NAMES]
        # changed in both ways
        answer, turns = await broker.ask(api_044_incremental_alter_configs.ROUTE, incremental(), 1)
        assert [(r.resource_name, r.error_code) for r in answer.responses] == [(name, 0) for name in NAMES]
        assert turns >= LEAST_TURNS
        assert broker.configs.topic_config(NAMES[-1])["flush.ms"] == 1234567
        answer, turns = await broker.ask(api_033_alter_configs.ROUTE, replace_all(), 2)
        assert {r.error_code for r in answer.responses} == {0}
        assert turns >= LEAST_TURNS
        # described
        answer, turns = await broker.ask(api_032_describe_configs.ROUTE, describe(), 4)
        values = {config.value for result in message_of(answer).results for config in result.configs}
        assert values == {"7654321"}
        # larger
        answer, turns = await broker.ask(api_037_create_partitions.ROUTE, grow(), 3)
        assert {result.error_code for result in answer.results} == {0}
        assert turns >= LEAST_TURNS
        # and gone
        answer, turns = await broker.ask(api_020_delete_topics.ROUTE, delete(), 6)
        assert [(r.name, r.error_code) for r in answer.responses] == [(name, 0) for name in NAMES]
        assert turns >= LEAST_TURNS
        assert len(broker.topics) == 0


async def test_concurrent_creations_create_each_topic_once(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        names = NAMES[:500]
        (first, _), (other, _) = await asyncio.gather(
            broker.ask(api_019_create_topics.ROUTE, create(names), 7),
            broker.ask(api_019_create_topics.ROUTE, create(names[::-1]), 7),
        )
        codes = zip(first.error_codes(), other.error_codes()[::-1], strict=True)
        assert {tuple(sorted(pair)) for pair in codes} == {(0, 36)}


async def test_topic_of_canceled_request_gets_its_logs(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        topic, durable = broker.topics.begin_create("orphan", ((1,),), configs={}, author=BROKER_ITSELF)
        durable.cancel()
        after, durable = broker.topics.begin_create("after", ((1,),), configs={}, author=BROKER_ITSELF)
        await durable
        assert broker.logs.get(topic.topic_id, 0) is not None
        gone = broker.topics.begin_delete(topic)
        gone.cancel()
        await broker.topics.begin_delete(after)
        assert broker.logs.get(topic.topic_id, 0) is None


async def test_existing_topic_is_reported_once_its_creation_is_durable(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        request = CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="t")])
        broker.topics.begin_create("t", ((1,),), configs={})
        answer, _ = await broker.ask(api_019_create_topics.ROUTE, request, 7)
        assert answer.error_codes() == (ErrorCode.TOPIC_ALREADY_EXISTS,)
        assert [row.name for row in broker.store.load_topics()] == ["t"]


async def test_unknown_topic_is_reported_once_its_deletion_is_durable(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        topic = await broker.topics.create("t", ((1,),), configs={})
        broker.topics.begin_delete(topic)
        answer, _ = await broker.ask(api_020_delete_topics.ROUTE, DeleteTopicsRequest(topic_names=["t"]), 5)
        assert [entry.error_code for entry in answer.responses] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert not broker.store.load_topics()


async def test_partition_count_is_reported_once_it_is_durable(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        topic = await broker.topics.create("t", ((1,),), configs={})
        broker.topics.begin_grow(topic, ((1,),))
        growth = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2)
        answer, _ = await broker.ask(api_037_create_partitions.ROUTE, CreatePartitionsRequest(topics=[growth]), 3)
        assert [result.error_code for result in answer.results] == [ErrorCode.INVALID_PARTITIONS]
        assert [len(row.partitions) for row in broker.store.load_topics()] == [2]


async def test_topic_with_failed_creation_is_not_reported_as_existing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_broker(tmp_path) as broker:
        failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with monkeypatch.context() as patch:
            patch.setattr(broker.store, "submit", lambda _: failing)
            _, created = broker.topics.begin_create("t", ((1,),), configs={})
        request = CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="t")])
        asyncio.get_running_loop().call_later(0.01, failing.set_exception, StorageError("full"))
        answer, _ = await broker.ask(api_019_create_topics.ROUTE, request, 7)
        assert answer.error_codes() == (ErrorCode.KAFKA_STORAGE_ERROR,)
        assert isinstance(created.exception(), StorageError)


async def test_metadata_of_many_partitions_pauses_for_other_requests(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        topic = await broker.topics.create("t", ((1,),), configs={})
        await broker.topics.begin_grow(topic, ((1,),) * 50_000)
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
        answer, turns = await broker.ask(api_003_metadata.ROUTE, request, 9)
        assert len(answer.topics[0].partitions) == 50_001
        assert turns >= LEAST_TURNS
