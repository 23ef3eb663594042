"""Requests with many markers."""

from __future__ import annotations

import pytest

from klamm.mirror.replay.producer import markers_body
from klamm.protocol.codec import encode
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest


def marker(producer_id: int) -> WriteTxnMarkersRequest.WritableTxnMarker:
    topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="A.t", partition_indexes=[3])
    return WriteTxnMarkersRequest.WritableTxnMarker(producer_id=producer_id, producer_epoch=7, topics=[topic])


@pytest.mark.parametrize("version", range(WriteTxnMarkersRequest.VERSIONS[0], WriteTxnMarkersRequest.VERSIONS[1] + 1))
def test_repeated_markers_are_encoded_as_entries_of_their_own(version: int) -> None:
    first, second = marker(1), marker(2)

    body = markers_body(version, [(first, 200), (second, 1)])

    assert body == encode(WriteTxnMarkersRequest(markers=[*[first] * 200, second]), version)
