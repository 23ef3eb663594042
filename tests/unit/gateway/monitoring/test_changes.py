"""Latest changes of the histories of gateways, for the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.plan import ClientConfigChange
from klamm.clock import wall_clock_ms
from klamm.gateway.client_configs.config_log import HISTORY_TOPIC, history_records
from klamm.gateway.history.log import TOPIC, change_record
from klamm.gateway.history.recorded_api import Change
from klamm.gateway.monitoring.changes import CHANGES_KEPT_S, LatestChanges
from klamm.history.change import Author
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.page.changes import MAX_CHANGES

if TYPE_CHECKING:
    from klamm.protocol.records import Record

pytestmark = pytest.mark.process

START_MS = wall_clock_ms() - 1_000_000
ALICE = Author(principal="User:alice", client_id="tool")


def produce(broker: klamm.Broker, topic: str, record: Record) -> None:
    broker.produce(topic, record.value, key=record.key, timestamp=record.timestamp)


def record_of(number: int) -> Record:
    change = Change(resource=f"TOPIC:orders-{number}", name="retention.ms", old=None, new=str(number))
    return change_record(change, ALICE, "127.0.0.1", at_ms=START_MS + number * 1000)


def test_latest_changes_of_both_histories_are_shown_newest_first_and_kept_for_a_while() -> None:
    now = 0.0
    with klamm.Broker(control=True, topics=[TOPIC]) as broker:
        for number in range(1, 151):
            produce(broker, TOPIC, record_of(number))
        settings = ConnectionSettings.of((broker.bootstrap_servers,), {}, "tests")
        changes = LatestChanges(settings, [TOPIC, HISTORY_TOPIC], now=lambda: now)

        async def latest() -> list[str]:
            return [change.resource for change in await changes.latest()]

        async def read_changes() -> None:
            nonlocal now
            # when: one topic does not exist
            assert await latest() == [f"TOPIC:orders-{number}" for number in range(150, 150 - MAX_CHANGES, -1)]
            # when: a change of client configs, and one that another gateway wrote late
            entity = ClientConfigEntity.of_user("billing")
            change = ClientConfigChange(entity=entity, name="acks", old=None, new="all")
            (entry,) = history_records([(change, ALICE)], at_ms=START_MS + 149_500)
            broker.create_topic(HISTORY_TOPIC)
            produce(broker, HISTORY_TOPIC, entry)
            produce(broker, TOPIC, record_of(142))
            assert (await latest())[0] == "TOPIC:orders-150"
            now = CHANGES_KEPT_S
            assert await latest() == [
                "TOPIC:orders-150",
                str(entity),
                *(f"TOPIC:orders-{number}" for number in range(149, 141, -1)),
            ]
            # when: the upstream is down
            await asyncio.to_thread(broker.stop)
            now = 2 * CHANGES_KEPT_S
            assert (await latest())[0] == "TOPIC:orders-150"
            assert changes.failure is not None
            await changes.close()

        asyncio.run(read_changes())
