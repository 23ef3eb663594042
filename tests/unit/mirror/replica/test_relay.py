"""Requests of klamm itself to brokers of the target."""

from __future__ import annotations

import asyncio
import contextlib

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.mirror.replica.relay import OwnClient
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.metadata import MetadataResponse
from tests.support.stub_broker import SILENCE, StubBroker

METADATA, LIST_OFFSETS = 3, 2
SILENT, LIVE = 1, 2


def test_silent_broker_delays_no_request_to_another_one_also_after_its_client_has_left() -> None:
    with StubBroker(versions={LIST_OFFSETS: (1, 10)}) as silent, StubBroker(versions={LIST_OFFSETS: (1, 10)}) as live:
        metadata = MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=broker.port)
                for node_id, broker in ((SILENT, silent), (LIVE, live))
            ]
        )
        live.answer(METADATA, lambda _: metadata)
        silent.answer(LIST_OFFSETS, lambda _: SILENCE)
        live.answer(LIST_OFFSETS, lambda _: ListOffsetsResponse(throttle_time_ms=0))
        client = OwnClient(ConnectionSettings(bootstrap_servers=(live.bootstrap_servers,), client_id="klamm"))

        async def run() -> ListOffsetsResponse:
            waiting = [
                asyncio.create_task(client.ask(SILENT, ListOffsetsRequest(), ListOffsetsResponse)) for _ in range(2)
            ]
            await asyncio.to_thread(silent.wait_for, lambda: len(silent.requests(LIST_OFFSETS)) == len(waiting))
            waiting[0].cancel()
            async with asyncio.timeout(30):
                response = await client.ask(LIVE, ListOffsetsRequest(), ListOffsetsResponse)
            assert not waiting[1].done()
            waiting[1].cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            return response

        with contextlib.closing(client):
            assert asyncio.run(run()) == ListOffsetsResponse()
