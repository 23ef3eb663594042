"""InitProducerId from bytes to bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.broker.handlers.api_022_init_producer_id import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.support.data_path import DataPath

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def broker(tmp_path: Path) -> DataPath:
    return DataPath(tmp_path)


@pytest.mark.parametrize("version", range(6))
def test_each_request_gets_an_id_of_its_own(broker: DataPath, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)

    answers = [broker.ask(ROUTE, request, InitProducerIdResponse, version) for _ in range(2)]

    assert [(item.error_code, item.producer_id, item.producer_epoch) for item in answers] == [(0, 42, 0), (0, 43, 0)]


@pytest.mark.parametrize("transactional_id", ["", "x"])
def test_transactional_ids_are_refused_and_told(
    broker: DataPath, transactional_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    response = broker.ask(ROUTE, InitProducerIdRequest(transactional_id=transactional_id), InitProducerIdResponse, 5)

    assert (response.error_code, response.producer_id, response.producer_epoch) == (ErrorCode.INVALID_REQUEST, -1, -1)
    assert "there are no transactions here" in caplog.text


def test_an_id_without_an_epoch_is_refused(broker: DataPath) -> None:
    request = InitProducerIdRequest(transactional_id=None, producer_id=5, producer_epoch=-1)

    assert broker.ask(ROUTE, request, InitProducerIdResponse, 5).error_code == ErrorCode.INVALID_REQUEST
