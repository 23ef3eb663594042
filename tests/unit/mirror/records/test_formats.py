from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.mirror.records.formats import Checkpoint, FormatError, Heartbeat, OffsetSync
from tests.support.damaged_records import EXAMPLES, damaged

INT64 = st.integers(0, 2**63 - 1)
INT32 = st.integers(0, 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


def test_heartbeat_matches_mirrormaker_bytes() -> None:
    """K894-44: Heartbeats: every 1 s to topic ``heartbeats`` on the flow's *target* cluster."""
    heartbeat = Heartbeat(source_alias="A", target_alias="B", timestamp=1_700_000_000_000)
    assert heartbeat.key() == bytes.fromhex("0001 41 0001 42")
    assert heartbeat.value() == bytes.fromhex("0000 0000018bcfe56800")


def test_checkpoint_matches_mirrormaker_bytes() -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic."""
    checkpoint = Checkpoint(group="g1", topic="A.orders", partition=3, upstream_offset=1000, downstream_offset=950)
    assert checkpoint.key() == bytes.fromhex("0002 6731 0008 412e6f7264657273 00000003")
    assert checkpoint.value() == bytes.fromhex("0000 00000000000003e8 00000000000003b6 0000")


def test_offset_sync_matches_mirrormaker_bytes() -> None:
    """K894-40: Offset syncs: as 3.5."""
    sync = OffsetSync(topic="orders", partition=3, upstream_offset=1000, downstream_offset=950)
    assert sync.key() == bytes.fromhex("0006 6f7264657273 00000003")
    assert sync.value() == bytes.fromhex("00000000000003e8 00000000000003b6")


@given(TEXT, TEXT, INT32, INT64, INT64, TEXT)
def test_formats_round_trip(  # noqa: PLR0917 - one argument per field
    group: str, topic: str, partition: int, upstream: int, downstream: int, metadata: str
) -> None:
    sync = OffsetSync(topic=topic, partition=partition, upstream_offset=upstream, downstream_offset=downstream)
    checkpoint = Checkpoint(
        group=group,
        topic=topic,
        partition=partition,
        upstream_offset=upstream,
        downstream_offset=downstream,
        metadata=metadata,
    )
    heartbeat = Heartbeat(source_alias=group, target_alias=topic, timestamp=upstream)
    assert OffsetSync.parse(sync.key(), sync.value()) == sync
    assert Checkpoint.parse(checkpoint.key(), checkpoint.value()) == checkpoint
    assert Heartbeat.parse(heartbeat.key(), heartbeat.value()) == heartbeat


RECORDS = (
    OffsetSync(topic="orders", partition=3, upstream_offset=1000, downstream_offset=950),
    Checkpoint(group="g1", topic="A.orders", partition=3, upstream_offset=1000, downstream_offset=950),
    Heartbeat(source_alias="A", target_alias="B", timestamp=1_700_000_000_000),
)


@settings(max_examples=EXAMPLES)
@given(st.data(), st.sampled_from(RECORDS))
def test_corrupt_records_are_rejected_or_in_range(
    data: st.DataObject, record: OffsetSync | Checkpoint | Heartbeat
) -> None:
    key, value = (data.draw(damaged(part) | st.just(part)) for part in (record.key(), record.value()))
    try:
        parsed = record.parse(key, value)
    except FormatError:
        return
    for number in (getattr(parsed, name) for name in parsed.__slots__):
        assert isinstance(number, str) or number >= 0


def test_unknown_version_is_rejected() -> None:
    with pytest.raises(FormatError, match="Version 1"):
        Heartbeat.parse(bytes.fromhex("0001 41 0001 42"), bytes.fromhex("0001 0000018bcfe56800"))
