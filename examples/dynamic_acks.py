"""A producer whose acks an operator changes while it runs (KIP-649)."""

from __future__ import annotations

from queue import Queue

import klamm
from klamm.admin import AdminClient, ClientConfigEntity, ClientConfigOp
from klamm.clients import ConfigUpdate, KafkaProducer

with klamm.Broker() as broker:
    updates: Queue[ConfigUpdate] = Queue()
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        client_id="billing",
        acks=1,
        enable_idempotence=False,
        metadata_max_age_ms=500,  # how often it asks
        on_dynamic_config_change=updates.put,
    )
    producer.send("invoices", b"1").get(timeout=10)

    with AdminClient(broker.bootstrap_servers) as admin:
        billing = ClientConfigEntity.of_client("ANONYMOUS", "billing")
        admin.alter_client_configs({billing: [ClientConfigOp("acks", "all")]}).all().result()

    for change in updates.get(timeout=10).changes:
        print(f"{change.name}: {change.old} -> {change.new}")
    producer.send("invoices", b"2").get(timeout=10)
    producer.close()
