"""Text of the status page; its layout is tested in a browser (K894-47)."""

from __future__ import annotations

import re

from klamm.mirror.progress.flow_progress import (
    ConfigDifference,
    FlowGroups,
    FlowState,
    MirroredGroupOffset,
    MirrorStatus,
)
from klamm.mirror.status.page import MAX_ROWS, flow_values, render
from klamm.mirror.topics.plans import TARGET_DEFAULT
from klamm.page.plot import Samples
from tests.support.mirror_status import progress_row


def _page(status: MirrorStatus) -> str:
    return render(status.snapshot(), status.drift(), at_s=0)


def _cells(page: str) -> list[list[str]]:
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", page, re.DOTALL)
    return [[re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row)] for row in rows]


def test_page_shows_its_time_and_links_to_each_flow() -> None:
    page = render(MirrorStatus(["A->B"]).snapshot(), {}, at_s=1_790_000_000)
    assert "2026-09-21 14:13:20 UTC" in page
    assert '<h2 id="A-&gt;B"><a href="#A-%3EB">' in page


def test_topics_are_sorted_by_lag() -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.update("one", [progress_row(remote_topic="A.low", end_offset=11)])
    status.update("one", [progress_row(topic="high", remote_topic="A.high", end_offset=5_010)])
    # when
    rows = [cells for cells in _cells(_page(status)) if cells]
    # then
    assert [(row[0], row[1], row[5]) for row in rows] == [
        ("A.high", "10 / 5,010", "5,000"),
        ("A.low", "10 / 11", "1"),
    ]
    assert ["90%" in row[2] for row in rows] == [False, True]


def test_filter_leaves_out_other_topics_groups_and_differences_but_not_their_sums() -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.update("one", [progress_row(remote_topic="A.low", end_offset=11)])
    status.update("one", [progress_row(topic="high", remote_topic="A.high", end_offset=5_010)])
    status.set_drift("A->B", (_difference("retention.ms", rule="", is_drift=True),))
    groups = {"A->B": FlowGroups(offsets=(), skipped=(("follow", "excluded"), ("other", "excluded")))}
    # when
    page = render(status.snapshot(), status.drift(), groups, at_s=0, wanted="LOW")
    # then
    assert [cells[0] for cells in _cells(page) if cells] == ["A.low", "follow"]
    assert "20 of 5,021 records" in page
    assert "No topic whose configs differ has this in its name." in page
    assert 'value="LOW"' in page


def test_topic_with_stopped_partition_shows_reason() -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.update("one", [progress_row(), progress_row(partition=1, state="STOPPED", reason="purged <now>")])
    # then
    head, line, reason = _cells(_page(status))
    assert head == []
    assert line[6] == "STOPPED"
    assert reason == ["partition 1: purged &lt;now&gt;"]


def test_config_differences_show_rule_and_drift_first() -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.set_drift(
        "A->B",
        (
            _difference("segment.bytes", rule=TARGET_DEFAULT, is_drift=False),
            _difference("retention.ms", rule="set on the source topic", is_drift=True),
        ),
    )
    # when
    rows = [cells for cells in _cells(_page(status)) if cells]
    # then
    assert [row[1] for row in rows[::2]] == ["retention.ms", "segment.bytes"]
    assert rows[0] == ["A.orders", "retention.ms", "1", "2 default"]
    assert rows[1] == ["set on the source topic"]


def test_failed_flow_shows_reason() -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.set_state("A->B", FlowState.FAILED, "<script>")
    # then
    assert "FAILED: &lt;script&gt;" in _page(status)
    assert "No partition is copied yet" in _page(status)


def test_equal_offsets_flow_shows_differing_log_ends_first() -> None:
    # given
    kept, translated = MirrorStatus(["A->B"], preserving=["A->B"]), MirrorStatus(["A->B"])
    ends = [(1_010, 1_010), (7, 8), (-1, 0), (5_000, 4_000)]
    rows = [progress_row(partition=at, end_offset=end, next_offset=there) for at, (end, there) in enumerate(ends)]
    for status in (kept, translated):
        status.update("one", rows)
    # when
    _, _, _, *cells = _cells(_page(kept))
    # then
    assert "Offsets on both sides: equal in 1 of 4 partitions" in _page(kept)
    assert cells == [
        ["A.orders", "1", "7", "8", "no"],
        ["A.orders", "2", "unknown", "unknown", "unknown"],
        ["A.orders", "3", "5,000", "4,000", "no"],
        ["A.orders", "0", "1,010", "1,010", "yes"],
    ]
    assert "Offsets on both sides" not in _page(translated)


def test_page_of_10000_topics_is_bounded() -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.update("one", [progress_row(topic=f"t{n}", remote_topic=f"A.t{n}") for n in range(10_000)])
    # when
    page = _page(status)
    # then
    assert len([cells for cells in _cells(page) if cells]) == MAX_ROWS
    assert "show 500 of 10,000" in page


def test_groups_show_translated_offsets_and_reasons() -> None:
    # given
    status = MirrorStatus(["A->B"])
    offset = MirroredGroupOffset(
        group="g", topic="orders", partition=1, remote_topic="A.orders", source_offset=7, target_offset=6,
        again_at_most=1, sync_reason="it has members",
    )  # fmt: skip
    groups = {"A->B": FlowGroups(offsets=(offset,), skipped=(("old", "<all> excluded"),))}
    # when
    rows = [cells for cells in _cells(render(status.snapshot(), {}, groups, at_s=0)) if cells]
    # then
    assert rows == [["g", "A.orders", "1", "7", "6"], ["it has members"], ["old", "&lt;all&gt; excluded"]]


def test_ignored_records_are_shown_with_the_reason() -> None:
    status = MirrorStatus(["A->B"])
    groups = {"A->B": FlowGroups(damage=("mm2-offset-syncs: ignored the record at offset 7: <short>",))}
    assert "ignored the record at offset 7: &lt;short&gt;" in render(status.snapshot(), {}, groups, at_s=0)


def _difference(name: str, *, rule: str, is_drift: bool) -> ConfigDifference:
    return ConfigDifference(
        topic="A.orders",
        name=name,
        source_value="1",
        source_is_default=False,
        target_value="2",
        target_is_default=True,
        rule=rule,
        is_drift=is_drift,
    )


def test_flow_has_plots_of_rate_lag_and_latency() -> None:
    # given
    status, samples = MirrorStatus(["A->B"]), Samples()
    status.expect("A->B", [("orders", 0)])
    ages = {"replication_latency": [5.0, 1.0, 9.0, 4.0]}
    status.update("one", [progress_row(end_offset=30, **ages)])
    status.update("one", [progress_row(end_offset=30, records=10, **ages)])
    # when
    for at_s in (100.0, 105.0):
        samples.add(at_s, {flow.flow: flow_values(flow) for flow in status.snapshot()})
    page = render(status.snapshot(), {}, {}, samples.by_name(), at_s=105.0)
    # then
    captions = re.findall("<figcaption[^>]*>(.*?)</figcaption>", page)
    assert [caption.partition(":")[0] for caption in captions] == ["Records/s", "Lag", "Latency"]
    assert captions[1:] == ["Lag: 20, highest of 15 min 20", "Latency: 4 ms, highest of 15 min 4 ms"]
