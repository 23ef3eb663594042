"""Tasks that write with exactly-once delivery, without a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark import TaskContext

import klamm
from klamm.dataframes import writer as writing
from klamm.dataframes.options import read_options, write_options
from klamm.dataframes.positions import LATEST
from klamm.dataframes.reader import TopicReader
from klamm.dataframes.spark.sink import KafkaStreamWriter
from tests.support.mirror import create_topic
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class UpstreamError(Exception):
    """Failure of the query after some of its rows."""


def failing_rows() -> Iterator[Any]:
    yield pa.RecordBatch.from_pydict({"value": [b"v"]})
    raise UpstreamError


@pytest.mark.process
def test_failed_task_aborts_its_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", Mock(partitionId=lambda: 0, getLocalProperty=lambda _: "1"))
    monkeypatch.setattr(writing, "_HELD_BYTES", 0)
    with klamm.Broker() as broker:
        # given
        create_topic(broker.bootstrap_servers, "t", 1)
        servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        committed = {"subscribe": "t", "kafka.isolation.level": "read_committed"}
        reader = TopicReader(read_options(servers | committed, streaming=False))
        # when
        with pytest.raises(UpstreamError):
            KafkaStreamWriter(write_options(servers | {"topic": "t"}, streaming=True, overwrite=False)).write(
                failing_rows()
            )
        # then
        wait_until(
            lambda: reader.offsets(reader.partitions(), LATEST) == {("t", 0): 2}, timeout_s=30, what="the abort marker"
        )
        reader.close()
