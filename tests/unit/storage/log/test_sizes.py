"""Sizes of partitions, without opening them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

from klamm.storage.log import LogManager, segment_bytes
from tests.support.logs import batch

TOPIC_ID = UUID(int=7)


def manager(directory: Path) -> LogManager:
    logs = LogManager(directory, configs_of=lambda _: {})
    for partition in range(2):
        logs.create(TOPIC_ID, "t", partition)
    return logs


def test_size_of_open_log_and_directory_of_closed_log_are_reported(tmp_path: Path) -> None:
    # given
    logs = manager(tmp_path)
    log = logs.get(TOPIC_ID, 0)
    assert log is not None
    log.append(batch("x", "y"))
    # then
    assert logs.footprint(TOPIC_ID, 0) == log.size > 0
    assert logs.footprint(TOPIC_ID, 1) == 0
    assert logs.footprint(TOPIC_ID, 2) is None
    assert logs.footprint(UUID(int=8), 0) is None
    # when
    asyncio.run(logs.close())
    again = manager(tmp_path)
    # then
    directory = again.footprint(TOPIC_ID, 0)
    assert isinstance(directory, Path)
    assert segment_bytes([directory, tmp_path / "gone"]) == [log.size, 0]
    assert again.footprint(TOPIC_ID, 1) == 0
    assert list(again.loaded()) == []
