"""Filter: what decides about the requests of an API that are not forwarded unread.

A filter gets the decoded request and returns a value, which the relay carries out:

=============  ====================================================  ==================================================
Result         Effect                                                Use
=============  ====================================================  ==================================================
``FORWARD``    The next filter of the API decides. After the last    Requests that the filter does not concern
               one, the bytes are forwarded as received.
``Forward``    The bytes or another message are forwarded; the       Logins, ApiVersions, an override of ``acks``
               response may be read or replaced.
``Divide``     Another message is forwarded, and its response is     A Produce request with a denied topic
               changed for the client.
``Reply``      The gateway responds.                                 A request that a policy denies
``Wait``       The filter is asked again when some work is done.     A policy whose decision is not cached
``Serve``      An asynchronous function responds. It may send any    The admin APIs, which a policy splits into parts
               number of requests upstream.
``Close``      The connection is closed, after a last response if    A failed login
               there is one.
=============  ====================================================  ==================================================

Only ``Wait`` and ``Serve`` keep the connection from reading its next request meanwhile. All other requests stay
pipelined, so a filter must not take longer than some microseconds.

Addresses in the response of ``Serve`` are rewritten after it returned it. It therefore sees the addresses of the
upstream brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from klamm.admin import AdminClient
    from klamm.gateway.frames.peer import ConnectionWatch
    from klamm.gateway.relay.logins import ConnectionLogin
    from klamm.history.change import Author
    from klamm.protocol.schema import Message
    from klamm.server.attempt import ApiError

AnyMessage = TypeVar("AnyMessage", bound="Message")


class FilterContext(Protocol):
    """One request of a client: facts about it, and the connections to the upstream."""

    @property
    def api_key(self) -> int:
        """API key of the request."""
        ...

    @property
    def api_version(self) -> int:
        """Version of the request and of its response."""
        ...

    @property
    def author(self) -> Author:
        """Principal and client id of the request. The principal is ``User:ANONYMOUS`` without a login."""
        ...

    @property
    def client_host(self) -> str:
        """IP address of the client."""
        ...

    @property
    def watch(self) -> ConnectionWatch | None:
        """Observer of the client's connection; None without one."""
        ...

    @property
    def login(self) -> ConnectionLogin:
        """Login of the client's connection."""
        ...

    @property
    def served(self) -> Mapping[int, tuple[int, int]]:
        """First and last version of each API that the gateway serves."""
        ...

    @property
    def supported_features(self) -> Mapping[str, tuple[int, int]]:
        """First and last version of the features that the gateway itself has, by name."""
        ...

    @property
    def keep_versions(self) -> Callable[[Mapping[int, tuple[int, int]]], None]:
        """Function that stores the versions that the upstream offers on this connection, for ``call``."""
        ...

    @property
    def wait_result(self) -> Any:
        """Result of ``Wait.work`` when a filter is asked for the second time; None at first."""
        ...

    @property
    def admin(self) -> AdminClient:
        """Admin client towards the upstream, with the gateway's own credentials. Await the results of its methods."""
        ...

    def decode(self, request_class: type[AnyMessage]) -> AnyMessage:
        """Return the decoded request, for filters that do not have every request decoded.

        Raises:
            ProtocolError: The request is malformed.
        """
        ...

    async def forward(self, request: Message) -> Any:
        """Send a request of this API, in the same version, and return the upstream's response. Only in ``Serve``.

        It is sent on the upstream connection of this client, so the upstream authorizes the client's principal. May be
        called any number of times. The client's own request, the very object, is sent byte for byte as it was
        received. Any other one is encoded, without unknown tagged fields.

        Raises:
            ConnectionLostError: The upstream closed the connection. Do not catch it: the client's connection is closed
                too, and the client retries.
        """
        ...

    async def call(self, request: Message, response_class: type[AnyMessage]) -> AnyMessage:
        """Send a request of any API, like ``forward``, in the highest version that both sides support.

        Raises:
            ConnectionLostError: As in ``forward``.
            UnsupportedVersionError: The upstream does not offer the API.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Forward the request."""

    request: Message | None = None
    """Message to forward; None to forward the bytes as received."""
    inspect: Callable[[Any], Message | None] | None = None
    """Takes the upstream's response; returns the response for the client, None to relay it as received."""


FORWARD: Final = Forward()
"""Leave the request to the next filter, or forward it as received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divide:
    """Forward another request, and change its response."""

    request: Message
    merge: Callable[[Any], Message]
    """Takes the upstream's response to ``request``; returns the response for the client. Synchronous."""
    kept_bytes: int = 0
    """Bytes that ``merge`` keeps until then, estimated. The gateway limits them for each connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Respond at once. A response to Produce with ``acks=0`` closes the connection instead, as in Kafka."""

    response: Message | ApiError
    """The response, or an error for everything that the request asks for."""
    version: int | None = None
    """Version of the response; None for that of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Ask the filter again after some work. No further request of the connection is read until then."""

    work: Callable[[], Awaitable[object]]
    """Returns what the filter gets as ``FilterContext.wait_result``."""
    kept_bytes: int = 0
    """Bytes that ``work`` and its result keep, estimated. The gateway limits them for all connections together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """Respond when an asynchronous function has returned the response. The next request is read after that."""

    handle: Callable[[Any, FilterContext], Awaitable[Message]]
    """Takes the decoded request and its context; returns the response to send. The request must not be changed. An
    exception other than ``ConnectionLostError`` is a defect: it is logged and closes the client's connection.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Send a last response after a delay, then close the connection."""

    response: Message
    delay_s: float


FilterResult: TypeAlias = Forward | Divide | Reply | Wait | Serve | Close


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Filter of the requests of one API."""

    request: type[Message] | None
    """Class of the request. None leaves it undecoded: ``decide`` gets None (see ``FilterContext.decode``)."""
    response: type[Message]
    decide: Callable[[Any, FilterContext], FilterResult]
    """Takes the request and its context. It must not use ``forward`` and ``call`` of the context."""
    claims: Callable[[memoryview], bool] | None = None
    """Takes the bytes after the client id of the request header; returns whether the request is for this filter. A
    claimed request must end at the end of its frame, unless ``ignores_rest``. None claims all requests.
    """
    ignores_rest: bool = False
    """Whether a claimed request may have further bytes, which Kafka ignores. librdkafka ends AlterUserScramCredentials
    with one section of tagged fields too many.
    """
    keeps_request: bool = False
    """Whether the request is used after ``decide`` has returned, so that it must not refer to the read buffer."""
    is_exclusive: bool = False
    """Whether a request waits for the responses to all earlier ones of its connection, as each does in a broker.
    Otherwise a client could let what the filter holds wait behind a long poll of its own.
    """
    response_version: Callable[[memoryview, int], int] | None = None
    """Takes the body of the upstream's response and the version of the request; returns the version of the response.
    None: it is that of the request.
    """

    @classmethod
    def serving(
        cls,
        request: type[Message],
        response: type[Message],
        handle: Callable[[Any, FilterContext], Awaitable[Message]],
        claims: Callable[[memoryview], bool] | None = None,
        *,
        ignores_rest: bool = False,
        is_exclusive: bool = False,
    ) -> Filter:
        """Return a filter whose result is always the same ``Serve``."""
        result = Serve(handle=handle)
        return cls(
            request=request,
            response=response,
            decide=lambda *_: result,
            claims=claims,
            ignores_rest=ignores_rest,
            keeps_request=True,
            is_exclusive=is_exclusive,
        )
