"""Config changes of logs, applied when a log needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from klamm.storage.log import LogConfig, LogManager
from tests.support.logs import Clock, CrashableLogs, batch

if TYPE_CHECKING:
    from pathlib import Path


def test_changed_default_is_read_only_by_logs_in_use(tmp_path: Path) -> None:
    topics: list[str] = []
    configs = {"retention.ms": "1"}

    def configs_of(topic: str) -> dict[str, str]:
        topics.append(topic)
        return configs

    manager = LogManager(tmp_path, configs_of=configs_of, now_ms=Clock())
    for number in range(1000):
        manager.create(UUID(int=number), f"t{number}", 0)
    log = manager.get(UUID(int=7), 0)
    assert log is not None
    assert log.config.retention_ms == 1
    topics.clear()

    configs["retention.ms"] = "2"
    manager.update_configs()

    assert topics == []
    assert log.config.retention_ms == 2
    assert log.config.retention_ms == 2
    assert topics == ["t7"]


def test_topic_config_change_affects_that_topic_only(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path, retention_ms="1")
    crashable.log.append(batch("x"))
    crashable.configs["retention.ms"] = "2"

    crashable.manager.update_config(UUID(int=99))
    assert crashable.log.config.retention_ms == 1
    crashable.manager.update_config(crashable.log.topic_id)
    assert crashable.log.config.retention_ms == 2


def test_jitter_spreads_the_closing_of_segments_below_the_limit() -> None:
    config = LogConfig(segment_ms=10_000, segment_jitter_ms=3_000)
    ages = {config.roll_after_ms(seed * 2_654_435_761) for seed in range(200)}
    assert len(ages) > 100
    assert all(7_000 < age <= 10_000 for age in ages)
    assert LogConfig(segment_ms=10_000).roll_after_ms(12_345) == 10_000


def test_max_compaction_lag_rolls_segments_of_compacted_topics_only() -> None:
    """KIP-354."""
    compacted = LogConfig(cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=50, segment_ms=100)
    assert compacted.roll_after_ms(0) == 50
    assert LogConfig(max_compaction_lag_ms=50, segment_ms=100).roll_after_ms(0) == 100


def test_internal_segment_bytes_overrides_segment_bytes() -> None:
    assert LogConfig.from_configs({"segment.bytes": "1048576", "internal.segment.bytes": "100"}).segment_bytes == 100
