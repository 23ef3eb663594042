"""Requests of hostile users: each is rejected or completed as a whole."""

from __future__ import annotations

import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.records import Record, encode_batch
from tests.support.klamm import KlammBroker
from tests.support.processes import wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TOPICS = 3_000
PARTITIONS = 2
SET = 0


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    with KlammBroker() as running:
        yield running


def create(names: Sequence[str]) -> CreateTopicsRequest:
    spec = CreateTopicsRequest.CreatableTopic
    topics = [
        spec(name=name, num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[]) for name in names
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=60_000)


def alter(client: WireClient, topic: str, configs: Sequence[tuple[str, str]]) -> tuple[int, str]:
    kind = IncrementalAlterConfigsRequest
    resource = kind.AlterConfigsResource(
        resource_type=2,
        resource_name=topic,
        configs=[kind.AlterableConfig(name=name, config_operation=SET, value=value) for name, value in configs],
    )
    (answer,) = client.ask(kind(resources=[resource]), IncrementalAlterConfigsResponse, 1).responses
    return answer.error_code, answer.error_message or ""


def test_invalid_topic_names_create_nothing(broker: KlammBroker) -> None:
    names = ["a\0b", "\0", "..", "a/b", "../x", "a" * 250, "\u00e9", ""]
    with WireClient(broker.bootstrap_servers, timeout_s=60) as client:
        before = client.topic_ids()  # of other tests, in whichever order they run
        answers = client.ask(create(names), CreateTopicsResponse, 7).topics
        assert [answer.error_code for answer in answers] == [17] * len(names)
        assert client.topic_ids() == before


def test_oversized_config_changes_leave_topic_unchanged(broker: KlammBroker) -> None:
    with WireClient(broker.bootstrap_servers, timeout_s=60) as client:
        client.create_topic("target")
        before = client.topic_configs("target")
        for configs in (
            [(f"no.such.config.{number}", "1") for number in range(10_000)],
            [("flush.ms", "1")] * 10_000,
            [("flush.ms", "1"), ("retention.ms", "9" * 1_000_000)],
            [("flush.ms", "1"), ("k" * 32_767, "1")],
            [("flush.ms", "1"), ("cleanup.policy", "del\0ete")],
        ):
            code, message = alter(client, "target", configs)
            assert code in {40, 42}
            assert len(message) <= 8_000
        assert client.topic_configs("target") == before


def test_second_broker_on_the_same_data_directory_is_rejected(broker: KlammBroker) -> None:
    second = KlammBroker(data_dir=broker.data_dir)
    ended = subprocess.run(
        [str(part) for part in second.command()], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1
    assert f"in use by process {broker.pid}" in ended.stderr
    with WireClient(broker.bootstrap_servers, timeout_s=60) as client:
        client.create_topic("still-here")


@pytest.mark.long
def test_sigterm_amid_thousands_of_creations_leaves_whole_topics() -> None:
    names = [f"t-{number}" for number in range(TOPICS)]
    answered: list[bool] = []

    def ask(address: str) -> None:
        try:
            with WireClient(address, timeout_s=120) as client:
                answered.append(bool(client.ask(create(names), CreateTopicsResponse, 7)))
        except OSError:
            answered.append(False)

    with KlammBroker() as broker:
        asking = threading.Thread(target=ask, args=(broker.bootstrap_servers,))
        asking.start()
        with WireClient(broker.bootstrap_servers, timeout_s=60) as client:
            wait_until(lambda: bool(client.topic_ids()), timeout_s=60, what="the first topic")
        assert broker.stop() == 0
        asking.join(120)
        broker.start()
        batch = encode_batch([Record(None, b"v", (), int(time.time() * 1000))])
        with WireClient(broker.bootstrap_servers, timeout_s=60) as client:
            there = client.topic_ids()
            assert there
            if answered == [True]:
                assert set(there) == set(names)
            for name in sorted(there)[:: max(1, len(there) // 20)]:
                for partition in range(PARTITIONS):
                    assert client.produce(name, partition, batch) == 0
