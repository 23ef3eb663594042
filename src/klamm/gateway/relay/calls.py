"""One request of a client as filters see it, and calls to the upstream over the client's own connection."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from klamm.gateway.frames.exchange import RelayedExchange
from klamm.gateway.frames.wire import decode_request, request_frame, response_body
from klamm.history.change import Author
from klamm.kafka_client.connection.connection import api_versions_request, negotiate, offered_versions, response_version
from klamm.kafka_client.errors import ConnectionLostError, UnreadableResponseError
from klamm.protocol.codec import decode
from klamm.protocol.error_response import response_class
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.server.codec import coded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.admin import AdminClient
    from klamm.gateway.frames.cutter import Piece
    from klamm.gateway.frames.peer import ConnectionWatch
    from klamm.gateway.frames.wire import RequestHead
    from klamm.gateway.relay.logins import ConnectionLogin
    from klamm.gateway.relay.open_relay import OpenRelay
    from klamm.gateway.relay.shared import Shared
    from klamm.protocol.schema import Message

AnyResponse = TypeVar("AnyResponse", bound="Message")


class RelayedCall:
    """One request of a client (see ``filter.FilterContext``).

    Args:
        shared: Objects that all relays share.
        relay: Relay of the connection.
        head: Header of the request.
        login: Login of the connection.
        frame: Frame of the request, and the position after the client id; None if it is not complete.
        response: Class of the response to ``forward``; None if the upstream must not be called.
        received: The decoded request, and its frame as received; None if the upstream must not be called.
        wait_result: Result of the work for which a filter has waited.
    """

    def __init__(
        self,
        shared: Shared,
        relay: OpenRelay,
        head: RequestHead,
        login: ConnectionLogin,
        *,
        frame: tuple[memoryview, int] | None = None,
        response: type[Message] | None = None,
        received: tuple[Message, memoryview] | None = None,
        wait_result: object = None,
    ) -> None:
        self.wait_result: Final = wait_result
        self.login: Final = login
        self._complete = frame
        self._received = received
        self._shared = shared
        self._relay = relay
        self._head = head
        self._response = response
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

    @property
    def served(self) -> Mapping[int, tuple[int, int]]:
        """First and last version of each API that the gateway serves."""
        return {key: (each.first_version, each.last_version) for key, each in self._shared.apis.items()}

    @property
    def supported_features(self) -> Mapping[str, tuple[int, int]]:
        """First and last version of the features that the gateway itself has, by name."""
        return {name: versions for each in self._shared.features for name, versions in each.supported_features.items()}

    @property
    def keep_versions(self) -> Callable[[Mapping[int, tuple[int, int]]], None]:
        """Function that stores the versions that the upstream offers. It does not refer to the request."""
        return self._relay.keep_versions

    def decode(self, request_class: type[AnyResponse]) -> AnyResponse:
        """Return the decoded request.

        Raises:
            ProtocolError: The request is malformed.
        """
        if self._complete is None:
            raise RuntimeError("The request is not complete")
        frame, body = self._complete
        request: AnyResponse = decode_request(request_class, self._head, frame, body)
        return request

    async def forward(self, request: Message) -> Any:
        """Send a request of the same API in the same version; return the response.

        The client's own request is sent as received, with all that the gateway cannot decode.

        Raises:
            ConnectionLostError: The connection broke.
        """
        if self._response is None:
            raise RuntimeError("Only the function of a Serve can call the upstream")
        return await self._send(request, self._response, self._head.api_version)

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
        """Return the versions that the upstream offers.

        They are requested only for a client that has sent no ApiVersions itself. The request replaces the name of the
        client's software at the upstream (KIP-511), by which a cluster may choose the metrics that clients push.
        """
        versions = self._relay.upstream_versions
        if versions is None:
            response = await self._offered(is_repeated=False)
            if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
                response = await self._offered(is_repeated=True)
            versions = offered_versions(response)
            self._relay.keep_versions(versions)
        return versions

    async def _offered(self, *, is_repeated: bool) -> Any:
        request, version = api_versions_request("gateway", is_repeated=is_repeated)
        return await self._send(request, response_class(type(request)), version)

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
        body = response_body(response_class, version, frame)
        return decode(response_class, response_version(response_class, version, frame, body), frame, body)
    except ProtocolError as error:
        raise UnreadableResponseError(str(error)) from error
