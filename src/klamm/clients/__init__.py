"""Clients whose configs an operator can change while they run (KIP-649).

::

    producer = klamm.clients.KafkaProducer(bootstrap_servers="localhost:9092", acks=1, enable_idempotence=False)

is kafka-python's ``KafkaProducer`` with two more arguments: ``enable_dynamic_config`` (default True) and
``on_dynamic_config_change``, which is called with a ``ConfigUpdate`` after each change. ``KafkaConsumer`` is the same
for consumers in a group. With a broker that does not announce the feature ``client.configs`` both behave exactly like
kafka-python's clients.
"""

from klamm.clients.dynamic_config import ConfigChange, ConfigUpdate
from klamm.clients.kafka_python_consumer import KafkaConsumer
from klamm.clients.kafka_python_producer import KafkaProducer

__all__ = ["ConfigChange", "ConfigUpdate", "KafkaConsumer", "KafkaProducer"]
