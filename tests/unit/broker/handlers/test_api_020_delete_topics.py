"""DeleteTopics: the policy sees the topic as it is when it is deleted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from klamm.broker.app import BrokerApp
from klamm.broker.cluster import AdvertisedBroker
from klamm.broker.context import RequestContext
from klamm.broker.handlers import api_020_delete_topics as delete_topics
from klamm.broker.settings import parse_arguments
from klamm.policy.kinds import DELETE_TOPIC
from klamm.policy_runtime import Policies
from klamm.policy_runtime.worker import PolicyOutcome
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest
from klamm.server.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from klamm.broker.context import Services
    from klamm.policy.details import DeleteTopicDetails


async def deleted(data_dir: Path, meanwhile: Callable[[Services], object]) -> tuple[list[int], list[int | None]]:
    """Delete a topic of one partition; return the error codes, and the partitions that the policy saw each time."""
    settings = parse_arguments(["--listen", "127.0.0.1:0", "--data-dir", str(data_dir)])
    node = AdvertisedBroker(node_id=settings.node_ids[0], host="127.0.0.1", port=9092)
    app = await BrokerApp.start(settings, {settings.listeners[0].name: (node,)})
    seen: list[int | None] = []

    async def ask(kind: object, details: DeleteTopicDetails) -> PolicyOutcome:
        seen.append(details.num_partitions)
        await asyncio.sleep(0)
        if len(seen) == 1:
            meanwhile(app.services)
        return PolicyOutcome(None, None)

    guard = SimpleNamespace(spec=SimpleNamespace(keys=[DELETE_TOPIC]), turn=asyncio.Lock(), ask=ask)
    services = replace(app.services, policies=Policies([cast("Any", guard)]))
    context = RequestContext(
        services=services, session=Session(connection_id=1, node_id=node.node_id), api_version=1, client_id=None
    )
    try:
        await services.topics.create("orders", [[node.node_id]], configs={})
        response = await delete_topics.handle(DeleteTopicsRequest(topic_names=["orders"]), context)
    finally:
        await app.stop()
    return [entry.error_code for entry in response.responses], seen


def test_topic_that_grows_during_policy_check_is_checked_again(tmp_path: Path) -> None:
    def grow(services: Services) -> None:
        topic = services.topics.get("orders")
        assert topic is not None
        services.topics.begin_grow(topic, [topic.partitions[0]] * 2)

    assert asyncio.run(deleted(tmp_path, grow)) == ([0], [1, 3])


def test_topic_deleted_during_policy_check_is_unknown(tmp_path: Path) -> None:
    def delete(services: Services) -> None:
        topic = services.topics.get("orders")
        assert topic is not None
        services.topics.begin_delete(topic)

    assert asyncio.run(deleted(tmp_path, delete)) == ([3], [1])
