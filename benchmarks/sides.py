"""The two brokers under measurement, started as their users start them."""

from __future__ import annotations

import atexit
import functools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.measure import alternate
from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker
from tests.support.wheel import install_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.measure import Measurement, Plan
    from tests.support.probe import Cluster

# What Kafka's own start scripts pass to the JVM.
_SHIPPED_JVM: Final = (
    "-server",
    "-Xms1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


def apache_kafka(properties: Mapping[str, str] | None = None, *, with_logins: bool = False) -> KafkaCluster:
    """Return one node of Apache Kafka with the JVM options and heap it ships with.

    Args:
        properties: Broker settings.
        with_logins: whether it has a second listener.
    """
    return KafkaCluster(1, properties or {}, with_logins=with_logins, heap="1G", jvm_options=_SHIPPED_JVM)


def klamm_broker() -> KlammBroker:
    """Return a klamm broker with its defaults."""
    return KlammBroker()


def on_both(
    measure: Callable[[Cluster], Mapping[str, float]], *, benchmark: str, plan: Plan, rounds: int
) -> Iterator[Measurement]:
    """Measure klamm and Apache Kafka as shipped, each with a cluster of its own per round."""

    def with_klamm() -> Mapping[str, float]:
        with klamm_broker() as broker:
            return measure(broker)

    def with_kafka() -> Mapping[str, float]:
        with apache_kafka() as cluster:
            return measure(cluster)

    yield from alternate(
        {"klamm": with_klamm, "Apache Kafka": with_kafka}, benchmark=benchmark, plan=plan, rounds=rounds
    )


@functools.cache
def with_wheel() -> Mapping[str, str]:
    """Return the environment in which Python imports klamm from its wheel, with compiled record modules."""
    folder = tempfile.TemporaryDirectory(prefix="klamm-bench-wheel-")
    atexit.register(folder.cleanup)
    return {**os.environ, "PYTHONPATH": str(install_wheel(Path(folder.name)))}
