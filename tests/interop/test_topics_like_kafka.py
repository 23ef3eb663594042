"""Requests for topics whose entries concern each other, compared with Apache Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

import klamm
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.support.shared_cluster import unique
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kafka import KafkaCluster

ZERO = UUID(int=0)
CASES = ("ni", "in", "nni", "inn", "nii", "iin", "nnii", "bi", "bn", "bni", "b", "nn", "ii")
"""n: by name, i: by id, b: by both in one entry."""

Answers = list[tuple[bool, bool, int, str | None]]


@pytest.fixture(scope="module")
def own() -> Iterator[klamm.Broker]:
    with klamm.Broker() as broker:
        yield broker


def ask(client: WireClient, case: str) -> tuple[Answers, bool]:
    """Create a topic and delete it as the case says. Return the responses without the id, and whether it is gone."""
    name = unique("deleted-")
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    (made,) = client.ask(request, CreateTopicsResponse, 7).topics
    assert made.error_code == 0
    states = {
        "n": DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO),
        "i": DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=made.topic_id),
        "b": DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=made.topic_id),
    }
    deletion = DeleteTopicsRequest(topics=[states[letter] for letter in case], timeout_ms=30_000)
    responses = client.ask(deletion, DeleteTopicsResponse, 6).responses
    answers = [
        (response.name is not None, response.topic_id != ZERO, response.error_code, response.error_message)
        for response in responses
    ]
    return sorted(answers, key=str), _is_gone(client, name)


def _is_gone(client: WireClient, name: str) -> bool:
    """Return whether the name is free again: the broker would create a topic of that name."""
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=True)
    return client.ask(request, CreateTopicsResponse, 7).topics[0].error_code == 0


@pytest.mark.parametrize("case", CASES)
def test_topic_named_repeatedly_is_answered_like_kafka(case: str, own: klamm.Broker, real_kafka: KafkaCluster) -> None:
    with WireClient(own.bootstrap_servers) as ours, WireClient(real_kafka.bootstrap_servers) as theirs:
        assert ask(ours, case) == ask(theirs, case)


def test_colliding_names_within_one_request_differ_from_kafka(own: klamm.Broker, real_kafka: KafkaCluster) -> None:
    """Kafka compares with the topics that exist already, klamm also with those created just before (divergences.md)."""

    run = unique("one")

    def create(address: str) -> list[tuple[int, str | None]]:
        topics = [
            CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in (f"{run}.request", f"{run}_request")
        ]
        with WireClient(address) as client:
            made = client.ask(CreateTopicsRequest(topics=topics, timeout_ms=30_000), CreateTopicsResponse, 7).topics
        return [(each.error_code, each.error_message) for each in made]

    assert create(real_kafka.bootstrap_servers) == [(0, None), (0, None)]
    collides = f"Topic '{run}_request' collides with existing topic: {run}.request"
    assert create(own.bootstrap_servers) == [(0, None), (17, collides)]
