"""The broker that is crashed: klamm, or with ``--against-kafka`` the real thing, which must pass the same tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.probe import Cluster


@pytest.fixture
def crashing(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A broker of its own for each test."""
    if request.config.getoption("against_kafka"):
        request.getfixturevalue("java")
    with KafkaCluster() if request.config.getoption("against_kafka") else KlammBroker() as broker:
        yield broker
        if request.session.testsfailed:
            broker.keep_logs()
