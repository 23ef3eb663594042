"""The forms of a partition's progress, all from one declaration."""

from __future__ import annotations

import json

from klamm.mirror.progress.partition_progress import Ages, CopyState, PartitionProgress, spark_schema

PROGRESS = PartitionProgress(
    flow="A->B",
    topic="t",
    partition=3,
    remote_topic="A.t",
    next_offset=5,
    end_offset=9,
    records=4,
    bytes=100,
    last_timestamp=17,
    state=CopyState.WAITING,
    reason="no leader",
    record_age=Ages(1.0, 0.5, 2.0, 1.2),
)


def test_spark_schema_is_stable() -> None:
    ages = "struct<last double, least double, most double, mean double>"
    assert spark_schema() == (
        "flow string, topic string, partition int, remote_topic string, next_offset long, end_offset long, "
        f"records long, bytes long, last_timestamp long, state string, reason string, record_age {ages}, "
        f"replication_latency {ages}"
    )


def test_progress_round_trips_to_driver() -> None:
    assert PartitionProgress.from_json(json.loads(json.dumps(PROGRESS.to_json()))) == PROGRESS
