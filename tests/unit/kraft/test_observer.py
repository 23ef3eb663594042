"""Observer of the metadata log without a cluster: which images it publishes."""

from __future__ import annotations

from contextlib import closing
from itertools import chain, repeat
from queue import Queue
from typing import TYPE_CHECKING
from unittest.mock import Mock
from uuid import UUID

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kraft import observer as observers
from klamm.kraft.observer import MetadataObserver
from klamm.protocol.messages.fetch import FetchResponse
from klamm.protocol.messages.fetch_snapshot import FetchSnapshotResponse
from klamm.protocol.messages.metadata_records import RemoveTopicRecord, TopicRecord
from tests.support.metadata_log import control_batch, log_batch

if TYPE_CHECKING:
    import pytest

    from klamm.kraft.image import ClusterImage

Data = FetchResponse.PartitionData
GONE, KEPT = UUID(int=3), UUID(int=4)


def response(partition: Data) -> FetchResponse:
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=[partition])])


def test_first_published_image_is_not_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot holds a topic that a later record removes: nobody is shown it."""
    # given
    snapshot = log_batch(0, TopicRecord(name="gone", topic_id=GONE)) + control_batch(1)
    piece = FetchSnapshotResponse.PartitionSnapshot(unaligned_records=snapshot, size=len(snapshot))
    responses = chain(
        [
            response(Data(snapshot_id=FetchResponse.SnapshotId(end_offset=100, epoch=1), high_watermark=102)),
            FetchSnapshotResponse(topics=[FetchSnapshotResponse.TopicSnapshot(partitions=[piece])]),
            response(Data(records=log_batch(100, RemoveTopicRecord(topic_id=GONE)), high_watermark=102)),
            response(Data(records=log_batch(101, TopicRecord(name="kept", topic_id=KEPT)), high_watermark=102)),
        ],
        repeat(response(Data(high_watermark=102))),
    )
    monkeypatch.setattr(observers, "ControllerChannel", lambda _: Mock(call=lambda *_: next(responses)))
    observer = MetadataObserver(ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="klamm"))
    published: Queue[ClusterImage] = Queue()
    observer.subscribe(published.put)
    # when
    with closing(observer):
        observer.start()
        first = observer.wait_for(lambda _: True, 60)
    # then
    assert set(first.topic_ids) == {"kept"}
    assert published.get_nowait() is first
