"""Requests to a node of Kafka whose classes become a class archive: those that most tests send."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer

from klamm.protocol.records import Codec, Record, encode_batch
from tests.support.mirror import create_topic
from tests.support.wire import WireClient

_TOPIC = "training"
_TIMEOUT_S = 60


def send_usual_requests(address: str) -> None:
    """Write with each codec and in a transaction, and read as a group. A class that this loads starts faster later."""
    create_topic(address, _TOPIC, 1, {"retention.ms": "-1"})
    with WireClient(address, timeout_s=_TIMEOUT_S) as client:
        for codec in Codec:
            client.produce(_TOPIC, 0, encode_batch([Record(b"k", b"v" * 100, (), 0, 0)], codec=codec))
    common = {"bootstrap.servers": address, "log_level": 0}
    producer = Producer({**common, "transactional.id": _TOPIC, "linger.ms": 0})
    producer.init_transactions(_TIMEOUT_S)
    consumer = Consumer({**common, "group.id": _TOPIC, "auto.offset.reset": "earliest"})
    consumer.subscribe([_TOPIC])
    for end_transaction in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(_TOPIC, b"v")
        end_transaction(_TIMEOUT_S)
    consumer.consume(num_messages=len(Codec) + 1, timeout=_TIMEOUT_S)
    consumer.commit(asynchronous=False)
    consumer.close()
    with WireClient(address, timeout_s=_TIMEOUT_S) as client:
        client.delete_topic(_TOPIC)
