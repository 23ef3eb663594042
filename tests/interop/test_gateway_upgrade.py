"""A rolling upgrade of the upstream behind a gateway: clients continue, and see the new versions.

One node of the release before, and librdkafka; in ``make soak`` three nodes of an older release, and all families.
"""

from __future__ import annotations

import os
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.admin import AdminClient, NewTopic
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.support.families import CONFLUENT_KAFKA, FAMILIES
from tests.support.java import KAFKA_RELEASE, TOOLS_RELEASE
from tests.support.kafka import KafkaCluster
from tests.support.processes import wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.families.model import RunningConsumer, RunningProducer

IS_SOAK = bool(os.environ.get("KLAMM_SOAK"))
NODES, OLD = (3, "4.1.0") if IS_SOAK else (1, TOOLS_RELEASE)
_COUNT = 1200
_PATIENCE_S = 120.0
_TRIED = FAMILIES if IS_SOAK else (CONFLUENT_KAFKA,)

# The libraries leave the sockets of a broker that stopped to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


def offered(address: str) -> Mapping[int, tuple[int, int]]:
    with WireClient(address, timeout_s=60) as client:
        response = client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2)
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


@pytest.mark.long
def test_clients_continue_while_the_upstream_is_upgraded_node_by_node(java: None) -> None:
    producers: dict[str, RunningProducer] = {}
    consumers: dict[str, RunningConsumer] = {}
    with (
        KafkaCluster(NODES, release=OLD) as cluster,
        klamm.Gateway(cluster.bootstrap_servers) as gateway,
        ExitStack() as ending,
    ):
        address = gateway.bootstrap_servers
        topics = {family.name: f"upgraded-{uuid.uuid4().hex[:8]}" for family in _TRIED}
        with AdminClient(address) as admin:
            new = [NewTopic(name=topic, num_partitions=3, replication_factor=NODES) for topic in topics.values()]
            admin.create_topics(new).all().result(300)
        before = offered(address)
        for family in _TRIED:
            topic = topics[family.name]
            consumers[family.name] = family.consumer(address, topic, topic)
            ending.callback(consumers[family.name].stop)
            producers[family.name] = family.producer(address, topic, count=_COUNT, records_per_s=_COUNT // 6)
            ending.callback(producers[family.name].stop)
        for node_id in cluster.nodes:
            for name, producer in producers.items():
                wait_until(
                    lambda each=producer, least=node_id * _COUNT // 10: len(each.acknowledged) >= least,  # type: ignore[misc]
                    timeout_s=_PATIENCE_S,
                    what=f"records of {name} before node {node_id} is upgraded",
                    alive=producer.check,
                )
            cluster.upgrade(node_id, KAFKA_RELEASE)
        for producer in producers.values():
            producer.join(_PATIENCE_S)
        for name, consumer in consumers.items():
            wait_until(
                lambda each=consumer: {record.value for record in each.delivered} == set(range(_COUNT)),  # type: ignore[misc]
                timeout_s=_PATIENCE_S,
                what=f"every record of {name}",
                alive=consumer.check,
            )
        assert {name: producer.failures for name, producer in producers.items()} == {name: [] for name in producers}
        after = offered(address)
        assert after.keys() >= before.keys()
        assert after != before
