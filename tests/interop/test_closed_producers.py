"""Producers that close their connection while the broker still has requests of theirs to process."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from klamm import Broker
from klamm.admin import AdminClient, NewTopic, OffsetSpec, TopicPartition
from klamm.protocol.messages.produce import ProduceRequest
from tests.support.logs import batch
from tests.support.processes import wait_until
from tests.support.security import Certificates
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS = 50


def produce(topic: str, number: int) -> bytes:
    data = ProduceRequest.PartitionProduceData(index=0, records=batch(str(number)))
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    request = ProduceRequest(transactional_id=None, acks=0, timeout_ms=10_000, topic_data=topics)
    return request_frame(request, 9, correlation_id=number)


@pytest.mark.parametrize("control", [False, True], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_records_with_acks_0_are_appended_although_the_producer_closes_at_once(
    protocol: str, control: bool, tmp_path: Path
) -> None:
    # given
    certificates = Certificates.create(tmp_path)
    config = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificates.issue("broker", "/CN=broker"))}
    with (
        Broker(listen=f"{protocol}://127.0.0.1:0", config=config, control=control) as broker,
        AdminClient(
            broker.bootstrap_servers, security_protocol=protocol, ssl_cafile=str(certificates.authority)
        ) as admin,
    ):
        admin.create_topics([NewTopic(name="t", num_partitions=1, replication_factor=1)]).all().result()
        host, _, port = broker.bootstrap_servers.rpartition(":")
        # when
        with contextlib.ExitStack() as stack:
            producer = stack.enter_context(socket.create_connection((host, int(port))))
            if protocol == "SSL":
                context = ssl.create_default_context(cafile=certificates.authority)
                producer = stack.enter_context(context.wrap_socket(producer, server_hostname=host))
            producer.sendall(b"".join(produce("t", number) for number in range(REQUESTS)))
        # then
        wait_until(lambda: end_offset(admin) == REQUESTS, timeout_s=20, what="all records in the log")


def end_offset(admin: AdminClient) -> int:
    partition = TopicPartition("t", 0)
    return admin.list_offsets({partition: OffsetSpec.LATEST}).result(300)[partition].offset
