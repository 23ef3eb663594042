"""Three unmodified client families on a broker that fails once in each API that they use."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.families import AIOKAFKA, CONFLUENT_KAFKA, KAFKA_PYTHON
from tests.support.long_tests import long_only
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm import Broker
    from klamm.embedded.controls import BrokerFault
    from tests.support.families import Family

# The libraries leave the sockets of a dropped connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

COUNT: Final = 500
PATIENCE_S: Final = 30.0
RETRIABLE: Final = {
    "Metadata": "LEADER_NOT_AVAILABLE",
    "Produce": "NOT_LEADER_OR_FOLLOWER",
    "Fetch": "NOT_LEADER_OR_FOLLOWER",
    "ListOffsets": "LEADER_NOT_AVAILABLE",
    "FindCoordinator": "COORDINATOR_NOT_AVAILABLE",
    "JoinGroup": "COORDINATOR_LOAD_IN_PROGRESS",
    "SyncGroup": "REBALANCE_IN_PROGRESS",
    "Heartbeat": "REBALANCE_IN_PROGRESS",
    "OffsetFetch": "NOT_COORDINATOR",
}
"""An error of each API that its clients have to survive."""
REPORTED: Final = {"confluent-kafka": {"OffsetFetch"}}
"""APIs whose error a family reports to the application, which has to poll again."""


@pytest.fixture(autouse=True)
def _sockets_collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(params=[CONFLUENT_KAFKA, *long_only(KAFKA_PYTHON, AIOKAFKA)], ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    chosen: Family = request.param
    return chosen


def stream(broker: Broker, family: Family, topic: str, faults: list[BrokerFault]) -> list[tuple[int, int]]:
    """Send numbers through a topic until all have arrived and all faults have occurred; return partition and value."""
    with contextlib.ExitStack() as ending:
        member = family.consumer(broker.bootstrap_servers, topic, topic)
        ending.callback(member.stop)
        producer = family.producer(broker.bootstrap_servers, topic, count=COUNT, records_per_s=1_000)
        ending.callback(producer.stop)
        wait_until(
            lambda: (
                len({message.value for message in member.delivered}) == COUNT and all(fault.count for fault in faults)
            ),
            timeout_s=PATIENCE_S,
            what=f"{COUNT} records and {len(faults)} faults",
            alive=member.check,
        )
        producer.join(PATIENCE_S)
    assert producer.failures == []
    return [(message.partition, message.value) for message in member.delivered]


def test_every_record_arrives_after_one_error_per_api(
    klamm_session_broker: Broker, make_klamm_topic: Callable[..., str], family: Family
) -> None:
    # given
    broker = klamm_session_broker
    topic = make_klamm_topic(partitions=3)
    left_out = REPORTED.get(family.name, set())
    faults = [broker.inject(api, error=error) for api, error in RETRIABLE.items() if api not in left_out]
    # when
    delivered = stream(broker, family, topic, faults)
    # then
    assert sorted({value for _, value in delivered}) == list(range(COUNT))


def test_every_record_arrives_despite_dropped_connections(
    klamm_session_broker: Broker, make_klamm_topic: Callable[..., str], family: Family
) -> None:
    # given
    broker = klamm_session_broker
    topic = make_klamm_topic(partitions=3)
    faults = [broker.inject(api, drop_connection=True) for api in ("FindCoordinator", "JoinGroup", "Fetch")]
    faults += [broker.inject("Fetch", drop_connection=True, after_serving=True, topic=topic)]
    faults += [broker.inject("Produce", drop_connection=True, topic=topic)]
    # when
    delivered = stream(broker, family, topic, faults)
    # then
    assert sorted({value for _, value in delivered}) == list(range(COUNT))
