"""Filters of the requests of one connection: they are asked in order, and the first result is carried out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.client_configs.enforcement import ALL_REPLICAS
from klamm.gateway.frames.cutter import PASS, STOP, TAKE
from klamm.gateway.frames.exchange import RelayedExchange
from klamm.gateway.frames.wire import replaced_frame, response_body, response_frame
from klamm.gateway.relay.current_request import ReceivedRequest
from klamm.gateway.relay.filter import FORWARD, Close, Divide, Forward, Reply, Serve, Wait
from klamm.gateway.relay.forwarding import has_response
from klamm.protocol.codec import decode
from klamm.protocol.errors import ProtocolError
from klamm.protocol.schema import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.gateway.frames.cutter import Cut, Piece
    from klamm.gateway.frames.exchange import OnResponse
    from klamm.gateway.frames.wire import RequestHead
    from klamm.gateway.relay.api import ServedApi
    from klamm.gateway.relay.current_request import CurrentRequest
    from klamm.gateway.relay.filter import Filter, FilterResult
    from klamm.gateway.relay.forwarding import Forwarder
    from klamm.gateway.relay.open_relay import OpenRelay


class FilterChain:
    """Filters of the requests of one connection.

    Args:
        relay: Relay of the connection.
        current: The request that the gateway works at.
        forwarder: Forwarded requests of the connection.
    """

    def __init__(self, relay: OpenRelay, current: CurrentRequest, forwarder: Forwarder) -> None:
        self._relay = relay
        self._current = current
        self._forwarder = forwarder

    def apply(self, served: ServedApi, head: RequestHead, frame: memoryview, body: int) -> Cut:
        """Ask the filters about a complete request, and carry out the first result.

        Raises:
            ProtocolError: The request is malformed.
        """
        context, is_long = self._current.context(head, (frame, body)), self._current.is_long(frame)
        for each in served.filters:
            if each.claims is not None and not each.claims(frame[body:]):
                continue
            kept = memoryview(bytes(frame)) if each.keeps_request else frame
            request = None
            if each.request is not None:
                is_whole = each.claims is not None and not each.ignores_rest
                request = self._current.read(each.request, head, kept, body, is_whole=is_whole)
                if request is None:
                    return STOP, 0, ()
            result = each.decide(request, context)
            if result is not FORWARD:
                received = ReceivedRequest(served.api, head, kept, body)
                if not isinstance(result, Wait):
                    self._current.forget()
                    if is_long and isinstance(result, Forward | Divide) and result.request is not None:
                        merge = result.merge if isinstance(result, Divide) else None
                        return self._current.forward_long(result.request, merge, each, received)
                return self._carry_out(result, each, received, request)
        self._current.forget()
        return self._pass(ReceivedRequest(served.api, head, frame, body))

    def _carry_out(self, result: FilterResult, used: Filter, received: ReceivedRequest, request: Any) -> Cut:
        match result:
            case Wait():
                return self._current.wait(result)
            case Serve():
                return self._current.serve(result, used, received, request)
            case Close():
                return self._current.close(result, received.head, len(received.frame))
            case Reply():
                return self._reply(result, received, request)
            case Divide():
                return self._divide(result, used, received)
            case Forward():
                return self._forward(result, used, received)

    def _pass(self, received: ReceivedRequest) -> Cut:
        """Forward a request as received."""
        api, head, frame, _ = received
        acks, enforced, _ = self._forwarder.enforce_acks(api, head, frame)
        if acks != 0:
            self._forwarder.expect(api, head)
        self._forwarder.drop_if_raised(api, head, acks, enforced)
        return PASS, len(frame), ()

    def _reply(self, reply: Reply, received: ReceivedRequest, request: Any) -> Cut:
        api, head, frame, body = received
        if not isinstance(reply.response, Message):
            return self._current.reject(received, request, reply.response)
        if not has_response(api, head, frame, body):
            raise ProtocolError("A policy denied a Produce request with acks=0")
        version = head.api_version if reply.version is None else reply.version
        make = partial(response_frame, reply.response, version, head.correlation_id)
        return self._current.reply(make, head, len(frame))

    def _forward(self, forward: Forward, used: Filter, received: ReceivedRequest) -> Cut:
        api, head, frame, body = received
        if forward.inspect is not None:
            on_response = _inspecting(forward.inspect, used, head)
            self._relay.exchanges.append(RelayedExchange(head.correlation_id, on_response))
            return TAKE, len(frame), (frame,)
        if forward.request is None:
            raise TypeError("A Forward of a filter has a request or inspects the response")
        is_answered = has_response(api, head, frame, body)
        forwarded, enforced = self._forwarder.with_enforced_acks(api, head, replaced_frame(head, forward.request))
        if is_answered:
            self._forwarder.expect(api, head)
        self._forwarder.drop_if_raised(api, head, ALL_REPLICAS if is_answered else 0, enforced)
        return TAKE, len(frame), (forwarded,)

    def _divide(self, divide: Divide, used: Filter, received: ReceivedRequest) -> Cut:
        api, head, frame, _ = received
        merge, forwarder = divide.merge, self._forwarder  # not the request, which has its records

        def on_response(answer: memoryview) -> Sequence[Piece]:
            kept = memoryview(bytes(answer))  # parts of the response outlive this callback
            version = head.api_version
            response = merge(decode(used.response, version, kept, response_body(used.response, version, kept)))
            forwarder.replace_addresses(api, response)
            merged = response_frame(response, version, head.correlation_id)
            if api.patch_response is None:
                return [merged]
            return forwarder.patch_response(api, head.client_id, memoryview(bytearray(merged)))

        self._relay.expect(RelayedExchange(head.correlation_id, on_response, kept_bytes=divide.kept_bytes))
        forwarded, _ = forwarder.with_enforced_acks(api, head, replaced_frame(head, divide.request))
        return TAKE, len(frame), (forwarded,)


def _inspecting(inspect: Any, used: Filter, head: RequestHead) -> OnResponse:
    """Return the treatment of a response that a filter may replace."""

    def on_response(answer: memoryview) -> Sequence[Piece]:
        version, position = head.api_version, response_body(used.response, head.api_version, answer)
        if used.response_version is not None:
            version = used.response_version(answer[position:], version)
        replaced = inspect(decode(used.response, version, answer, position))
        return [answer] if replaced is None else [response_frame(replaced, version, head.correlation_id)]

    return on_response
