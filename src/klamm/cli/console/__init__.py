"""Parts of ``klamm produce`` and ``klamm consume``, the counterparts of Kafka's console producer and consumer."""
