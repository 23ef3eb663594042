"""One process that presents three broker ids: clients find each partition on the port of its leader."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.families import AIOKAFKA, CONFLUENT_KAFKA, JAVA, KAFKA_PYTHON
from tests.support.klamm import KlammBroker
from tests.support.long_tests import long_only
from tests.support.processes import wait_until
from tests.support.wire import RejectedError, WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.families import Family

_COUNT = 3_000
_PATIENCE_S = 60.0
_NOT_LEADER_OR_FOLLOWER = 6


@pytest.fixture(scope="module")
def three() -> Iterator[KlammBroker]:
    """Three broker ids on three ports."""
    with KlammBroker({"group.initial.rebalance.delay.ms": "0"}, brokers=3) as broker:
        yield broker


@pytest.mark.parametrize(
    "family", [CONFLUENT_KAFKA, AIOKAFKA, *long_only(KAFKA_PYTHON, JAVA)], ids=lambda family: family.name, indirect=True
)
def test_client_reaches_leaders_on_all_ports(three: KlammBroker, family: Family) -> None:
    # given
    topic = f"spread-{uuid.uuid4().hex[:8]}"
    first_port = three.bootstrap_servers.split(",")[0]
    with contextlib.closing(family.admin(first_port)) as admin:
        admin.create_topic(topic, partitions=3, configs={})
    with contextlib.ExitStack() as ending:
        # when
        producer = family.producer(first_port, topic, count=_COUNT, records_per_s=_COUNT)
        ending.callback(producer.stop)
        producer.join(_PATIENCE_S)
        member = family.consumer(first_port, topic, f"{topic}-readers")
        ending.callback(member.stop)
        wait_until(
            lambda: len(member.delivered) >= _COUNT, timeout_s=_PATIENCE_S, what="every record", alive=member.check
        )
    # then
    assert producer.failures == []
    assert sorted(delivery.value for delivery in member.delivered) == list(range(_COUNT))
    assert {delivery.partition for delivery in member.delivered} == {0, 1, 2}


def test_each_partition_is_served_by_its_leader_only(three: KlammBroker) -> None:
    # given
    addresses = three.bootstrap_servers.split(",")
    topic = f"led-{uuid.uuid4().hex[:8]}"
    with WireClient(addresses[0]) as client:
        client.create_topic(topic, partitions=3)
    # when every partition is asked for on every port
    serving: list[str] = []
    rejected: list[int] = []
    for address in addresses:
        with WireClient(address) as client:
            for partition in range(3):
                try:
                    client.fetch(topic, partition, 0)
                    serving.append(address)
                except RejectedError as error:
                    rejected.append(error.error_code)
    # then
    assert sorted(serving) == sorted(addresses)
    assert rejected == [_NOT_LEADER_OR_FOLLOWER] * 6
