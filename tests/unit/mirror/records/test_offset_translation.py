from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.mirror.records.offset_translation import (
    MAX_SYNCS,
    UNTRANSLATABLE,
    PartitionTranslation,
    RunSync,
    SyncHistory,
    SyncPair,
    SyncRule,
)


def history(*pairs: tuple[int, int]) -> SyncHistory:
    made = SyncHistory(SyncPair(*pairs[0]))
    for pair in pairs[1:]:
        made.add(SyncPair(*pair))
    return made


def test_sync_is_due_when_mirrormaker_writes_one() -> None:
    """K894-40: Offset syncs: as 3.5."""
    rule = SyncRule(50)
    pairs = [(0, 100), (2, 102), (3, 152), (4, 153), (5, 154), (6, 203), (7, 204), (2, 206), (4, 3)]
    written = [pair for pair in pairs if rule.note(SyncPair(*pair))]
    assert written == [(0, 100), (2, 102), (4, 153), (7, 204), (2, 206), (4, 3)]


def test_offset_lag_max_0_syncs_every_record() -> None:
    """K894-40: Offset syncs: as 3.5."""
    rule = SyncRule(0)
    assert all(rule.note(SyncPair(n, n + 7)) for n in range(20))


def test_waiting_sync_is_flushed_once() -> None:
    """K894-40: Offset syncs: as 3.5."""
    rule = SyncRule(100)
    assert rule.note(SyncPair(0, 10))
    assert rule.flush() is None
    assert not rule.note(SyncPair(1, 11))
    assert rule.flush() == (1, 11)
    assert rule.flush() is None


def test_batch_rule_matches_record_rule() -> None:
    """K894-40: Offset syncs: as 3.5."""
    rule = SyncRule(100)
    assert rule.note_batch(SyncPair(0, 50), 10) == [(0, 50)]
    assert rule.note_batch(SyncPair(10, 60), 10) == []
    assert rule.note_batch(SyncPair(20, 70), 300) == [(101, 151), (202, 252), (303, 353)]
    assert rule.flush() == (319, 369)
    assert rule.note_batch(SyncPair(500, 370), 1) == [(500, 370)], "records of the source were left out"


@given(st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=40), st.integers(0, 200))
def test_batch_syncs_equal_syncs_of_single_records(batches: list[tuple[int, bool]], lag_max: int) -> None:
    by_batch, by_record = SyncRule(lag_max), SyncRule(lag_max)
    upstream = downstream = 0
    for count, gap in batches:
        upstream += 5 * gap
        pairs = [SyncPair(upstream + at, downstream + at) for at in range(count)]
        assert by_batch.note_batch(pairs[0], count) == [pair for pair in pairs if by_record.note(pair)]
        assert by_batch.waiting == by_record.waiting
        upstream, downstream = upstream + count, downstream + count


FOUR = ((0, 0), (100, 50), (200, 150), (300, 250))


@pytest.mark.parametrize(
    ("upstream", "downstream"), [(0, 0), (50, 1), (100, 1), (200, 150), (250, 151), (300, 250), (301, 251), (5000, 251)]
)
def test_group_is_translated_by_newest_passed_sync(upstream: int, downstream: int) -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic."""
    assert history(*FOUR).translate(upstream) == downstream


@pytest.mark.parametrize(("upstream", "downstream"), [(99, UNTRANSLATABLE), (100, 100), (250, 201), (400, 301)])
def test_offset_before_oldest_sync_is_untranslatable(upstream: int, downstream: int) -> None:
    """K894-42: A checkpoint is emitted only if first, or upstream offset went back, or downstream advanced; never for
    untranslatable (-1) or unknown offsets.
    """
    assert history((100, 100), (200, 200), (300, 300)).translate(upstream) == downstream


@pytest.mark.parametrize(("upstream", "downstream"), [(250, 176), (370, 176), (400, 376)])
def test_sync_history_keeps_offset_sync_store_invariants(upstream: int, downstream: int) -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic."""
    assert history((175, 175), (275, 275), (375, 375), (475, 475)).translate(upstream) == downstream


@pytest.mark.parametrize(
    ("upstream", "downstream", "skips"),
    [(500, 400, True), (500, 0, False), (1005, 6, True), (1005, 5, False), (3000, 2000, False), (3001, 2500, False)],
)
def test_checkpoint_of_recreated_log_would_skip_records(upstream: int, downstream: int, *, skips: bool) -> None:
    """Also if the sync of the first records of the new log was compacted away."""
    translation = PartitionTranslation(RunSync(SyncPair(999, 899), 100))
    assert not translation.would_skip(500, 400)
    translation.add(RunSync(SyncPair(2999, 1999), 1000))
    assert translation.would_skip(upstream, downstream) == skips
    assert translation.translate(500) is None


@pytest.mark.parametrize("count", [3, 200])
@pytest.mark.parametrize("run", [1, 0], ids=["runs", "syncs of single records"])
def test_repeated_write_of_syncs_changes_no_translation(count: int, run: int) -> None:
    """The acknowledgement of the first write was lost."""
    # given
    older = [RunSync(SyncPair(up, up // 2), up - run if run else -1) for up in range(20, 1000, 20)]
    written = [RunSync(SyncPair(up, up // 2), up - run if run else -1) for up in range(1000, 1000 + 20 * count, 20)]
    translation = PartitionTranslation(older[0])
    for sync in [*older[1:], *written]:
        translation.add(sync)
    before = [translation.translate(upstream) for upstream in range(0, 1000 + 20 * count)]
    assert before[25] is not None
    # when
    for sync in written:
        translation.add(sync)
    # then
    assert [translation.translate(upstream) for upstream in range(0, 1000 + 20 * count)] == before


@pytest.mark.parametrize("first", [0, -1], ids=["run", "single records"])
def test_new_log_that_begins_as_the_old_one_replaces_its_syncs(first: int) -> None:
    translation = PartitionTranslation(RunSync(SyncPair(0, 0), first))
    for pair in (SyncPair(100, 90), SyncPair(1000, 990)):
        translation.add(RunSync(pair, -1))
    # when
    translation.add(RunSync(SyncPair(0, 0), first))
    translation.add(RunSync(SyncPair(600, 500), -1))
    # then
    assert translation.translate(599) == (1, 598)
    assert translation.translate(2000) == (501, 1399)


def test_sync_going_back_clears_history() -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic."""
    gone_back = history((100, 100), (200, 200), (50, 300))
    assert set(gone_back) == {(50, 300)}
    assert gone_back.translate(40) == UNTRANSLATABLE


@given(st.integers(0, 10_000), st.lists(st.one_of(st.integers(1, 8), st.integers(1, 2_000)), max_size=120))
def test_sync_history_is_dense_near_newest_and_sparse_far_back(first: int, steps: list[int]) -> None:
    """K894-41: the bounds of every two slots, and never beyond the true position."""
    upstreams = list(itertools.accumulate(steps, initial=first))
    kept = history(*((upstream, upstream - first) for upstream in upstreams))
    slots = list(kept)
    assert len(slots) == MAX_SYNCS
    assert slots[0].upstream == upstreams[-1]
    assert slots[-1].upstream == first
    for (i, newer), (j, older) in itertools.combinations(enumerate(slots), 2):
        if newer != older:
            assert newer.upstream <= older.upstream + 2**j - 2**i
            assert newer.upstream >= older.upstream + 2 ** max(i - 2, 0)
    for group in range(first, upstreams[-1] + 3, 1 + (upstreams[-1] - first) // 50):
        assert 0 <= kept.translate(group) <= group - first
