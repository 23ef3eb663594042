"""Interception of requests: the interface between the relay and the packages that judge or answer requests.

There are two ways to intercept an API. Both receive decoded messages.

==================  ==================================================  ==============================================
Class               Use                                                 Effect on the connection
==================  ==================================================  ==============================================
``Interceptor``     Requests that are split, answered in parts, or      The next request of the connection is read
                    judged by a policy: the admin APIs. Asynchronous.   after the response is complete, as in Kafka.
``RequestFilter``   Frequent requests: Produce, JoinGroup.              None: requests stay pipelined.
                    Synchronous, at most some microseconds. It may
                    postpone its decision (``Postponed``).
==================  ==================================================  ==============================================

Addresses in a response are rewritten after the interceptor returned it. An interceptor therefore sees the addresses of
the upstream brokers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from klamm.admin import AdminClient
    from klamm.gateway.frames.peer import ConnectionWatch, Peer
    from klamm.history.change import Author
    from klamm.monitoring.exposition import Page
    from klamm.policy_runtime import Policies
    from klamm.protocol.schema import Message
    from klamm.server.attempt import ApiError

AnyResponse = TypeVar("AnyResponse", bound="Message")


class InterceptedCall(Protocol):
    """Facts about one request, and the connections by which an interceptor reaches the upstream."""

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
    def learned(self) -> Any:
        """Result of ``Postponed.work`` when a filter judges a request for the second time; None at first."""
        ...

    @property
    def admin(self) -> AdminClient:
        """Admin client towards the upstream, with the gateway's own credentials. Await the results of its methods."""
        ...

    async def forward(self, request: Message) -> Any:
        """Send a request of the intercepted API, in the same version, and return the upstream's response.

        It is sent on the upstream connection of this client, so the upstream authorizes the client's principal. May be
        called any number of times. The request that the interceptor was given, the very object, is sent byte for byte
        as it was received. Any other one is encoded, without unknown tagged fields.

        Raises:
            ConnectionLostError: The upstream closed the connection. Do not catch it: the client's connection is closed
                too, and the client retries.
        """
        ...

    async def call(self, request: Message, response_class: type[AnyResponse]) -> AnyResponse:
        """Send a request of any API, like ``forward``, in the highest version that both sides support.

        Raises:
            ConnectionLostError: As in ``forward``.
            UnsupportedVersionError: The upstream does not offer the API.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Interceptor:
    """Asynchronous handler of all requests of one API."""

    request: type[Message]
    response: type[Message]
    handle: Callable[[Any, InterceptedCall], Awaitable[Message]]
    """Takes the decoded request and its context; returns the response to send. The request must not be changed. An
    exception other than ``ConnectionLostError`` is a defect: it is logged and closes the client's connection.
    """
    claims: Callable[[memoryview], bool] | None = None
    """Takes the bytes after the client id of the request header; returns whether the request is for this interceptor.
    Others with its API key are for ``otherwise``. A claimed request must end at the end of its frame. None claims all
    requests.
    """
    otherwise: Interceptor | None = None
    """Interceptor of requests with the same API key that are not claimed. None forwards them unread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedRequest:
    """Request to forward in place of another one, with a change of its response."""

    request: Message
    merge: Callable[[Any], Message]
    """Takes the upstream's response to ``request``; returns the response for the client. Synchronous."""
    kept_bytes: int = 0
    """Bytes that ``merge`` keeps until then, estimated. The gateway limits them for each connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postponed:
    """Decision of a filter that needs time. No further request of the connection is read until it is made."""

    work: Callable[[], Awaitable[object]]
    """Returns what the filter finds as ``InterceptedCall.learned`` when it judges the same request again."""
    kept_bytes: int = 0
    """Bytes that ``work`` and its result keep, estimated. The gateway limits them for all connections together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """Synchronous judge of all requests of one API."""

    request: type[Message]
    response: type[Message]
    judge: Callable[[Any, InterceptedCall], Message | DividedRequest | Postponed | ApiError | None]
    """Takes the decoded request and its context, whose ``forward`` and ``call`` must not be used. Returns None to
    forward the bytes as received, another message of class ``request`` to forward that one, a ``DividedRequest`` to
    change the response too, a message of class ``response`` to answer at once, or an error for all parts of the
    request. A response to Produce with ``acks=0``
    closes the connection instead, as in Kafka. ``Postponed`` has the request judged again later.
    """


async def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Interception:
    """All interceptors and filters of a gateway by API key. A filter is asked before the interceptor of its API."""

    interceptors: Mapping[int, Interceptor] = field(default_factory=lambda: MappingProxyType({}))
    filters: Mapping[int, RequestFilter] = field(default_factory=lambda: MappingProxyType({}))
    withheld: frozenset[int] = frozenset()
    """API keys left out of ApiVersions, because their requests would bypass the interceptors."""
    report: Callable[[Page], None] = lambda _: None
    """Adds metrics to the gateway's page."""
    warnings: Callable[[], Sequence[str]] = tuple
    """Returns warnings for the gateway's page."""
    limits: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Highest version to offer in ApiVersions, by API key. Keys that are missing have no such limit."""
    reload: Callable[[], None] = lambda: None
    """Reloads the policies, as on SIGHUP."""
    admit: Callable[[InterceptedCall], ApiError | Postponed | None] | None = None
    """Judges the client id of the first request on a connection, and each further client id, before any filter. The
    context is that of a filter. Returns the error for a client that must not be served. None admits all.
    """
    admits_by_api: bool = False
    """Whether ``admit`` judges every request after the login, but Metadata and ApiVersions, for its API."""
    watch: Callable[[Peer], ConnectionWatch] | None = None
    """Creates the observer of a client connection. None costs nothing."""
    features: Mapping[str, tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    """Lowest and highest version of features to add to ApiVersions, by name."""
    policies: Policies | None = None
    """Policies that judge requests; None if there are none."""
    clients: Callable[[], Awaitable[list[dict[str, Any]]]] | None = None
    """Returns the known clients as JSON objects (``/clients.json``); None without client configs."""
    start: Callable[[AdminClient], Awaitable[None]] = _nothing
    """Called before the gateway listens, with its own admin client. The upstream may be unreachable."""
    why_not_ready: Callable[[], str | None] = lambda: None
    """Returns why clients should not connect at present; None when they may."""
    close: Callable[[], Awaitable[None]] = _nothing
    """Called when the gateway stops, after the last connection was closed."""


def merged(one: Interception, other: Interception) -> Interception:
    """Return an interception that does the work of both. At most one of them may watch connections."""

    async def start(admin: AdminClient) -> None:
        await one.start(admin)
        await other.start(admin)

    async def close() -> None:
        await one.close()
        await other.close()

    def report(page: Page) -> None:
        one.report(page)
        other.report(page)

    def reload() -> None:
        one.reload()
        other.reload()

    return Interception(
        interceptors={**one.interceptors, **other.interceptors},
        filters={**one.filters, **other.filters},
        withheld=one.withheld | other.withheld,
        report=report,
        warnings=lambda: [*one.warnings(), *other.warnings()],
        limits={**one.limits, **other.limits},
        reload=reload,
        admit=one.admit or other.admit,
        admits_by_api=one.admits_by_api or other.admits_by_api,
        watch=one.watch or other.watch,
        features={**one.features, **other.features},
        policies=one.policies or other.policies,
        clients=one.clients or other.clients,
        start=start,
        why_not_ready=lambda: one.why_not_ready() or other.why_not_ready(),
        close=close,
    )


NO_INTERCEPTION = Interception()
