"""Prometheus metrics of a mirror: the gauges of MirrorMaker 2 with its names and tags, and klamm's own.

A gauge of ``kafka.connect.mirror:type=MirrorSourceConnector`` such as ``record-age-ms-max`` is named
``kafka_connect_mirror_mirrorsourceconnector_record_age_ms_max``. The usual rules of the JMX exporter give it the same
name.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.mirror.progress.flow_progress import FlowState
from klamm.mirror.progress.partition_progress import CopyState
from klamm.monitoring.exposition import Page, label_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from klamm.mirror.progress.flow_progress import (
        ConfigDifference,
        FlowGroups,
        FlowProgress,
        MirroredGroupOffset,
        PartitionStatus,
    )
    from klamm.mirror.progress.partition_progress import Ages

SOURCE_CONNECTOR: Final = "kafka_connect_mirror_mirrorsourceconnector_"
CHECKPOINT_CONNECTOR: Final = "kafka_connect_mirror_mirrorcheckpointconnector_"

_FIGURES: Final = (("", "newest", 0), ("_min", "least", 1), ("_max", "greatest", 2), ("_avg", "mean", 3))
"""Metrics made from each ``Ages``: suffix of the name, word for the description, index in the tuple."""


def metrics_page(
    flows: Sequence[FlowProgress],
    drift: Mapping[str, Sequence[ConfigDifference]],
    groups: Mapping[str, FlowGroups] = MappingProxyType({}),
) -> Page:
    """Return the metrics of all flows.

    Args:
        flows: Progress of the flows.
        drift: Config differences by flow.
        groups: State of the mirrored consumer groups by flow.
    """
    page = Page()
    _source_connector(page, flows)
    _flows(page, flows)
    page.family(
        "klamm_mirror_config_drift_keys",
        "gauge",
        "Configs of remote topics that the next sync would change.",
        [(_flow_labels(flow), sum(each.is_drift for each in rows)) for flow, rows in drift.items()],
    )
    _groups(page, groups)
    return page


def _source_connector(page: Page, flows: Sequence[FlowProgress]) -> None:
    """Add the metrics per partition, named as those of MirrorSourceConnector."""
    # There may be ten thousand partitions in thirteen families, so labels are formatted once, not for each sample.
    partitions = [partition for flow in flows for partition in flow.partitions]
    written = [text for flow in flows for text in _written_labels(flow)]

    def family(name: str, kind: str, description: str, figure: Callable[[PartitionStatus], float | None]) -> None:
        values = zip(written, map(figure, partitions), strict=True)
        samples = [(labels, value) for labels, value in values if value is not None]
        page.written_family(SOURCE_CONNECTOR + name, kind, description, samples)

    family("record_count", "counter", "Records mirrored in this run.", lambda partition: partition.records)
    family(
        "record_rate",
        "gauge",
        "Records per second, over the last 5 to 10 seconds.",
        lambda partition: partition.records_per_s,
    )
    family("byte_count", "counter", "Bytes of record batches mirrored in this run.", lambda partition: partition.bytes)
    family(
        "byte_rate",
        "gauge",
        "Bytes per second, over the last 5 to 10 seconds.",
        lambda partition: partition.bytes_per_s,
    )
    for name, description, ages in (
        ("record_age_ms", "Age of records when they were fetched from the source", lambda p: p.record_age),
        ("replication_latency_ms", "Age of records when the target acknowledged them", lambda p: p.replication_latency),
    ):
        _ages(family, name, description, ages)
    family(
        "record_lag", "gauge", "Number of source offsets that are not mirrored yet.", lambda partition: partition.lag
    )


def _written_labels(flow: FlowProgress) -> Iterator[str]:
    for topic, partitions in groupby(flow.partitions, attrgetter("remote_topic")):
        of_topic = label_text({**_flow_labels(flow.flow), "topic": topic}).removesuffix("}")
        for partition in partitions:
            yield f'{of_topic},partition="{partition.partition}"}}'


def _ages(
    family: Callable[[str, str, str, Callable[[PartitionStatus], float | None]], None],
    name: str,
    description: str,
    ages: Callable[[PartitionStatus], Ages | None],
) -> None:
    for suffix, which, at in _FIGURES:

        def figure(partition: PartitionStatus, at: int = at) -> float | None:
            recent = ages(partition)
            return None if recent is None else recent[at]

        family(name + suffix, "gauge", f"{description}: the {which} of the last minute, in milliseconds.", figure)


def _flows(page: Page, flows: Sequence[FlowProgress]) -> None:
    """Add the metrics per flow."""
    page.family(
        "klamm_mirror_flow_state",
        "gauge",
        "1 for the current state of the flow, 0 for all others.",
        [
            ({**_flow_labels(flow.flow), "state": state.value}, float(flow.state is state))
            for flow in flows
            for state in FlowState
        ],
    )
    page.family(
        "klamm_mirror_stopped_partitions",
        "gauge",
        "Partitions that have stopped until an operator intervenes.",
        [(_flow_labels(flow.flow), len(flow.stopped)) for flow in flows],
    )
    page.family(
        "klamm_mirror_paused_partitions",
        "gauge",
        "Partitions that an operator paused, alone or with their flow.",
        [(_flow_labels(flow.flow), sum(each.state is CopyState.PAUSED for each in flow.partitions)) for flow in flows],
    )
    page.family(
        "klamm_mirror_rejected_topics",
        "gauge",
        "Remote topics that the target rejected when they were created or grown.",
        [(_flow_labels(flow.flow), len(flow.rejected)) for flow in flows],
    )
    page.family(
        "klamm_mirror_last_progress_timestamp_seconds",
        "gauge",
        "Time of the flow's latest progress.",
        [(_flow_labels(flow.flow), flow.progressed_at) for flow in flows if flow.progressed_at is not None],
    )


def _groups(page: Page, groups: Mapping[str, FlowGroups]) -> None:
    """Add the metrics of consumer groups, named as those of MirrorCheckpointConnector."""
    for suffix, which, at in _FIGURES:
        page.family(
            f"{CHECKPOINT_CONNECTOR}checkpoint_latency_ms{suffix}",
            "gauge",
            "Time from the request for a group's offset to the acknowledged checkpoint: "
            f"the {which} of the last minute, in milliseconds.",
            [
                (_group_labels(flow, offset), offset.checkpoint_latency_ms[at])
                for flow, flow_groups in groups.items()
                for offset in flow_groups.offsets
                if offset.checkpoint_latency_ms is not None
            ],
        )
    page.family(
        "klamm_mirror_groups_skipped",
        "gauge",
        "Groups of the source without any checkpoint; the status page shows the reasons.",
        [(_flow_labels(flow), len(flow_groups.skipped)) for flow, flow_groups in groups.items()],
    )
    page.family(
        "klamm_mirror_damaged_records",
        "gauge",
        "Offset syncs and checkpoints that cannot be read and are ignored; the status page shows the latest.",
        [(_flow_labels(flow), found.damaged_records) for flow, found in groups.items()],
    )


def _group_labels(flow: str, offset: MirroredGroupOffset) -> dict[str, str]:
    labels = _flow_labels(flow)
    return labels | {"group": offset.group, "topic": offset.remote_topic, "partition": str(offset.partition)}


def _flow_labels(flow: str) -> dict[str, str]:
    source, _, target = flow.partition("->")
    return {"source": source, "target": target}
