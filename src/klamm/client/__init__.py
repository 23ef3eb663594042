"""Kafka client of the data path: non-blocking sockets driven by one selector, record batches without copies."""
