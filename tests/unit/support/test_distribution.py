"""Order in which the workers of pytest-xdist begin the files of tests."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

from tests.support.distribution import (
    BESIDE_SPARK,
    BROWSER,
    FIRST,
    KAFKA,
    LENT,
    SHARED,
    SLOWEST_OF_FAST,
    SPARK,
    FileScheduling,
)

ROOT = Path(__file__).resolve().parents[3]


def test_files_scheduled_first_exist() -> None:
    """A file that was renamed would be begun later than it should, and end after all others."""
    files = {*FIRST, *SLOWEST_OF_FAST, *BESIDE_SPARK} - {SHARED, KAFKA, LENT, SPARK, BROWSER}
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_worker_gets_fast_files_of_its_directory_then_of_others() -> None:
    files = ("admin/test_client.py", "admin/test_retries.py", "configs/test_brokers.py", "configs/test_operations.py")
    items = [f"tests/unit/{file}::{item}" for file in files for item in ("first", "last")]
    config = Mock(getvalue=lambda _: ["popen", "popen"], option=Mock(loadscopereorder=False))
    scheduling = FileScheduling(config, None)
    workers = [Mock(shutting_down=False), Mock(shutting_down=False)]
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, items)

    scheduling.schedule()
    sent = [[call.args[0] for call in worker.send_runtest_some.mock_calls] for worker in workers]
    scheduling.mark_test_complete(workers[1], 4)
    scheduling.mark_test_complete(workers[1], 5)
    scheduling.mark_test_complete(workers[1], 6)
    files_of_second = [call.args[0] for call in workers[1].send_runtest_some.mock_calls]

    assert sent == [[[0, 1]], [[4, 5]]]
    assert files_of_second == [[4, 5], [6, 7], [2, 3]]
