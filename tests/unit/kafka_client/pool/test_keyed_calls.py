"""Requests about several keys: brokers are asked at the same time, and the failure of one affects only its own keys."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from klamm.kafka_client.connection.security import Security
from klamm.kafka_client.errors import ConnectionLostError, SslAuthenticationFailedError
from klamm.kafka_client.pool.calls import Deadline
from klamm.kafka_client.pool.keyed_calls import KeyedCall
from klamm.protocol.errors import ErrorCode, KafkaApiError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.kafka_client.pool.keyed_calls import Ask
    from klamm.kafka_client.pool.pool import ConnectionPool

NODES = {"a": 1, "b": 2, "c": 2}
"""Node of each key."""


class LoadingError(KafkaApiError):
    """The coordinator answers later."""

    error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def outcomes(ask: Ask[str, int], *, limit_ms: int = 10_000) -> Mapping[str, int | Exception]:
    """Run a call for all keys and return their outcomes."""
    settled: dict[str, int | Exception] = {}

    async def find(keys: list[str]) -> Mapping[str, int]:
        return {key: NODES[key] for key in keys}

    async def back_off(*_: object) -> None:
        pass

    call = KeyedCall(what="Test", ask=ask, find=find, settle=settled.__setitem__)
    pool = cast("ConnectionPool", SimpleNamespace(security=Security(), back_off=back_off))
    asyncio.run(call.run(pool, Deadline(limit_ms), NODES))
    return settled


def test_unresponsive_broker_does_not_delay_the_requests_to_the_others() -> None:
    asked_second = asyncio.Event()

    async def ask(node_id: int | None, keys: list[str], attempt: Deadline) -> Mapping[str, int]:
        if node_id == 1:
            async with asyncio.timeout(attempt.left_s()):
                await asked_second.wait()
        else:
            asked_second.set()
        return dict.fromkeys(keys, 0)

    assert outcomes(ask, limit_ms=2_000) == {"a": 0, "b": 0, "c": 0}


@pytest.mark.parametrize(
    "error", [UnsupportedVersionError("no such API"), SslAuthenticationFailedError("certificate has expired")]
)
def test_permanent_error_of_one_broker_fails_only_its_keys(error: Exception) -> None:
    loading: list[KafkaApiError] = [LoadingError()]

    async def ask(node_id: int | None, keys: list[str], _: Deadline) -> Mapping[str, int | KafkaApiError]:
        if node_id == 1:
            raise error
        return {key: loading.pop() if key == "c" and loading else 0 for key in keys}

    assert outcomes(ask) == {"a": error, "b": 0, "c": 0}


def test_lost_connection_to_one_broker_is_retried() -> None:
    lost = [ConnectionLostError("gone")]

    async def ask(node_id: int | None, keys: list[str], _: Deadline) -> Mapping[str, int]:
        if node_id == 1 and lost:
            raise lost.pop()
        return dict.fromkeys(keys, 0)

    assert outcomes(ask) == {"a": 0, "b": 0, "c": 0}


def test_error_of_the_program_ends_the_call_after_all_requests() -> None:
    async def ask(node_id: int | None, keys: list[str], _: Deadline) -> Mapping[str, int]:
        if node_id == 1:
            raise ValueError("a name that no request can carry")
        return dict.fromkeys(keys, 0)

    with pytest.raises(ValueError, match="a name"):
        outcomes(ask)
