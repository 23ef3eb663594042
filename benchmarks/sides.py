"""The two brokers under measurement, started as their users start them."""

from __future__ import annotations

from typing import Final

from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker

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


def apache_kafka(**properties: str) -> KafkaCluster:
    """Return one node of Apache Kafka with the JVM options and heap it ships with.

    Args:
        **properties: Broker settings, dots written as underscores.
    """
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return KafkaCluster(1, named, heap="1G", jvm_options=_SHIPPED_JVM)


def klamm_broker() -> KlammBroker:
    """Return a klamm broker with its defaults."""
    return KlammBroker()
