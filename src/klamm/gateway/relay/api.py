"""One API as the relay serves it. ``gateway.apis`` has the APIs themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from klamm.lazy_dataclass import dataclass
from klamm.protocol.error_response import error_response, request_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from klamm.gateway.frames.addresses import AddressCarrier
    from klamm.gateway.frames.peer import ConnectionWatch
    from klamm.gateway.frames.wire import RequestHead
    from klamm.gateway.relay.features import Feature
    from klamm.gateway.relay.filter import Filter
    from klamm.protocol.errors import ErrorCode
    from klamm.protocol.schema import Message
    from klamm.server.attempt import ApiError

PatchRequest: TypeAlias = "Callable[[ConnectionWatch, RequestHead, memoryview, int], None]"
PatchResponse: TypeAlias = "Callable[[ConnectionWatch, str | None, memoryview], None]"


class AcksField(NamedTuple):
    """Access to ``acks`` of a request that has no response if it is 0, and check of a response after it was raised."""

    read: Callable[[memoryview, int, int], tuple[int, int]]
    """Takes the first bytes of a frame, the version and the position after the client id; returns ``acks`` and the
    position after it. IndexError, struct.error: the bytes end before it.
    """
    put: Callable[[memoryview, int, int], None]
    """Takes the bytes of a frame, the position after ``acks``, and the acks to write there."""
    check_response: Callable[[memoryview, int], None]
    """Takes a response frame and its version. ProtocolError: the response reports an error, or is malformed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedApi:
    """An API: its versions, and all in which it differs from one that is forwarded unread."""

    key: int
    versions: tuple[int, int]
    """First and last version. It carries no broker address, or ``addresses`` replaces it."""
    announces_all: bool = False
    """Whether versions that a filter cannot decode are announced nevertheless. Their requests close the connection."""
    carries_records: bool = False
    """Whether ``--admin-only`` leaves the API out."""
    gives_identity: bool = False
    """Whether the API is left out when the gateway logs in itself: a delegation token that a client gets by the
    gateway's own login would make the client the gateway. It could log in at the brokers with it, past the gateway.
    """
    is_before_login: bool = False
    """Whether the API is served before the login."""
    changes_principal: bool = False
    is_always_admitted: bool = False
    """Whether the API is served whatever the client id is."""
    answers_any_version: bool = False
    """Whether the filter responds to versions that are not served."""
    has_two_requests: bool = False
    """Whether two kinds of requests have this key (KIP-649), so that none is decoded to be rejected."""
    filter: Filter | None = None
    """Filter that every gateway has."""
    addresses: AddressCarrier | None = None
    acks: AcksField | None = None
    patch_request: PatchRequest | None = None
    """Writes enforced values into the whole frame of a request."""
    patch_response: PatchResponse | None = None
    """Writes enforced values into a response frame."""
    is_heartbeat: bool = False
    """Whether the time between two requests is the client's heartbeat interval."""
    rejected_with: Callable[[Any], ErrorCode | None] = lambda _: None
    """Takes a request; returns the error that clients understand in place of POLICY_VIOLATION."""
    rejected_pause_ms: int = 0
    """Throttle time in milliseconds in the response to a rejected request."""

    def rejection(self, request: Message, api_version: int, error: ApiError) -> Message | None:
        """Return the response that rejects a request; None if no response can report the error."""
        code = self.rejected_with(request) or error.error_code
        response = error_response(request, api_version, code, error.error_message)
        if self.rejected_pause_ms and response is not None:
            response.throttle_time_ms = self.rejected_pause_ms  # type: ignore[attr-defined]  # APIs with a pause have it
        return response

    @property
    def rejected_request(self) -> type[Message] | None:
        """Class of the requests that can be rejected; None if they cannot be decoded."""
        return None if self.has_two_requests else request_class(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """An API as one gateway serves it, by its settings."""

    api: RelayedApi
    first_version: int
    last_version: int
    filters: tuple[Filter, ...]
    """Filters of the API, in the order in which they decide. Empty if no filter decides about its requests."""
    is_exclusive: bool = False
    """Whether the filters are asked only once no other request of the connection is in flight."""


def serve(
    apis: Iterable[RelayedApi],
    features: Sequence[Feature] = (),
    *,
    admin_only: bool = False,
    terminates: bool = False,
) -> Mapping[int, ServedApi]:
    """Return the APIs that a gateway serves, by key.

    Args:
        apis: All APIs.
        features: Features of the gateway.
        admin_only: Whether to leave out the APIs that carry records.
        terminates: Whether logins end at the gateway.
    """
    served: dict[int, ServedApi] = {}
    for api in apis:
        if (admin_only and api.carries_records) or (terminates and api.gives_identity):
            continue
        if any(api.key in feature.withheld for feature in features):
            continue
        first, last = api.versions
        last = min([last, *(each.last_versions[api.key] for each in features if api.key in each.last_versions)])
        own = () if api.filter is None else (api.filter,)
        filters = (*own, *(each.filters[api.key] for each in features if api.key in each.filters))
        if not api.announces_all:
            decoded = (each.request for each in filters if each.request is not None and each.claims is None)
            first = max([first, *(request.VERSIONS[0] for request in decoded)])
        is_exclusive = any(each.is_exclusive for each in filters)
        served[api.key] = ServedApi(
            api=api, first_version=first, last_version=last, filters=filters, is_exclusive=is_exclusive
        )
    return served
