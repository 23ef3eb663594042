from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.mirror.records.offset_translation import (
    RUN_HEADER,
    PartitionTranslation,
    RunSync,
    RunTracker,
    SyncPair,
    Translation,
)


def sync(upstream: int, downstream: int, first: int = -1) -> RunSync:
    return RunSync(SyncPair(upstream, downstream), first)


def test_offsets_within_run_translate_exactly() -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic."""
    translation = PartitionTranslation(sync(999, 499, first=500))
    assert translation.translate(500) == Translation(0, 0)
    assert translation.translate(777) == Translation(277, 0)
    assert translation.translate(1000) == Translation(500, 0), "the group has read all of it"


def test_offset_beyond_newest_sync_translates_to_next_offset() -> None:
    """K894-41: never beyond the log's end."""
    assert PartitionTranslation(sync(999, 499, first=500)).translate(1200) == Translation(500, 200)


def test_offset_before_first_run_is_not_translated() -> None:
    """K894-42: A checkpoint is emitted only if first, or upstream offset went back, or downstream advanced; never for
    untranslatable (-1) or unknown offsets.
    """
    assert PartitionTranslation(sync(999, 499, first=500)).translate(499) is None


def test_syncs_without_runs_translate_like_mirrormaker() -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic."""
    translation = PartitionTranslation(sync(100, 50))
    for pair in ((200, 150), (300, 250)):
        translation.add(sync(*pair))
    wanted = {99: None, 100: (50, 0), 101: (51, 0), 150: (51, 49), 200: (150, 0), 250: (151, 49), 5000: (251, 4699)}
    assert {offset: translation.translate(offset) for offset in wanted} == wanted


def test_growing_run_replaces_itself_and_keeps_older_runs() -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic."""
    translation = PartitionTranslation(sync(99, 99, first=0))
    for number in range(10):
        translation.add(sync(210 + number, 110 + number, first=200))
    translation.add(sync(400, 300, first=400))
    assert translation.translate(40) == Translation(40, 0)
    assert translation.translate(205) == Translation(105, 0)
    assert translation.translate(150) == Translation(100, 50), "the source has no record there, or none is known"


def test_recreated_remote_topic_drops_older_runs() -> None:
    """K894-41: what the target holds now begins with the newest sync."""
    translation = PartitionTranslation(sync(999, 999, first=0))
    translation.add(sync(1010, 10, first=1000))
    assert translation.translate(500) is None
    assert translation.translate(1005) == Translation(5, 0)


def test_sync_header_holds_run_and_mirrormaker_has_none() -> None:
    """K894-40: Offset syncs: as 3.5."""
    run = sync(999, 499, first=500)
    ((name, value),) = run.headers()
    assert (name, value) == (RUN_HEADER, bytes.fromhex("00000000000001f4"))
    assert RunSync.of(run.pair, run.headers()) == run
    assert RunSync.of(run.pair, ()) == sync(999, 499)
    for strange in (b"", None, bytes(7), (1000).to_bytes(8), (-1).to_bytes(8, signed=True)):
        assert RunSync.of(run.pair, ((RUN_HEADER, strange),)) == sync(999, 499)


def test_offset_gap_ends_run() -> None:
    """K894-40: Offset syncs: as 3.5."""
    tracker = RunTracker()
    tracker.extend(SyncPair(0, 0), 10)
    tracker.extend(SyncPair(10, 10), 10)
    assert tracker.sync(SyncPair(19, 19)) == sync(19, 19, first=0)
    tracker.extend(SyncPair(20, 21), 5)
    tracker.extend(SyncPair(30, 26), 5)
    assert list(tracker.take_ended()) == [sync(19, 19, first=0), sync(24, 25, first=20)]
    assert list(tracker.take_ended()) == []
    assert tracker.sync(SyncPair(34, 30)) == sync(34, 30, first=30)
    tracker.end()
    assert tracker.sync(SyncPair(50, 40)) == sync(50, 40)


def test_killed_mirror_keeps_runs_before_its_restart() -> None:
    """K894-41: it copies some records again, behind what is there."""
    translation = PartitionTranslation(sync(999, 999, first=0))
    translation.add(sync(999, 1099, first=900))
    assert translation.translate(500) == Translation(500, 0)
    assert translation.translate(899) == Translation(899, 0)
    assert translation.translate(900) == Translation(1000, 0)
    assert translation.translate(980) == Translation(1080, 0)


@pytest.mark.parametrize("upstream", [900, 920, 950, 980, 1000])
def test_group_is_not_moved_before_all_records_are_copied_again(upstream: int) -> None:
    """The only copies of 950 to 999 are before the new ones, and the source may be lost before they come again."""
    # given
    translation = PartitionTranslation(sync(999, 999, first=0))
    # when
    translation.add(sync(949, 1049, first=900))
    # then
    assert translation.translate(upstream, source_end=1000) == Translation(upstream, 50)
    assert translation.translate(500) == Translation(500, 0)
    # when
    translation.add(sync(998, 1098, first=900))
    # then
    assert translation.translate(upstream) == Translation(upstream, 99)
    # when
    translation.add(sync(999, 1099, first=900))
    # then
    assert translation.translate(upstream) == Translation(upstream + 100, 0)


@pytest.mark.parametrize("first", [0, -1], ids=["run", "single records"])
def test_mirror_killed_while_it_copies_again_keeps_the_first_copies(first: int) -> None:
    # given
    translation = PartitionTranslation(sync(0, 0, first=first))
    translation.add(sync(99, 99, first=first))
    translation.add(sync(49, 149, first=first))
    # when
    translation.add(sync(20, 160, first=10 if first == 0 else -1))
    # then
    assert translation.translate(100) == Translation(100, 61)
    # when
    translation.add(sync(99, 239, first=10 if first == 0 else -1))
    # then
    assert translation.translate(100) == Translation(240, 0)


def test_group_before_the_first_copies_is_not_translated_before_they_are_copied_again() -> None:
    # given
    translation = PartitionTranslation(sync(999, 499, first=500))
    # when
    translation.add(sync(99, 599, first=0))
    # then
    assert translation.translate(50) is None
    # when
    translation.add(sync(999, 1499, first=0))
    # then
    assert translation.translate(50) == Translation(550, 0)


@pytest.mark.parametrize("first", [200, -1], ids=["run", "single records"])
def test_group_stays_at_first_copies_that_are_not_copied_again(first: int) -> None:
    """The mirror was reset to 200 by mistake, and to the end of the first copies afterwards."""
    # given
    translation = PartitionTranslation(sync(1000, 1000, first=0))
    last_syncs = [sync(600, 1401, first=first), sync(1001, 1402, first=1001 if first >= 0 else -1)]
    # when
    for _ in range(2):  # the write was repeated
        for each in last_syncs:
            translation.add(each)
    # then
    assert [translation.translate(upstream) for upstream in (300, 700)] == [Translation(300, 0), Translation(700, 0)]
    assert translation.translate(1002) == Translation(1403, 0)


def test_new_copies_count_from_the_last_record_that_was_left_out() -> None:
    # given
    translation = PartitionTranslation(sync(1000, 1000, first=0))
    # when
    for each in (sync(400, 1201, first=200), sync(800, 1302, first=700), sync(1100, 1602, first=700)):
        translation.add(each)
    # then
    offsets = {300: 300, 500: 500, 699: 699, 700: 1202, 1000: 1502, 1101: 1603}
    assert {upstream: translation.translate(upstream) for upstream in offsets} == {
        upstream: Translation(downstream, 0) for upstream, downstream in offsets.items()
    }
    assert not any(translation.would_skip(upstream, downstream) for upstream, downstream in offsets.items())


def test_recreated_source_topic_drops_older_runs() -> None:
    """K894-41: the source ends before the records that were copied first, so these never come again."""
    translation = PartitionTranslation(sync(999, 999, first=0))
    translation.add(sync(9, 1009, first=0))
    assert translation.translate(5, source_end=999) == Translation(1005, 0)
    assert translation.translate(500, source_end=10) == Translation(1010, 490)


class Step(NamedTuple):
    records: int
    source_gap: int
    """Source offsets that are left out: they were compacted, or the mirror was reset forward."""
    target_gap: int
    again: int
    """The mirror was killed before: so many source offsets are copied again."""
    is_written: bool


steps = st.builds(
    Step,
    st.integers(1, 20),
    st.sampled_from([0, 1, 2, 3, 30]),
    st.integers(0, 2),
    st.sampled_from([0, 0, 0, 1, 7, 40]),
    st.booleans(),
)


@given(st.lists(steps, min_size=1, max_size=40), st.booleans())
def test_translation_never_skips_records(batches: list[Step], with_runs: bool) -> None:
    """K894-41: whatever is missing in the topic of syncs, a translation is never beyond the true position."""
    upstream = downstream = 0
    synced = -1
    where: dict[int, int] = {}
    """Newest copy of each record."""
    tracker, translation = RunTracker(), None
    killed = False
    for step in batches:
        if step.again:
            upstream, tracker, killed = max(0, upstream - step.again), RunTracker(), True
            # No sync shows copies after the newest one. They come again within a moment.
            where = {at: there for at, there in where.items() if at < upstream or at <= synced}
        upstream, downstream = upstream + step.source_gap, downstream + step.target_gap
        where |= {upstream + at: downstream + at for at in range(step.records)}
        tracker.extend(SyncPair(upstream, downstream), step.records)
        upstream, downstream = upstream + step.records, downstream + step.records
        if step.is_written:
            runs = tracker.sync(SyncPair(upstream - 1, downstream - 1))
            runs = runs if with_runs else runs._replace(first_upstream=-1)
            synced = max(synced, upstream - 1)
            if translation is None:
                translation = PartitionTranslation(runs)
            else:
                translation.add(runs)
    if translation is None:
        return
    for offset in range(upstream + 5):
        translated = translation.translate(offset)
        if translated is None:
            continue
        assert all(there >= translated.downstream for at, there in where.items() if at >= offset), "a record is skipped"
        assert not translation.would_skip(offset, translated.downstream), "its checkpoint would be discarded"
        if translated.again_at_most == 0 and not killed:
            assert all(there < translated.downstream for at, there in where.items() if at < offset), "one comes again"
