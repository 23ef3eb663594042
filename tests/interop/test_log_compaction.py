"""Kafka's LogCompactionTester: after compaction, reads return the last value of every key."""

from __future__ import annotations

import re

import pytest

from tests.support.java import java_tool
from tests.support.klamm import KlammBroker

pytestmark = pytest.mark.usefixtures("java")


@pytest.mark.long
def test_kafkas_log_compaction_tester_finds_no_mismatch() -> None:
    """It waits 20 seconds for a last record that does not come."""
    quick = {
        "log.cleaner.backoff.ms": "100",
        "log.segment.bytes": "1048576",
        "log.cleaner.min.cleanable.ratio": "0.01",
    }
    with KlammBroker(quick) as broker:
        output = java_tool(
            "org.apache.kafka.tools.LogCompactionTester",
            *("--bootstrap-server", broker.bootstrap_servers),
            *("--messages", "100000", "--duplicates", "50", "--percent-deletes", "10"),
            *("--topics", "2", "--compression-type", "none", "--sleep", "2"),
            timeout_s=120,
        )
        assert "Compacted log-cleaner-test" in broker.log_path.read_text()
    assert "Data verification is completed" in output
    assert "0 mismatches" in output
    rows = re.search(r"(\d+) rows of data produced, (\d+) rows of data consumed", output)
    assert rows is not None
    assert int(rows[2]) < int(rows[1])  # how much is compacted before the tool reads depends on the machine
