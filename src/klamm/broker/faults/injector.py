"""Handlers with faults: each request passes the queue of injected faults before and after it is served.

=================  ====================================================  =============================================
Fault              before the request is served (default)                ``after_serving``
=================  ====================================================  =============================================
delay              the request waits                                     the response waits
error              the parts that the fault concerns are not served      everything is served, and the error replaces
                                                                         its results: a lost acknowledgement
drop_connection    the connection is closed without serving              the connection is closed instead of a reply
no_answer          nothing is served, the connection stays open and      the request is served, the connection stays
                   answers nothing more                                  open and answers nothing more
=================  ====================================================  =============================================

Where several apply, the connection is closed after the delays.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from klamm.broker.faults.exchanges import (
    as_message,
    as_response,
    at_once,
    exchange_of,
    must_be_served,
)
from klamm.client_configs.enforcement import held_acks
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ProtocolError
from klamm.protocol.messages.produce import ProduceRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import TypeAlias

    from klamm.broker.context import RequestContext
    from klamm.broker.faults.requests import RequestLog
    from klamm.faults.fault import FaultQueue, Selection
    from klamm.protocol.error_response import Exchange
    from klamm.protocol.schema import Message
    from klamm.server.route import Response, Route

    Handler: TypeAlias = Callable[[Any, RequestContext], Awaitable[Response]]


class InjectedEndError(ProtocolError):
    """A fault ends the connection."""


class Injector:
    """Wrapper of all handlers. Used on the event loop only.

    Args:
        faults: Injected faults.
        requests: Log of the received requests.
    """

    def __init__(self, faults: FaultQueue, requests: RequestLog) -> None:
        self._faults = faults
        self._requests = requests
        self._released = asyncio.Event()

    def routes(self, routes: Mapping[int, Route]) -> dict[int, Route]:
        """Return the routes with wrapped handlers."""
        return {key: replace(route, handle=self._wrapped(route.handle)) for key, route in routes.items()}

    def release(self) -> None:
        """Close the connections of delayed requests and of those without an answer. Called when the broker stops."""
        self._released.set()

    def _wrapped(self, handle: Handler) -> Handler:
        async def handle_with_faults(request: Message, context: RequestContext) -> Response:
            if context.node_id in context.services.cluster.down:
                raise InjectedEndError(f"a test has stopped broker {context.node_id}")
            exchange = exchange_of(request, context)
            entry = self._requests.add(exchange, context)
            if not self._faults:
                return await handle(request, context)
            selection = self._faults.select(entry, exchange.named_parts, acks=_served_acks(request, context))
            if not selection:
                return await handle(request, context)
            entry["fault"] = _description(selection)
            call = _Call(handle=handle, request=request, context=context, exchange=exchange)
            await self._wait(selection.delay_s(after_serving=False))
            try:
                response = await self._response(call, selection)
            except InjectedEndError:
                await self._wait(selection.delay_s(after_serving=True))
                raise
            if response is not None and selection.throttle_time_ms and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = max(response.throttle_time_ms, selection.throttle_time_ms)
            await self._wait(selection.delay_s(after_serving=True))
            return response

        return handle_with_faults

    async def _wait(self, delay_s: float) -> None:
        """Wait for a delay, by the clock of the event loop.

        Raises:
            InjectedEndError: The broker stops before the delay is over.
        """
        if not delay_s:
            return
        try:
            async with asyncio.timeout(delay_s):
                await self._released.wait()
        except TimeoutError:
            return
        raise InjectedEndError("the broker stops during the delay that a test has injected")

    async def _response(self, call: _Call, selection: Selection) -> Response:
        ending = selection.ending
        if ending is not None:
            if ending.after_serving:
                await call.serve()
            if ending.no_answer:
                await self._released.wait()
            raise InjectedEndError("a test has injected this fault")
        return await _response_with_errors(call, selection) if selection.errors else await call.serve()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A request and its handler."""

    handle: Handler
    request: Message
    context: RequestContext
    exchange: Exchange
    """For a Fetch request in a session, it has all partitions of the session, and ``request`` only the named ones."""

    async def serve(self, request: Message | None = None) -> Response:
        """Call the handler, with the whole request or with a part of it."""
        return await self.handle(self.request if request is None else request, self.context)


async def _response_with_errors(call: _Call, selection: Selection) -> Response:
    """Serve the parts of a request that no fault concerns, and return their results together with the errors.

    Raises:
        InjectedEndError: The request wants no response (Produce with acks=0). As for any error, its connection ends.
    """
    exchange, first, code = call.exchange, selection.errors[0], selection.code
    is_whole = not first.selects_parts and not exchange.reports_parts(code)
    served = await _served(call, selection, is_whole=is_whole)
    if getattr(call.request, "acks", None) == 0:
        raise InjectedEndError(f"a test has injected {code.name}, and acks is 0")
    if is_whole:
        return as_response(exchange.whole_response(code), exchange)
    message = None if served is None else as_message(served, exchange)
    if message is not None:
        _send_again(message, call.context)
    if exchange.lists_parts:
        message = exchange.merged(
            selection.error_of, message, is_whole=first.after_serving or must_be_served(call.request)
        )
    elif message is not None:
        message = exchange.rewritten(selection.error_of, message)
    return None if message is None else as_response(message, exchange)


async def _served(call: _Call, selection: Selection, *, is_whole: bool) -> Response:
    """Serve a request, or the parts of it without errors; return None if nothing is served."""
    if selection.errors[0].after_serving:
        return await call.serve()
    if is_whole:
        return None
    if must_be_served(call.request) or not call.exchange.lists_parts:
        return await call.serve(at_once(call.request))
    rest = call.exchange.without(selection.error_of)
    return None if rest is None else await call.serve(rest)


def _served_acks(request: Message, context: RequestContext) -> int | None:
    """Return the acks by which a Produce request is served, requested or enforced; None for other requests."""
    if not isinstance(request, ProduceRequest):
        return None
    return held_acks(request.acks, context.services.enforcement.of_session(context.session, context.client_id))


def _send_again(response: Message, context: RequestContext) -> None:
    """Let a fetch session send all partitions again: the client has not received the offsets that an error replaces."""
    session = context.services.fetch_sessions.get(getattr(response, "session_id", 0))
    for partition in () if session is None else session.partitions.values():
        partition.sent_high_watermark = -1


def _description(selection: Selection) -> str:
    """Return a short description of the faults of a request."""
    ending = selection.ending
    effects = [fault.error.name for fault in selection.errors if fault.error is not None]
    if ending is not None:
        effects.append("no_answer" if ending.no_answer else "drop_connection")
    if any(fault.delay_s for fault in selection.delays) and not effects:
        effects.append("delay")
    return ", ".join(effects + ["throttle"] * bool(selection.throttle_time_ms))
