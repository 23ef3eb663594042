"""Nodes of a connection pool that are replaced while their connection is opening."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from unittest.mock import create_autospec

import pytest

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kafka_client.pool.calls import Deadline
from klamm.kafka_client.pool.node import NotReadyError, PooledConnection, PoolNode

if TYPE_CHECKING:
    from unittest.mock import Mock

ADDRESS = ("127.0.0.1", 9092)
SETTINGS = ConnectionSettings(
    bootstrap_servers=("127.0.0.1:9092",), client_id="c", reconnect_backoff_s=0.05, reconnect_backoff_max_s=0.05
)


def link() -> Mock:
    made: Mock = create_autospec(PooledConnection, instance=True, is_usable=True)
    return made


class Openings(list["asyncio.Future[PooledConnection]"]):
    """Connections that a node opens, oldest first."""

    def node(self) -> PoolNode:
        return PoolNode(ADDRESS, self._open, SETTINGS)

    def _open(self, host: str, port: int) -> asyncio.Future[PooledConnection]:
        self.append(asyncio.get_running_loop().create_future())
        return self[-1]


async def test_late_connection_to_discarded_node_is_closed() -> None:
    # given
    openings = Openings()
    node = openings.node()
    waiting = asyncio.create_task(node.link(Deadline(10_000)))
    await asyncio.sleep(0)
    # when
    node.discard()
    late = link()
    openings[0].set_result(late)
    await waiting
    # then
    late.lose.assert_called_once()


async def test_discarded_node_is_not_reconnected_after_backoff() -> None:
    # given
    openings = Openings()
    node = openings.node()
    failing = asyncio.create_task(node.link(Deadline(10_000)))
    await asyncio.sleep(0)
    openings[0].set_exception(ConnectionLostError("refused"))
    with pytest.raises(ConnectionLostError):
        await failing
    backing_off = asyncio.create_task(node.link(Deadline(10_000)))
    await asyncio.sleep(0)
    # when
    node.discard()
    # then
    with pytest.raises(NotReadyError, match="no longer at this address"):
        await backing_off
    assert len(openings) == 1


async def test_late_connection_replaces_an_adopted_one() -> None:
    # given
    openings = Openings()
    node, server = openings.node(), openings.node()
    waiting = [asyncio.create_task(each.link(Deadline(10_000))) for each in (node, server)]
    await asyncio.sleep(0)
    first, late = link(), link()
    openings[1].set_result(first)
    await waiting[1]
    # when
    node.take_over(server)
    server.disconnect()
    # then
    assert await node.link(Deadline(10_000)) is first
    # when
    openings[0].set_result(late)
    await waiting[0]
    # then
    assert await node.link(Deadline(10_000)) is late
    first.retire.assert_called_once()
    first.lose.assert_not_called()


async def test_take_over_retires_connection_with_expiring_login() -> None:
    # given
    openings = Openings()
    node, server = openings.node(), openings.node()
    waiting = [asyncio.create_task(each.link(Deadline(10_000))) for each in (node, server)]
    await asyncio.sleep(0)
    expiring, adopted = link(), link()
    openings[0].set_result(expiring)
    openings[1].set_result(adopted)
    await asyncio.gather(*waiting)
    expiring.is_usable = False
    # when
    node.take_over(server)
    # then
    assert await node.link(Deadline(10_000)) is adopted
    expiring.retire.assert_called_once()
