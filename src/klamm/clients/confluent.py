"""confluent-kafka's clients with configs that an operator can change while they run (KIP-649).

``klamm.clients.confluent.Producer`` and ``Consumer`` replace the classes of ``confluent_kafka``. They need
``pip install klamm[confluent]``. librdkafka fixes its configs when a client is created, so each change replaces one
librdkafka client with another.
"""

from klamm.clients.dynamic_config import ConfigChange, ConfigUpdate
from klamm.extras import require_extra

try:
    from klamm.clients.confluent_consumer import Consumer
    from klamm.clients.confluent_producer import Producer
except ModuleNotFoundError:
    require_extra("confluent", feature="klamm.clients.confluent")
    raise

__all__ = ["ConfigChange", "ConfigUpdate", "Consumer", "Producer"]
