"""Nodes of real Kafka that tests start and remove."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.support import kafka
from tests.support.kafka import KafkaCluster, KafkaNode

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.process
def test_removed_broker_is_stopped_if_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaNode, "command", lambda _: ["sleep", "60"])
    monkeypatch.setattr(kafka, "_formatted_directory", lambda _: tmp_path)
    monkeypatch.setattr(kafka, "_unregister", lambda *_: True)
    cluster = KafkaCluster()
    with contextlib.ExitStack() as stack:
        stack.push(cluster)
        with cluster.another_broker() as node:
            cluster.remove(node)
            # when
            node.launch()
        # then
        is_running = node.is_running
        if is_running:
            node.kill()
        assert not is_running
