"""Data connections of our own to any Kafka: blocking sockets driven by one selector, batches without copies."""
