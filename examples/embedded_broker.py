"""A broker inside a program: no Java, no Docker, nothing left behind."""

from __future__ import annotations

from kafka import KafkaConsumer, KafkaProducer

import klamm

with klamm.Broker() as broker:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for number in range(3):
        producer.send("greetings", f"hello {number}".encode())
    producer.close()

    consumer = KafkaConsumer(
        "greetings",
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=5000,
    )
    for _, record in zip(range(3), consumer, strict=False):
        print(record.value.decode())
    consumer.close()
