"""Families by partition: the same bytes as the plain way, for a part of its cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from klamm.mirror.copying.ages import Ages
from klamm.mirror.progress import MirrorStatus, PartitionStatus
from klamm.mirror.watching.metrics import metrics_page
from klamm.mirror.watching.partition_families import PartitionFamilies
from klamm.monitoring.exposition import Page
from tests.support.mirror_status import progress_row

if TYPE_CHECKING:
    from collections.abc import Callable

_SAMPLES_OF_A_PARTITION = 13
_CALLS_OF_A_SAMPLE = 3
"""At most: what tells the value makes one or two, and the labels take a share. Labels for each sample make a dozen."""

_ODD_TEXTS = st.one_of(
    st.text(st.sampled_from('aB.-_"\\\n\r\x0b\x1c\u2028}{,= 0é'), max_size=6),
    st.sampled_from(["orders", '"} 0', "\\", ""]),
)
_ODD_NUMBERS = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([0.0, -0.0, 1e16, 1e300, 0.1, 5e-324, 1e-7]),
)


@given(
    st.lists(
        st.tuples(
            st.fixed_dictionaries({"source": _ODD_TEXTS, "target": _ODD_TEXTS}),
            st.lists(st.tuples(_ODD_TEXTS, st.integers(0, 20_000), _ODD_NUMBERS), max_size=6),
        ),
        max_size=3,
    )
)
def test_every_byte_is_as_the_page_writes_it(
    rows: list[tuple[dict[str, str], list[tuple[str, int, float | None]]]],
) -> None:
    # given
    values: dict[int, float | None] = {}
    flows = []
    page = Page()
    samples = []
    for labels, partitions in rows:
        found = [_partition(topic, number) for topic, number, _ in partitions]
        flows.append((labels, found))
        for partition, (topic, number, value) in zip(found, partitions, strict=True):
            values[id(partition)] = value
            if value is not None:
                samples.append(({**labels, "topic": topic, "partition": str(number)}, value))
    page.family("a_total", "counter", "Some.", samples)
    # when
    text = PartitionFamilies(flows).text("a_total", "counter", "Some.", lambda partition: values[id(partition)])
    # then
    assert text == page.text()


def test_the_labels_of_a_partition_are_not_written_for_each_of_its_samples() -> None:
    """Calls are counted, as times depend on who else is at work."""
    few, many = _status(100), _status(300)
    # when
    calls = _calls(lambda: metrics_page(many.snapshot(), {}).text())
    calls -= _calls(lambda: metrics_page(few.snapshot(), {}).text())
    # then
    text = metrics_page(few.snapshot(), {}).text()
    assert text.count(',partition="7"}') == _SAMPLES_OF_A_PARTITION
    assert calls / 200 <= _SAMPLES_OF_A_PARTITION * _CALLS_OF_A_SAMPLE


def _partition(topic: str, number: int) -> PartitionStatus:
    return PartitionStatus(
        topic="orders",
        partition=number,
        remote_topic=topic,
        next_offset=0,
        end_offset=0,
        state="COPYING",
        reason="",
        last_timestamp=-1,
    )


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
