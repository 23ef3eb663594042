"""InitProducerId from bytes to bytes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from klamm.broker.handlers.api_022_init_producer_id import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.support.data_path import opened

if TYPE_CHECKING:
    from tests.support.data_path import DataPath

broker = pytest.fixture(opened)


@pytest.mark.parametrize("version", range(6))
def test_each_request_gets_a_new_producer_id(broker: DataPath, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)

    answers = [broker.ask(ROUTE, request, InitProducerIdResponse, version) for _ in range(2)]

    assert [(item.error_code, item.producer_id, item.producer_epoch) for item in answers] == [(0, 42, 0), (0, 43, 0)]


@pytest.mark.parametrize("version", range(6))
def test_transactional_id_keeps_its_producer_id_and_gets_the_next_epoch(broker: DataPath, version: int) -> None:
    asyncio.run(broker.transactions.start())
    request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000)

    answers = [broker.ask(ROUTE, request, InitProducerIdResponse, version) for _ in range(2)]

    assert [(item.error_code, item.producer_id, item.producer_epoch) for item in answers] == [(0, 42, 0), (0, 42, 1)]


@pytest.mark.parametrize(
    ("transactional_id", "timeout_ms", "code"),
    [
        ("", 1000, ErrorCode.INVALID_REQUEST),
        ("x", 0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("x", 900_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_empty_transactional_id_or_invalid_timeout_is_rejected(
    broker: DataPath, transactional_id: str, timeout_ms: int, code: ErrorCode
) -> None:
    asyncio.run(broker.transactions.start())
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)

    response = broker.ask(ROUTE, request, InitProducerIdResponse, 5)

    assert (response.error_code, response.producer_id, response.producer_epoch) == (code, -1, -1)


@pytest.mark.parametrize(("version", "code"), [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)])
def test_fenced_producer_gets_the_error_of_its_version(broker: DataPath, version: int, code: ErrorCode) -> None:
    asyncio.run(broker.transactions.start())
    request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000)
    for _ in range(3):
        broker.ask(ROUTE, request, InitProducerIdResponse, 5)

    request.producer_id, request.producer_epoch = 42, 0

    assert broker.ask(ROUTE, request, InitProducerIdResponse, version).error_code == code


def test_producer_id_without_epoch_is_rejected(broker: DataPath) -> None:
    request = InitProducerIdRequest(transactional_id=None, producer_id=5, producer_epoch=-1)

    assert broker.ask(ROUTE, request, InitProducerIdResponse, 5).error_code == ErrorCode.INVALID_REQUEST
