"""Sender of markers, with a connection that never answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from klamm.mirror.replay.producer import ReplayProducer
from klamm.protocol.messages.list_offsets import ListOffsetsRequest
from tests.support.copiers import copy_settings
from tests.unit.mirror.replay.test_partition import NOW, queue_hole, replay_copy

if TYPE_CHECKING:
    from klamm.mirror.copy.partition import PartitionCopy


class Sending:
    """A producer and a partition with a hole, whose markers are in flight."""

    def __init__(self, *, request_timeout_s: float) -> None:
        settings = copy_settings("h:1", "h:2", alias="A")
        settings = replace(settings, target=replace(settings.target, request_timeout_s=request_timeout_s))
        self.connection = Mock(closed=False)
        self.connection.version_of.return_value = 1
        self.connection.close.side_effect = lambda: setattr(self.connection, "closed", True)
        target = Mock()
        target.leader.return_value = 3
        target.connection.return_value = self.connection
        target.offsets_request.return_value = ListOffsetsRequest()
        self.copy = replay_copy()
        queue_hole(self.copy, 30)
        copies: dict[tuple[str, int], PartitionCopy] = {("t", 0): self.copy}
        self.producer = ReplayProducer(
            settings, target, copies, {**copies}, lambda: NOW, barrier_s=1.0, on_failed=lambda _: None
        )
        self.producer.send(NOW)

    def sweep(self, *, silent_s: float) -> str:
        """Let requests be in flight for an hour, and return why the copy must be discarded. Empty: it need not."""
        self.connection.oldest_wait_s.return_value = 3600.0
        self.connection.silent_s.return_value = silent_s
        self.producer.sweep(NOW)
        return self.copy.failure


@pytest.mark.parametrize("request_timeout_s", [30.0, 120.0])
def test_markers_fail_after_silence_for_the_request_timeout(request_timeout_s: float) -> None:
    sending = Sending(request_timeout_s=request_timeout_s)
    assert sending.sweep(silent_s=request_timeout_s + 9.0) == "", "a large request on a slow link takes long"
    assert sending.sweep(silent_s=request_timeout_s + 11.0) == "the connection to the target broke"
