"""The broker under test: klamm, or with ``--against-kafka`` the real thing, which must pass the same tests."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

import klamm
from tests.support.families import FAMILIES, Family
from tests.support.impact_cluster import FAST, ImpactCluster
from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker
from tests.support.long_tests import long_only

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.probe import Cluster


collect_ignore = [] if os.environ.get("KLAMM_SOAK") else ["test_impact_outages_soak.py"]


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A broker for one test module; tests may restart it."""
    against_kafka = request.config.getoption("against_kafka")
    if against_kafka:
        request.getfixturevalue("java")
    # The cluster of real Kafka is set so, too.
    release = request.config.getoption("kafka_release")
    ours = {"group.initial.rebalance.delay.ms": "0"}
    with KafkaCluster(release=release) if against_kafka else KlammBroker(ours) as broker:
        yield broker
        if request.session.testsfailed:
            broker.keep_logs()


@pytest.fixture(params=FAMILIES, ids=[family.name for family in FAMILIES])
def family(request: pytest.FixtureRequest) -> Family:
    """Each client family in turn."""
    chosen: Family = request.param
    if chosen.needs_java:
        request.getfixturevalue("java")
    return chosen


@pytest.fixture(scope="module", params=["klamm", *long_only("kafka")])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """One cluster of each kind, which a mirror's tests take for source and target."""
    if request.param == "kafka":
        yield request.getfixturevalue("real_kafka").bootstrap_servers
        return
    with KlammBroker({"log.cleaner.backoff.ms": "500"}) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def fast_kafka(request: pytest.FixtureRequest, java: None) -> Iterator[KafkaCluster]:
    """Apache Kafka whose background work is fast, of the release of ``--kafka-release``."""
    with KafkaCluster(properties=FAST, release=request.config.getoption("kafka_release")) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["klamm", *long_only("kafka", "gateway")])
def impact_cluster(request: pytest.FixtureRequest) -> Iterator[ImpactCluster]:
    """A cluster in which outages are rebuilt: Apache Kafka, the same through a gateway, and klamm."""
    with contextlib.ExitStack() as stack:
        if request.param == "klamm":
            servers = stack.enter_context(KlammBroker(FAST)).bootstrap_servers
        else:
            servers = request.getfixturevalue("fast_kafka").bootstrap_servers
        if request.param == "gateway":
            servers = stack.enter_context(klamm.Gateway(servers)).bootstrap_servers
        impact_cluster = ImpactCluster(servers)
        stack.callback(impact_cluster.admin.close)
        yield impact_cluster
