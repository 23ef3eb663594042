"""Clients whose configs an operator can change while they run (KIP-649).

::

    producer = klamm.clients.KafkaProducer(bootstrap_servers="localhost:9092", acks=1, enable_idempotence=False)

is kafka-python's ``KafkaProducer`` with two more arguments: ``enable_dynamic_config`` (default True) and
``on_dynamic_config_change``, which is called with a ``ConfigUpdate`` after each change. ``KafkaConsumer`` is the same
for consumers in a group. With a broker that does not announce the feature ``client.configs`` both behave exactly like
kafka-python's clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.clients.dynamic_config import ConfigChange, ConfigUpdate

if TYPE_CHECKING:
    from klamm.clients.kafka_python import KafkaConsumer, KafkaProducer

__all__ = ["ConfigChange", "ConfigUpdate", "KafkaConsumer", "KafkaProducer"]


def __getattr__(name: str) -> object:
    """Import the clients on first use: other modules of this package do not need kafka-python."""
    if name == "KafkaConsumer":
        from klamm.clients.kafka_python import KafkaConsumer  # noqa: PLC0415 - see above

        return KafkaConsumer
    if name == "KafkaProducer":
        from klamm.clients.kafka_python import KafkaProducer  # noqa: PLC0415 - see above

        return KafkaProducer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
