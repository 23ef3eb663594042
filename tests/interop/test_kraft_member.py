"""Membership in a real KRaft cluster: images of its metadata, and a broker without storage."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from klamm.admin import AdminClient, NewPartitions, NewTopic
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.login import open_connection
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kraft.controllers import find_controllers
from klamm.kraft.observer import MetadataObserver
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.support.kafka import KafkaCluster
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.kraft.image import ClusterImage


def connection(cluster: KafkaCluster, *, to_brokers: bool = False) -> ConnectionSettings:
    servers = cluster.bootstrap_servers if to_brokers else cluster.bootstrap_controllers
    return ConnectionSettings(bootstrap_servers=tuple(servers.split(",")), client_id="klamm-test")


@contextmanager
def observing(cluster: KafkaCluster) -> Iterator[MetadataObserver]:
    observer = MetadataObserver(connection(cluster), cluster_id=cluster.cluster_id)
    observer.start()
    try:
        yield observer
    finally:
        observer.close()


def assert_equals_admin(image: ClusterImage, cluster: KafkaCluster) -> None:
    """Compare an image with the answers of a broker."""
    with AdminClient(cluster.bootstrap_servers) as admin:
        wait_until(  # a broker may be later than the observer
            lambda: set(admin.list_topics(include_internal=True).result()) == set(image.topic_ids),
            timeout_s=10,
            what="the broker to replay the metadata",
        )
        for name, topic in admin.describe_topics(sorted(image.topic_ids)).all().result().items():
            mine = image.topic(name)
            assert mine is not None
            assert mine.topic_id == topic.topic_id
            assert [
                (index, partition.leader, partition.leader_epoch, partition.replicas, partition.isr)
                for index, partition in sorted(mine.partitions.items())
            ] == [(p.partition, p.leader, p.leader_epoch, p.replicas, p.isr) for p in topic.partitions]
        described = admin.describe_cluster().result()
        endpoints = {
            (node_id, endpoint.host, endpoint.port)
            for node_id, broker in image.brokers.items()
            for endpoint in broker.endpoints
            if endpoint.name == "PLAINTEXT" and not broker.is_fenced
        }
        assert endpoints == {(node.id, node.host, node.port) for node in described.nodes}
    node = cluster.nodes[1]
    broker = open_connection(node.host, node.port, connection(cluster), BufferPool(max_free_bytes=0))
    request = ApiVersionsRequest(client_software_name="klamm", client_software_version="1")
    response = broker.call(request, ApiVersionsResponse, version=4, timeout_s=10)
    broker.close()
    finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
    assert image.features == {name: level for name, level in finalized.items() if level and name != "kraft.version"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """One node with a cluster of its own: tests here register a broker, and write snapshots of the metadata."""
    with KafkaCluster(properties={"metadata.log.max.record.bytes.between.snapshots": "100"}) as running:
        yield running


def test_brokers_name_the_controllers(cluster: KafkaCluster) -> None:
    assert find_controllers(connection(cluster, to_brokers=True)) == (cluster.bootstrap_controllers,)


def test_image_equals_the_answers_of_a_broker_while_topics_change(cluster: KafkaCluster) -> None:
    with observing(cluster) as observer, AdminClient(cluster.bootstrap_servers) as admin:
        observer.wait_until_caught_up(10)
        # when
        topics = [NewTopic(name=f"observed-{number}", num_partitions=number) for number in (1, 3)]
        admin.create_topics(topics).all().result()
        observer.wait_for(lambda image: image.topic("observed-3") is not None, 10)
        admin.alter_topic_configs("observed-3", set={"retention.ms": "60000"}).result()
        admin.create_partitions({"observed-3": NewPartitions(total_count=5)}).all().result()
        admin.delete_topics(["observed-1"]).all().result()
        # then
        image = observer.wait_for(lambda image: image.topic("observed-1") is None, 10)
        assert_equals_admin(image, cluster)
        assert image.configs[2, "observed-3"] == {"retention.ms": "60000"}


def test_image_of_a_snapshot_equals_the_answers_of_a_broker(cluster: KafkaCluster) -> None:
    """A node whose log starts at a snapshot: its older records are gone."""
    # given
    node = cluster.nodes[1]
    log = node.directory / "data" / "__cluster_metadata-0"
    with AdminClient(cluster.bootstrap_servers) as admin, observing(cluster) as observer:
        admin.create_topics([NewTopic(name="in-snapshot", num_partitions=4)]).all().result()
        offset = observer.wait_for(lambda image: image.topic("in-snapshot") is not None, 10).offset
        admin.create_topics([NewTopic(name="another", num_partitions=4)]).all().result()
    wait_until(
        lambda: any(int(path.name.split("-")[0]) > offset for path in log.glob("*.checkpoint")),
        timeout_s=30,
        what="a snapshot of the metadata",
    )
    node.stop()
    for path in log.glob("0*.*"):
        if path.suffix != ".checkpoint":
            path.unlink()
    node.start()
    # when
    with observing(cluster) as observer:
        image = observer.wait_for(lambda image: 1 in image.brokers and not image.brokers[1].is_fenced, 10)
        # then
        assert image.topic("in-snapshot") is not None
        assert_equals_admin(image, cluster)
