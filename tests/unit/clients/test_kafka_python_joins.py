"""Joins of kafka-python's consumer that complete between two polls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from kafka.errors import RebalanceInProgressError
from kafka.future import Future

from klamm.clients.kafka_python import _Joins


@pytest.fixture
def coordinator() -> Any:
    """A consumer whose join is in flight, and which kafka-python would not repeat: nothing requests it any more."""
    return SimpleNamespace(
        config={"session_timeout_ms": 10_000},
        group_protocols=lambda: [],
        request_rejoin=Mock(),
        rejoining=True,
        _join_task=Future(),
        _net=Mock(),
    )


def test_join_that_failed_between_polls_is_repeated(coordinator: Any) -> None:
    joins = _Joins(coordinator)
    coordinator._join_task.failure(RebalanceInProgressError("g"))
    joins.catch_up()
    coordinator.request_rejoin.assert_called_once_with()


def test_join_that_succeeded_between_polls_is_finished(coordinator: Any) -> None:
    joins = _Joins(coordinator)
    coordinator._join_task.success(b"assignment")
    joins.catch_up()
    coordinator._net.run.assert_called_once_with(joins._finish, b"assignment")
    coordinator.request_rejoin.assert_not_called()


def test_join_in_flight_is_not_touched(coordinator: Any) -> None:
    _Joins(coordinator).catch_up()
    coordinator.request_rejoin.assert_not_called()
    coordinator._net.run.assert_not_called()
