"""Admission of the requests of one connection by their client id, and by their API."""

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
        self._admit = next((each.admit for each in shared.features if each.admit is not None), None)
        self.is_by_request = any(each.admits_each_request for each in shared.features)
        """Whether each request is decided on. A decision is then not good for the following requests."""
        self._counts = shared.figures.requests
        self._current = current
        self._latest: tuple[str | None, ApiError | None] | None = None
        """Latest client id that was decided on, and the error with which it is rejected."""

    def forget(self) -> None:
        """Decide again: the principal may change, or the next request is decided on by itself."""
        self._latest = None

    def check(
        self, api: RelayedApi, head: RequestHead, chunk: memoryview, position: int, *, available: int, body: int
    ) -> Cut | None:
        """Respond to a request whose client is denied; return None if it is admitted.

        Raises:
            ProtocolError: The client is denied, and a response to this request cannot report it.
        """
        if self._admit is None or api.is_always_admitted:
            return None
        if self._latest is None or self._latest[0] != head.client_id:
            result = self._admit(self._current.context(head))
            if isinstance(result, Wait):
                return self._current.wait(result)
            self._latest = head.client_id, result
        error = self._latest[1]
        if error is None:
            return None
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
