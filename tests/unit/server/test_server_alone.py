"""A server without the broker: login, dispatch, metrics and the registry of clients, as a gateway would use them."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final, TypeVar
from unittest.mock import create_autospec

from klamm.monitoring.exposition import Page
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.security.sasl import PLAIN_MODULE
from klamm.server.client_registry import ClientRegistry
from klamm.server.connection import Traffic
from klamm.server.connection_limits import ConnectionLimits
from klamm.server.context import HandlerContext
from klamm.server.handlers import api_017_sasl_handshake, api_036_sasl_authenticate
from klamm.server.listeners import parse_listeners
from klamm.server.metrics import RequestMetrics
from klamm.server.quotas.throttles import Throttles
from klamm.server.route import Route
from klamm.server.security.endpoints import open_endpoint
from klamm.server.server import Server
from tests.support.quotas import NoQuotas
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from klamm.protocol.schema import Message

NODE: Final = 7
CONFIGS: Final = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_anna="secret";',
}
Answer = TypeVar("Answer", bound="Message")


async def list_groups(request: ListGroupsRequest, context: HandlerContext) -> ListGroupsResponse:
    """Answer with the name of the principal."""
    group = ListGroupsResponse.ListedGroup(group_id=context.author.principal, protocol_type="consumer")
    return ListGroupsResponse(groups=[group])


LIST_GROUPS: Final = Route(
    api=Api(key=ApiKey.LIST_GROUPS, min_version=0, max_version=2), request=ListGroupsRequest, handle=list_groups
)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, request: Message, answer: type[Answer], version: int) -> Answer:
        self.send(request, version)
        size = int.from_bytes(await self._reader.readexactly(4))
        reply = memoryview(await self._reader.readexactly(size))
        return decode(answer, version, reply, 4)

    def send(self, request: Message, version: int) -> None:
        self._writer.write(request_frame(request, version, client_id="gate"))

    def close(self) -> None:
        self._writer.close()


async def serve(
    metrics: RequestMetrics, client_registry: ClientRegistry, traffic: Traffic
) -> tuple[Server, tuple[Any, ...]]:
    (listener,) = parse_listeners("SASL_PLAINTEXT://127.0.0.1:0", advertised=None, configs=CONFIGS, count=1)
    server = Server(
        new_context=HandlerContext,
        routes=metrics.routes,
        limits=ConnectionLimits(lambda _: None),
        throttles=Throttles(NoQuotas(), lambda _: None),
        client_registry=client_registry,
        max_idle_ms=lambda: 0,
        traffic=traffic,
    )
    sock = socket.create_server(("127.0.0.1", 0))
    server.listen(open_endpoint(listener, CONFIGS, lambda user, mechanism: None), {NODE: sock})
    return server, sock.getsockname()


async def log_in(client: Client) -> tuple[int, int]:
    """Return the error codes of the two steps."""
    shaken = await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
    token = SaslAuthenticateRequest(auth_bytes=b"\0anna\0secret")
    authenticated = await client.ask(token, SaslAuthenticateResponse, 1)
    return shaken.error_code, authenticated.error_code


async def test_server_runs_without_the_broker() -> None:
    # given
    handlers = (api_017_sasl_handshake.ROUTE, api_036_sasl_authenticate.ROUTE, LIST_GROUPS)
    metrics = RequestMetrics({route.api.key: route for route in handlers})
    client_registry, traffic = ClientRegistry(now_ms=lambda: 0), Traffic()
    server, address = await serve(metrics, client_registry, traffic)
    client = Client(*await asyncio.open_connection(*address[:2]))
    # when
    codes = await log_in(client)
    listed = await client.ask(ListGroupsRequest(), ListGroupsResponse, 2)
    # then
    assert codes == (0, 0)
    assert [group.group_id for group in listed.groups] == ["User:anna"]
    assert [(client.principal, client.client_id, client.connections) for client in client_registry.clients()] == [
        ("User:anna", "gate", 1)
    ]
    page = Page()
    metrics.write(page, connections=server.connection_count, traffic=traffic)
    assert 'klamm_requests_total{api="LIST_GROUPS"} 1' in page.text()
    assert traffic.received_bytes > 0
    # cleanup
    client.close()
    await server.close(grace_s=5)


async def test_error_codes_of_partitions_are_counted_under_each_of_their_names() -> None:
    """AddPartitionsToTxn has ``partition_error_code``, where other responses have ``error_code``."""
    rejected = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(partition_error_code=47)
    topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(results_by_partition=[rejected])

    async def add(_: AddPartitionsToTxnRequest, __: HandlerContext) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])

    api = Api(key=ApiKey.ADD_PARTITIONS_TO_TXN, min_version=0, max_version=3)
    metrics = RequestMetrics({api.key: Route(api=api, request=AddPartitionsToTxnRequest, handle=add)})
    await metrics.routes[api.key].handle(AddPartitionsToTxnRequest(), create_autospec(HandlerContext, instance=True))
    page = Page()
    metrics.write(page, connections=0, traffic=Traffic())
    assert 'klamm_request_errors_total{api="ADD_PARTITIONS_TO_TXN",error="INVALID_PRODUCER_EPOCH"} 1' in page.text()


async def test_close_waits_for_received_requests_only() -> None:
    """A consumer that polls all the time would otherwise keep its connection, and the server, until the grace ends."""
    # given: a request in progress
    served: list[None] = []
    started, release = asyncio.Event(), asyncio.Event()

    async def wait(_: ListGroupsRequest, __: HandlerContext) -> ListGroupsResponse:
        served.append(None)
        started.set()
        await release.wait()
        return ListGroupsResponse(groups=[ListGroupsResponse.ListedGroup(group_id="g" * 1_000)] * 8_000)

    slow = Route(api=LIST_GROUPS.api, request=ListGroupsRequest, handle=wait)
    handlers = (api_017_sasl_handshake.ROUTE, api_036_sasl_authenticate.ROUTE, slow)
    metrics = RequestMetrics({route.api.key: route for route in handlers})
    server, address = await serve(metrics, ClientRegistry(now_ms=lambda: 0), Traffic())
    client = Client(*await asyncio.open_connection(*address[:2]))
    await log_in(client)
    asking = asyncio.create_task(client.ask(ListGroupsRequest(), ListGroupsResponse, 2))
    await started.wait()
    # when: another one arrives after the server began to close
    closing = asyncio.create_task(server.close(grace_s=30))
    await asyncio.sleep(0)
    client.send(ListGroupsRequest(), 2)
    for _ in range(50):  # so that it would be received
        await asyncio.sleep(0)
    release.set()
    # then
    assert len((await asking).groups) == 8_000  # the server must not reset the connection because of the other one
    await asyncio.wait_for(closing, 10)
    assert len(served) == 1
    client.close()
