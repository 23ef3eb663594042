"""From the start of the process to the first answered request, and the memory at rest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds, pss_mebibytes, wait_for
from benchmarks.sides import apache_kafka, klamm_broker
from tests.support.kafka import KafkaCluster
from tests.support.probe import broker_count_of
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.klamm import KlammBroker

_BENCHMARK: Final = "start and rest"
_REST_S: Final = 5.0
_TIMEOUT_S: Final = 60.0


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure klamm and Apache Kafka; both restart on a directory that holds one topic."""
    sides = {"klamm": lambda: _measure(klamm_broker()), "Apache Kafka": lambda: _measure(apache_kafka())}
    yield from alternate(sides, benchmark=_BENCHMARK, plan=plan, rounds=plan.rounds(7, quick=2))


def _measure(broker: KlammBroker | KafkaCluster) -> Mapping[str, float]:
    with broker:
        with WireClient(broker.bootstrap_servers) as client:
            client.create_topic("at-rest", partitions=3)
        stop, launch = _switches(broker)
        stop()
        host, _, port = broker.bootstrap_servers.rpartition(":")
        began = time.monotonic()
        launch()
        wait_for(
            lambda: broker_count_of(host, int(port)) > 0,
            timeout_s=_TIMEOUT_S,
            what=f"an answer from {broker.bootstrap_servers}",
            interval_s=0.002,
        )
        answered = time.monotonic()
        spent = cpu_seconds(broker.pids)
        time.sleep(_REST_S)
        return {"start s": answered - began, "start CPU s": spent, "PSS MiB": pss_mebibytes(broker.pids)}


def _switches(broker: KlammBroker | KafkaCluster) -> tuple[Callable[[], object], Callable[[], None]]:
    node = broker.nodes[1] if isinstance(broker, KafkaCluster) else broker
    return node.stop, node.launch
