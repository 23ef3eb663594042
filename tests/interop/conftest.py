"""The broker under test: klamm, or with ``--against-kafka`` the real thing, which must pass the same tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.families import FAMILIES, Family
from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.probe import Cluster


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


@pytest.fixture(scope="module", params=["kafka", "klamm"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """One cluster of each kind, which a mirror's tests take for source and target."""
    if request.param == "kafka":
        yield request.getfixturevalue("real_kafka").bootstrap_servers
        return
    with KlammBroker() as broker:
        yield broker.bootstrap_servers
