"""Admission of the requests of one connection: by their client id once, and by their API each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.gateway.frames.cutter import NEED, STOP
from klamm.gateway.relay.current_request import ReceivedRequest, decodable, rejected
from klamm.gateway.relay.filter import Wait
from klamm.gateway.relay.forwarding import has_response

if TYPE_CHECKING:
    from klamm.gateway.frames.cutter import Cut
    from klamm.gateway.frames.wire import RequestHead
    from klamm.gateway.relay.api import RelayedApi
    from klamm.gateway.relay.current_request import CurrentRequest
    from klamm.gateway.relay.shared import Shared
    from klamm.server.attempt import ApiError


class ClientAdmission:
    """Admission of the requests of one connection.

    Args:
        shared: Objects that all relays share.
        current: The request that the gateway works at.
    """

    def __init__(self, shared: Shared, current: CurrentRequest) -> None:
        features = shared.features
        self._admit = next((each.admit for each in features if each.admit is not None), None)
        self._admit_request = next((each.admit_request for each in features if each.admit_request is not None), None)
        self._counts = shared.figures.requests
        self._current = current
        self._client: tuple[str | None, ApiError | None] | None = None
        """Latest client id that was decided on, and the error with which it is rejected."""
        self._request: tuple[ApiError | None] | None = None
        """Error with which the current request is rejected; None before the decision on its API."""

    @property
    def is_by_request(self) -> bool:
        """Return whether each request is decided on. A decision is then not good for the following requests."""
        return self._admit_request is not None

    def forget_client(self) -> None:
        """Decide on the client again, because its principal may change."""
        self._client = None

    def forget_request(self) -> None:
        """Decide on the next request by itself. The decision on the client stays."""
        self._request = None

    def check(
        self, api: RelayedApi, head: RequestHead, chunk: memoryview, position: int, *, available: int, body: int
    ) -> Cut | None:
        """Respond to a request that is denied; return None if it is admitted.

        Raises:
            ProtocolError: It is denied, and a response to this request cannot report it.
        """
        error = None if api.is_always_admitted else self._decide(head)
        if error is None:
            return None
        if isinstance(error, Wait):
            return self._current.wait(error)
        if available < (total := decodable(head)):
            return NEED, total, ()
        frame = chunk[position : position + total]
        request_class = api.rejected_request
        if request_class is None or not has_response(api, head, frame, body):
            raise rejected(head, error)
        request = self._current.read(request_class, head, frame, body)
        if request is None:
            return STOP, 0, ()
        self._current.forget()
        self._counts.count(head.api_key, head.client_id)
        return self._current.reject(ReceivedRequest(api, head, frame, body), request, error)

    def _decide(self, head: RequestHead) -> ApiError | Wait | None:
        """Return the error of a request: that of its client or, if the client is admitted, that of its API."""
        if self._admit is not None:
            if self._client is None or self._client[0] != head.client_id:
                result = self._admit(self._current.context(head))
                if isinstance(result, Wait):
                    return result
                self._client = head.client_id, result
            if self._client[1] is not None:
                return self._client[1]
        if self._admit_request is None:
            return None
        if self._request is None:
            result = self._admit_request(self._current.context(head))
            if isinstance(result, Wait):
                return result
            self._request = (result,)
        return self._request[0]
