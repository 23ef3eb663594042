"""ListTransactions: its filters, and many transactional ids."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from klamm.broker.handlers.api_066_list_transactions import ROUTE
from klamm.broker.transactions.model import TransactionPartition
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from klamm.server.time_slice import TimeSlice
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


class UnscannedIds(list[int]):
    """Producer ids of a filter, which may be too many to be scanned for each transaction."""

    def __contains__(self, _: object) -> bool:
        raise AssertionError


async def test_many_transactions_are_filtered_with_pauses_for_other_requests(tmp_path: Path) -> None:
    broker = DataPath(tmp_path)
    await broker.transactions.start()
    producers = [await broker.transactions.initialize(f"tx-{at}", timeout_ms=9, expected=None) for at in range(70)]
    request = ListTransactionsRequest(
        producer_id_filters=UnscannedIds([producer.producer_id for producer in producers[1:]]), duration_filter=-1
    )
    context = replace(broker.context(1), time_slice=TimeSlice(0))

    response = await ROUTE.handle(request, context)

    assert isinstance(response, ListTransactionsResponse)
    listed = [item.producer_id for item in response.transaction_states]
    assert listed
    assert set(listed) <= {producer.producer_id for producer in producers[1:]}  # those of this broker id
    assert context.time_slice.pauses >= len(producers)
