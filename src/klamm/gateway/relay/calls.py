"""Context of one intercepted request: its facts, and calls to the upstream over the client's own connection."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from klamm.gateway.frames.exchange import RelayedExchange
from klamm.gateway.frames.wire import request_frame, response_body
from klamm.history.change import Author
from klamm.kafka_client.connection.connection import negotiate
from klamm.kafka_client.errors import ConnectionLostError, UnreadableResponseError
from klamm.protocol.codec import decode
from klamm.protocol.errors import ProtocolError
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.server.codec import coded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.admin import AdminClient
    from klamm.gateway.frames.cutter import Piece
    from klamm.gateway.frames.peer import ConnectionWatch
    from klamm.gateway.frames.wire import RequestHead
    from klamm.gateway.relay.interceptors import Interceptor
    from klamm.gateway.relay.shared import OpenRelay, Shared
    from klamm.protocol.schema import Message

AnyResponse = TypeVar("AnyResponse", bound="Message")

_API_VERSIONS_VERSION: Final = 3


class InterceptedRequest:
    """Context of one intercepted request (see ``interceptors.InterceptedCall``).

    Args:
        shared: Objects that all relays share.
        relay: Relay of the connection.
        head: Header of the request.
        interceptor: Interceptor that handles the request; None for a filter, which must not call the upstream.
        received: The decoded request, and its frame as received; None for a filter.
        learned: Result of the work for which a filter postponed its decision.
    """

    def __init__(
        self,
        shared: Shared,
        relay: OpenRelay,
        head: RequestHead,
        interceptor: Interceptor | None = None,
        *,
        received: tuple[Message, memoryview] | None = None,
        learned: object = None,
    ) -> None:
        self.learned: Final = learned
        self._received = received
        self._shared = shared
        self._relay = relay
        self._head = head
        self._interceptor = interceptor
        self._waiting: set[asyncio.Future[memoryview]] = set()
        self.longest = 0 if received is None else len(received[1])
        """Size in bytes of the longest frame so far. A message that is made from it is about as long."""

    @property
    def api_key(self) -> int:
        """API key of the request."""
        return self._head.api_key

    @property
    def api_version(self) -> int:
        """Version of the request and of its response."""
        return self._head.api_version

    @property
    def author(self) -> Author:
        """Principal and client id of the request, and the gateway's listener."""
        return Author(
            principal=self._relay.peer.principal, client_id=self._head.client_id, listener=self._shared.listener
        )

    @property
    def client_host(self) -> str:
        """IP address of the client."""
        return self._relay.peer.host

    @property
    def watch(self) -> ConnectionWatch | None:
        """Observer of the client's connection."""
        return self._relay.peer.watch

    @property
    def admin(self) -> AdminClient:
        """Admin client towards the upstream, with the gateway's own credentials."""
        return self._shared.admin

    async def forward(self, request: Message) -> Any:
        """Send a request of the intercepted API in the same version; return the response.

        The client's own request is sent as received, with all that the gateway cannot decode.

        Raises:
            ConnectionLostError: The connection broke.
        """
        if self._interceptor is None:
            raise RuntimeError("A filter cannot call the upstream")
        return await self._send(request, self._interceptor.response, self._head.api_version)

    async def call(self, request: Message, response_class: type[AnyResponse]) -> AnyResponse:
        """Send a request of any API in the highest version that both sides support; return the response.

        Raises:
            ConnectionLostError: The connection broke.
            UnsupportedVersionError: The upstream does not offer the API.
        """
        version = negotiate(type(request), await self._versions())
        return await self._send(request, response_class, version)

    def lose(self) -> None:
        """Fail the calls in flight, because the connection is closed."""
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(ConnectionLostError("The connection was closed"))
                answer.exception()  # asyncio would otherwise log the errors of calls that are not awaited

    async def _versions(self) -> Mapping[int, tuple[int, int]]:
        if self._relay.upstream_versions is None:
            request = ApiVersionsRequest(client_software_name="klamm", client_software_version="gateway")
            response = await self._send(request, ApiVersionsResponse, _API_VERSIONS_VERSION)
            self._relay.upstream_versions = {
                api.api_key: (api.min_version, api.max_version) for api in response.api_keys
            }
        return self._relay.upstream_versions

    async def _frame(self, request: Message, version: int) -> bytes | memoryview:
        if self._received is not None and request is self._received[0]:
            return self._received[1]
        work = partial(request_frame, request, version, self._head.correlation_id, self._head.client_id)
        return await coded(work, self.longest)

    async def _send(self, request: Message, response_class: type[AnyResponse], version: int) -> AnyResponse:
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()

        def on_response(frame: memoryview) -> Sequence[Piece]:
            if not answer.done():
                answer.set_result(memoryview(bytes(frame)))  # the response outlives this callback
            return ()

        exchange = RelayedExchange(self._head.correlation_id, on_response, is_call=True)
        self._waiting.add(answer)
        try:
            self._relay.send_upstream(await self._frame(request, version), exchange)
            received = await answer
        finally:
            self._waiting.discard(answer)
        self.longest = max(self.longest, len(received))
        return await coded(partial(_decoded, response_class, version, received), len(received))


def _decoded(response_class: type[AnyResponse], version: int, frame: memoryview) -> AnyResponse:
    try:
        return decode(response_class, version, frame, response_body(response_class, version, frame))
    except ProtocolError as error:
        raise UnreadableResponseError(str(error)) from error
