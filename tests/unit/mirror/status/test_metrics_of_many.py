"""Metrics of thousands of partitions: the same bytes as rendered per family, at a fraction of the cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from klamm.mirror.progress.flow_progress import MirrorStatus
from klamm.mirror.progress.partition_progress import Ages
from klamm.mirror.status.metrics import metrics_page
from klamm.monitoring.exposition import Page
from tests.support.mirror_status import progress_row

if TYPE_CHECKING:
    from collections.abc import Callable

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
