"""Requests and responses of the running broker, in the form in which faults need them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

from klamm.lazy_dataclass import dataclass
from klamm.protocol.codec import decode, encode
from klamm.protocol.error_response import Exchange, PartKind, levels, response_class
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.schema import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from klamm.broker.context import RequestContext
    from klamm.broker.fetch.sessions import FetchSession
    from klamm.server.route import Piece, RawResponse, Response, Route

MESSAGE: Final = "Error injected by a test"
_FURTHER_REQUESTS: Final = (AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest)
"""Requests that share their API key with the request class of a route."""
_SERVED_ANYHOW: Final = (MetadataRequest, FetchRequest)
"""Requests that are served even if all their partitions get an injected error. Their responses also contain broker
addresses (Metadata) or the state of the fetch session (Fetch).
"""


def api_name(request: type[Message]) -> str:
    """Return Kafka's name of the API of a request."""
    return request.__name__.removesuffix("Request")


def served_requests(routes: Mapping[int, Route]) -> tuple[type[Message], ...]:
    """Return the request classes of all served APIs."""
    keys = set(routes)
    return (*(route.request for route in routes.values()), *(one for one in _FURTHER_REQUESTS if one.API_KEY in keys))


def filters_of(routes: Mapping[int, Route]) -> dict[str, frozenset[str]]:
    """Return the filters that each served API allows, by Kafka's name of the API."""
    return {api_name(request): _filters(request) for request in served_requests(routes)}


def _filters(request: type[Message]) -> frozenset[str]:
    kinds = {level.kind for level in levels(request, response_class(request), request.VERSIONS[1])}
    filters = {
        "topic": kinds & {PartKind.TOPIC, PartKind.RESOURCE},
        "partition": PartKind.PARTITION in kinds,
        "group_id": "group_id" in {field.name for field in request.FIELDS},
    }
    return frozenset(name for name, possible in filters.items() if possible)


def exchange_of(request: Message, context: RequestContext) -> Exchange:
    """Return the exchange of a request. A Fetch request in a session gets all partitions of the session."""
    topics = context.services.topics

    def name_of(topic_id: UUID) -> str | None:
        topic = topics.by_id(topic_id)
        return None if topic is None else topic.name

    if isinstance(request, FetchRequest):
        session = context.services.fetch_sessions.get(request.session_id)
        if session is not None and request.session_epoch > 0:
            request = _with_session(request, session)
    return Exchange(request=request, version=context.api_version, name_of=name_of, message=MESSAGE)


def _with_session(request: FetchRequest, session: FetchSession) -> FetchRequest:
    whole = copy.copy(request)
    whole.topics = list(request.topics)
    named = {(topic.topic_id, topic.topic, each.partition) for topic in request.topics for each in topic.partitions}
    for cached in session.partitions.values():
        if (cached.topic_id, cached.topic, cached.partition) not in named:
            wanted = FetchRequest.FetchPartition(partition=cached.partition)
            whole.topics.append(
                FetchRequest.FetchTopic(topic=cached.topic, topic_id=cached.topic_id, partitions=[wanted])
            )
    return whole


def must_be_served(request: Message) -> bool:
    """Return whether a request is served even if every part of it gets an error."""
    return isinstance(request, _SERVED_ANYHOW)


def at_once(request: Message) -> Message:
    """Return a Fetch request with ``max_wait_ms`` 0, so that a long poll does not delay the error; others unchanged."""
    if not isinstance(request, FetchRequest):
        return request
    hurried = copy.copy(request)
    hurried.max_wait_ms = 0
    return hurried


def as_message(response: Message | RawResponse, exchange: Exchange) -> Message:
    """Return a response as a message object."""
    if isinstance(response, Message):
        return response
    body = b"".join(_bytes_of(piece) for piece in response.buffers(exchange.version))
    return decode(exchange.response_class, exchange.version, body)


def _bytes_of(piece: Piece) -> bytes:
    return bytes(piece) if isinstance(piece, (bytes, bytearray, memoryview)) else piece.read(0, len(piece))


def as_response(message: Message, exchange: Exchange) -> Response:
    """Return a message in the form that the connection sends.

    An ApiVersions response with UNSUPPORTED_VERSION always has version 0 (KIP-511): a client cannot know which versions
    the broker serves.
    """
    if isinstance(message, FetchResponse):
        return _Encoded(message=message, version=exchange.version)
    if isinstance(message, ApiVersionsResponse) and message.error_code == ErrorCode.UNSUPPORTED_VERSION:
        return _Encoded(message=message, version=0)
    return message


@dataclass(slots=True, kw_only=True)
class _Encoded:
    """Response with a version of its own, or with records."""

    message: Any
    version: int

    @property
    def throttle_time_ms(self) -> int:
        return int(self.message.throttle_time_ms)

    @throttle_time_ms.setter
    def throttle_time_ms(self, value: int) -> None:
        self.message.throttle_time_ms = value

    def is_flexible(self, version: int) -> bool:
        return bool(self.message.is_flexible(version))

    def buffers(self, _version: int) -> Sequence[Piece]:
        return [encode(self.message, self.version)]

    def error_codes(self) -> Iterable[int]:
        return (self.message.error_code,)
