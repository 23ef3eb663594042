"""ListTransactions: the filter on the duration of a transaction uses the broker's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.broker.handlers.api_066_list_transactions import ROUTE
from klamm.broker.transactions.model import TransactionPartition
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tests.support.data_path import DataPath

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("duration_ms", "is_listed"), [(-1, True), (999, True), (1000, False)])
async def test_duration_filter_uses_the_brokers_clock(tmp_path: Path, *, duration_ms: int, is_listed: bool) -> None:
    broker = DataPath(tmp_path)

    await broker.transactions.start()
    producer = await broker.transactions.initialize("tx", timeout_ms=60_000, expected=None)
    partition = TransactionPartition(broker.topics.known["t"].topic_id, 0)
    await broker.transactions.add("tx", producer, partitions={partition})
    broker.clock.now_ms += 1000
    request = ListTransactionsRequest(duration_filter=duration_ms)
    answer = await broker.call(ROUTE, request, ListTransactionsResponse, 1)
    assert answer is not None
    assert [item.transactional_id for item in answer.transaction_states] == (["tx"] if is_listed else [])
