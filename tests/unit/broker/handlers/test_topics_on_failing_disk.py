"""Errors that depend on another request's change of a topic, when that change cannot be stored."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from klamm.broker.cluster import AdvertisedBroker, ClusterInfo
from klamm.broker.handlers import api_019_create_topics, api_020_delete_topics, api_037_create_partitions
from klamm.broker.quotas import MutationQuotas, QuotaService
from klamm.broker.topics.catalog import TopicCatalog
from klamm.policy_runtime import Policies
from klamm.protocol.errors import ErrorCode, StorageError
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest
from klamm.protocol.messages.create_topics import CreateTopicsRequest
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest
from klamm.storage.log import LogManager
from klamm.storage.metadata.store import METADATA_FILE_NAME, MetadataStore
from tests.support.configs import make_context, make_service
from tests.support.failing_disk import Disk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from klamm.broker.context import RequestContext

NAMES = ["x", "y"]


@asynccontextmanager
async def running(directory: Path, disk: Disk) -> AsyncIterator[RequestContext]:
    store = MetadataStore.open(directory / METADATA_FILE_NAME, connect=disk.connect)
    configs = make_service(store)  # type: ignore[arg-type]  # a real store
    logs = LogManager(directory, configs_of=lambda _: {})
    topics = TopicCatalog(store=store, configs=configs, logs=logs)

    def reload(_: StorageError) -> None:
        configs.load()
        topics.load()

    store.on_failure = reload
    nodes = (AdvertisedBroker(node_id=1, host="a", port=1),)
    try:
        yield make_context(
            configs,
            api_version=3,
            topics=topics,
            logs=logs,
            policies=Policies(),
            mutation_quotas=MutationQuotas(QuotaService(store, now_ms=lambda: 0)),
            cluster=ClusterInfo(cluster_id="c", nodes=nodes),
        )
    finally:
        await store.close()


async def create(context: RequestContext) -> list[int]:
    spec = CreateTopicsRequest.CreatableTopic
    topics = [spec(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]) for name in NAMES]
    answer = await api_019_create_topics.handle(CreateTopicsRequest(topics=topics), context)
    return list(answer.error_codes())


async def delete(context: RequestContext) -> list[int]:
    answer = await api_020_delete_topics.handle(DeleteTopicsRequest(topic_names=NAMES), context)
    return [entry.error_code for entry in answer.responses]


async def grow(context: RequestContext) -> list[int]:
    topics = [CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in NAMES]
    answer = await api_037_create_partitions.handle(CreatePartitionsRequest(topics=topics), context)
    return [entry.error_code for entry in answer.results]


@pytest.mark.parametrize(
    ("change", "repeated"),
    [
        (create, ErrorCode.TOPIC_ALREADY_EXISTS),
        (delete, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (grow, ErrorCode.INVALID_PARTITIONS),
    ],
)
async def test_change_that_was_rolled_back_is_not_confirmed_to_another_request(
    change: Callable[[RequestContext], Awaitable[list[int]]],
    repeated: ErrorCode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("klamm.server.time_slice.SLICE_S", 600)  # both requests decide before the commit begins
    disk = Disk()

    async def twice(context: RequestContext) -> list[list[int]]:
        return list(await asyncio.gather(change(context), change(context)))

    async with running(tmp_path, disk) as context:
        if change is not create:
            assert await create(context) == [ErrorCode.NONE] * 2
        before = context.services.topics.all()
        # when
        disk.failures = 1
        failed = await twice(context)
        # then
        assert failed == [[ErrorCode.KAFKA_STORAGE_ERROR] * 2] * 2
        assert context.services.topics.all() == before
        assert await twice(context) == [[ErrorCode.NONE] * 2, [repeated] * 2]
