"""A rejected login or a denied write ends a task at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

import klamm
from klamm.dataframes.errors import ReadingError, WritingError
from klamm.dataframes.options import read_options, write_options
from klamm.dataframes.positions import OffsetRange
from klamm.dataframes.reader import TopicReader
from klamm.dataframes.rows import rows_of
from klamm.dataframes.writer import RecordWriter, TargetCluster
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.init_producer_id import InitProducerIdResponse
from tests.support.mirror import create_topic
from tests.support.security import PLAIN_MODULE, sasl_settings
from tests.support.stub_broker import StubBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

REJECTED = "^[^ ]*( ?)No broker of .* responds: .* Invalid username or password"
"""Not the message after ``delivery.timeout.ms`` or ``default.api.timeout.ms``, which repeat what can be repeated."""


@pytest.fixture(scope="module")
def login() -> Iterator[dict[str, str]]:
    """Options with a wrong password."""
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=sasl_settings()) as broker:
        yield {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": f'{PLAIN_MODULE} required username="alice" password="wrong";',
            "kafka.delivery.timeout.ms": "20000",
            "kafka.default.api.timeout.ms": "20000",
        }


def test_writer_does_not_retry_a_rejected_login(login: dict[str, str]) -> None:
    target = TargetCluster(write_options(login, streaming=False, overwrite=False))
    with pytest.raises(WritingError, match=REJECTED):
        target.partitions("t")
    target.close()


def test_reader_does_not_retry_a_rejected_login(login: dict[str, str]) -> None:
    reader = TopicReader(read_options(login | {"subscribe": "t"}, streaming=False))
    with pytest.raises(ReadingError, match=REJECTED):
        list(reader.read(OffsetRange(topic="t", partition=0, start=0, end=9)))
    reader.close()


def test_writer_does_not_retry_a_denied_write() -> None:
    denied = InitProducerIdResponse(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    with StubBroker(topic="t", versions={22: (0, 4)}) as broker:
        broker.answer(22, lambda _: denied)
        properties = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "topic": "t",
            "kafka.delivery.timeout.ms": "20000",
        }
        options = write_options(properties, streaming=False, overwrite=False)
        target = TargetCluster(options)
        writer = RecordWriter(target, options)
        writer.write(rows_of(pa.RecordBatch.from_pydict({"value": [b"v"]}), "t"))
        with pytest.raises(WritingError, match=r"^InitProducerId: CLUSTER_AUTHORIZATION_FAILED: the principal may"):
            writer.flush()
        target.close()
        assert len(broker.requests(22)) == 1


def test_record_above_socket_request_max_bytes_fails_at_once() -> None:
    with klamm.Broker(config={"socket.request.max.bytes": "2000000"}) as broker:
        create_topic(broker.bootstrap_servers, "t", 1, {"max.message.bytes": "8000000"})
        properties = {"kafka.bootstrap.servers": broker.bootstrap_servers, "kafka.delivery.timeout.ms": "20000"}
        options = write_options(properties | {"topic": "t"}, streaming=False, overwrite=False)
        target = TargetCluster(options)
        writer = RecordWriter(target, options)
        writer.write(rows_of(pa.RecordBatch.from_pydict({"value": [b"small"]}), "t"))
        writer.flush()
        writer.write(rows_of(pa.RecordBatch.from_pydict({"value": [b"v" * 3_000_000, b"v"]}), "t"))
        with pytest.raises(WritingError, match=r"a record of 3,000,000 bytes exceeds .* socket.request.max.bytes"):
            writer.flush()
        target.close()
