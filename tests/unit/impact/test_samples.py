"""Facts read from record batches."""

from __future__ import annotations

from klamm.impact.samples import batch_facts
from klamm.protocol.records import Record, encode_batch

AT_MS = 1_600_000_000_000


def _batch(offset: int, *, is_control: bool = False) -> bytearray:
    record = Record(b"\x00\x00\x00\x01", b"v", (), AT_MS, offset)
    if not is_control:
        return encode_batch([record])
    return encode_batch([record], producer_id=1, producer_epoch=0, is_transactional=True, is_control=True)


def test_sample_reaches_behind_the_markers_that_follow_its_last_batch() -> None:
    first, last = batch_facts(_batch(4) + _batch(5) + _batch(6, is_control=True) + _batch(7, is_control=True))

    assert (first.next_offset, last.next_offset) == (5, 8)


def test_damaged_batch_ends_the_sample_before_it() -> None:
    damaged = _batch(5)
    damaged[-1] ^= 1

    (only,) = batch_facts(_batch(4) + damaged + _batch(6))

    assert only.next_offset == 5
