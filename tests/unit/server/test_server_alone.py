"""A server without the broker: login, dispatch, metrics and the registry of clients, as a gateway would use them."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final, TypeVar

from klamm.monitoring.exposition import Page
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.codec import decode
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
        self._writer.write(request_frame(request, version, client_id="gate"))
        size = int.from_bytes(await self._reader.readexactly(4))
        reply = memoryview(await self._reader.readexactly(size))
        return decode(answer, version, reply, 4)

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


async def test_server_runs_without_the_broker() -> None:
    # given
    handlers = (api_017_sasl_handshake.ROUTE, api_036_sasl_authenticate.ROUTE, LIST_GROUPS)
    metrics = RequestMetrics({route.api.key: route for route in handlers})
    client_registry, traffic = ClientRegistry(now_ms=lambda: 0), Traffic()
    server, address = await serve(metrics, client_registry, traffic)
    client = Client(*await asyncio.open_connection(*address[:2]))
    # when
    shaken = await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
    token = SaslAuthenticateRequest(auth_bytes=b"\0anna\0secret")
    authenticated = await client.ask(token, SaslAuthenticateResponse, 1)
    listed = await client.ask(ListGroupsRequest(), ListGroupsResponse, 2)
    # then
    assert (shaken.error_code, authenticated.error_code) == (0, 0)
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
