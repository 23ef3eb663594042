"""The metrics of a mirror under MirrorMaker 2's names and tags (K894-47)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.mirror.progress.flow_progress import (
    ConfigDifference,
    FlowGroups,
    FlowState,
    MirroredGroupOffset,
    MirrorStatus,
)
from klamm.mirror.progress.partition_progress import Ages
from klamm.mirror.status.metrics import metrics_page
from klamm.monitoring.exposition import Page
from tests.support.mirror_status import progress_row

if TYPE_CHECKING:
    from collections.abc import Callable


def _samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def _page(status: MirrorStatus) -> dict[str, float]:
    return _samples(metrics_page(status.snapshot(), status.drift()).text())


_TAGS = '{source="A",target="B",topic="A.orders",partition="0"}'


def test_partition_has_mirror_source_connector_gauges() -> None:
    """K894-47: Metrics of 3.6."""
    # given
    now = [100.0]
    status = MirrorStatus(["A->B"], clock=lambda: now[0])
    status.update("one", [progress_row(records=0, bytes=0)])
    # when
    now[0] += 4
    ages = (1.0, 0.5, 9.0, 2.0)
    status.update("one", [progress_row(records=200, bytes=8_000, record_age=ages, replication_latency=ages)])
    samples = _page(status)
    # then
    name = "kafka_connect_mirror_mirrorsourceconnector_"
    wanted: dict[str, float] = {
        "record_count": 200,
        "record_rate": 50,
        "byte_count": 8_000,
        "byte_rate": 2_000,
        "record_lag": 90,
    }
    for gauge in ("record_age_ms", "replication_latency_ms"):
        wanted |= {gauge: 1, f"{gauge}_min": 0.5, f"{gauge}_max": 9, f"{gauge}_avg": 2}
    assert {key: samples[f"{name}{key}{_TAGS}"] for key in wanted} == wanted


def test_unmeasured_ages_have_no_sample() -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.update("one", [progress_row()])
    # then
    assert not [sample for sample in _page(status) if "_ms" in sample]


@pytest.mark.parametrize("is_late", [False, True])
def test_released_flow_has_no_lag_and_ages_until_it_copies_again(*, is_late: bool) -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.expect("A->B", [("orders", 0)])
    ages = (1.0, 0.5, 9.0, 2.0)
    row = progress_row(next_offset=100, records=5, record_age=ages, replication_latency=ages)
    status.update("one", [row])
    # when
    status.release("A->B")
    if is_late:
        status.update("one", [row])
    samples = _page(status)
    # then
    assert not [sample for sample in samples if "_lag" in sample or "_ms" in sample]
    assert samples[f"kafka_connect_mirror_mirrorsourceconnector_record_count{_TAGS}"] == 5
    (progress,) = status.snapshot()
    assert (progress.copied, progress.total, progress.partitions[0].ends) == (100, 100, None)
    # when
    status.expect("A->B", [("orders", 0)])
    status.update("two", [progress_row(next_offset=100, end_offset=120, replication_latency=ages)])
    samples = _page(status)
    # then
    assert samples[f"kafka_connect_mirror_mirrorsourceconnector_record_lag{_TAGS}"] == 20
    assert samples[f"kafka_connect_mirror_mirrorsourceconnector_replication_latency_ms{_TAGS}"] == 1


def test_counters_continue_in_new_session() -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.update("one", [progress_row(records=5, bytes=50)])
    # when
    status.update("two", [progress_row(records=3, bytes=30)])
    # then
    assert _page(status)[f"kafka_connect_mirror_mirrorsourceconnector_record_count{_TAGS}"] == 8


def test_flow_metrics_have_state_and_last_progress() -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.set_state("A->B", FlowState.WAITING, "B is away")
    status.set_rejected("A->B", {"A.secret": "TOPIC_AUTHORIZATION_FAILED"})
    status.update("one", [progress_row(state="STOPPED", reason="purged", records=1)])
    # when
    samples = _page(status)
    # then
    assert samples['klamm_mirror_flow_state{source="A",target="B",state="WAITING"}'] == 1
    assert samples['klamm_mirror_flow_state{source="A",target="B",state="RUNNING"}'] == 0
    assert samples['klamm_mirror_stopped_partitions{source="A",target="B"}'] == 1
    assert samples['klamm_mirror_rejected_topics{source="A",target="B"}'] == 1
    assert samples['klamm_mirror_last_progress_timestamp_seconds{source="A",target="B"}'] > 1_700_000_000


def test_drift_gauge_counts_configs_the_sync_would_change() -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.set_drift("A->B", tuple(_difference(is_drift=is_drift) for is_drift in (True, False, True)))
    # then
    assert _page(status)['klamm_mirror_config_drift_keys{source="A",target="B"}'] == 2


def test_checkpoints_have_mirror_checkpoint_connector_gauges() -> None:
    """K894-47: Metrics of 3.6."""
    # given
    offset = MirroredGroupOffset(
        group="g",
        topic="orders",
        partition=3,
        remote_topic="A.orders",
        source_offset=5,
        target_offset=5,
        again_at_most=0,
        checkpoint_latency_ms=Ages(4, 1, 9, 5),
    )
    skipped = (("old", "all its topics are excluded"),)
    groups = {"A->B": FlowGroups(offsets=(offset,), skipped=skipped, damaged_records=3)}
    # when
    samples = _samples(metrics_page((), {}, groups).text())
    # then
    name = "kafka_connect_mirror_mirrorcheckpointconnector_checkpoint_latency_ms"
    tags = '{source="A",target="B",group="g",topic="A.orders",partition="3"}'
    assert [samples[f"{name}{suffix}{tags}"] for suffix in ("", "_min", "_max", "_avg")] == [4, 1, 9, 5]
    assert samples['klamm_mirror_groups_skipped{source="A",target="B"}'] == 1
    assert samples['klamm_mirror_damaged_records{source="A",target="B"}'] == 3


def _difference(*, is_drift: bool) -> ConfigDifference:
    return ConfigDifference(
        topic="A.orders",
        name="retention.ms",
        source_value="1",
        source_is_default=False,
        target_value="2",
        target_is_default=True,
        rule="set on the source topic",
        is_drift=is_drift,
    )


_SAMPLES_OF_A_PARTITION = 13
_CALLS_OF_A_SAMPLE = 4
"""At most: the value makes one to three, and the labels take a share. Labels for each sample make a dozen."""

_ODD_TEXTS = st.text(st.sampled_from('aB.-_"\\\n\r\x0b\x1c\u2028}{,= 0é'), max_size=6)


@given(st.lists(st.tuples(_ODD_TEXTS, st.integers(0, 20_000)), max_size=8, unique=True))
def test_combined_families_equal_separate_families(partitions: list[tuple[str, int]]) -> None:
    # given
    status = MirrorStatus(["A->B"])
    rows = [progress_row(topic=topic, remote_topic=topic, partition=number) for topic, number in partitions]
    status.update("one", rows)
    (flow,) = status.snapshot()
    expected = Page()
    expected.family(
        "kafka_connect_mirror_mirrorsourceconnector_record_lag",
        "gauge",
        "Number of source offsets that are not mirrored yet.",
        [
            ({"source": "A", "target": "B", "topic": each.remote_topic, "partition": str(each.partition)}, each.lag)
            for each in flow.partitions
            if each.lag is not None
        ],
    )
    # then
    assert len(flow.partitions) == len(partitions)
    assert expected.text() in metrics_page((flow,), {}).text()


def test_partition_labels_are_rendered_once() -> None:
    """Calls are counted, because times depend on the load of the machine."""
    few, many = _status(100), _status(300)
    # when
    calls = _calls(lambda: metrics_page(many.snapshot(), {}).text())
    calls -= _calls(lambda: metrics_page(few.snapshot(), {}).text())
    # then
    text = metrics_page(few.snapshot(), {}).text()
    assert text.count(',partition="7"}') == _SAMPLES_OF_A_PARTITION
    assert calls / 200 <= _SAMPLES_OF_A_PARTITION * _CALLS_OF_A_SAMPLE


def _status(partitions: int) -> MirrorStatus:
    status = MirrorStatus(["A->B"])
    ages = Ages(1.5, 0.5, 9, 2)
    status.update(
        "one",
        [progress_row(partition=number, record_age=ages, replication_latency=ages) for number in range(partitions)],
    )
    return status


def _calls(work: Callable[[], object]) -> int:
    """Return how many times Python functions are called."""
    count = 0

    def on_event(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
