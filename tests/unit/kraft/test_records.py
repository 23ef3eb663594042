"""Records of the metadata log."""

from __future__ import annotations

from uuid import UUID

import pytest

from klamm.kraft.errors import UnsupportedRecordError
from klamm.kraft.records import decode_record, read_batches
from klamm.protocol.errors import CorruptBatchError, ProtocolError
from klamm.protocol.messages.metadata_records import ClearElrRecord, FeatureLevelRecord, TopicRecord
from tests.support.metadata_log import control_batch, framed, log_batch

TOPIC = TopicRecord(name="t", topic_id=UUID(int=7))


def test_batches_hold_records_offsets_and_epochs() -> None:
    # when
    batches = list(read_batches(log_batch(3, TOPIC, TOPIC, epoch=5) + control_batch(5, epoch=6)))
    # then
    assert [(batch.last_offset, batch.epoch, batch.records) for batch in batches] == [
        (4, 5, [TOPIC, TOPIC]),
        (5, 6, []),
    ]


def test_truncated_last_batch_is_skipped() -> None:
    assert [batch.last_offset for batch in read_batches(log_batch(0, TOPIC) + log_batch(1, TOPIC)[:-1])] == [0]


def test_record_that_clears_eligible_leader_replicas_is_read() -> None:
    assert decode_record(bytes([1, 28, 0, 2]) + b"t" + bytes(1)) == ClearElrRecord(topic_name="t")


def test_record_of_an_unread_type_is_skipped() -> None:
    assert decode_record(bytes([1, 20, 0, 0])) is None  # NoOpRecord


def test_record_in_a_newer_version_is_rejected_by_name() -> None:
    value = bytearray(framed(FeatureLevelRecord(name="metadata.version", feature_level=40)))
    value[2] = 1
    with pytest.raises(UnsupportedRecordError, match=r"FeatureLevelRecord v1, but .* up to v0: .*upgrade klamm"):
        decode_record(bytes(value))


def test_unknown_frame_version_is_rejected() -> None:
    with pytest.raises(ProtocolError, match="frame version 2, expected 1"):
        decode_record(bytes([2, 0, 0]))


def test_wrong_checksum_is_rejected() -> None:
    batch = bytearray(log_batch(8, TOPIC))
    batch[-2] ^= 1
    with pytest.raises(CorruptBatchError, match="wrong checksum of the batch at offset 8"):
        list(read_batches(batch))
