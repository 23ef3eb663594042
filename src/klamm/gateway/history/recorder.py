"""Observer of the requests that filters forward: it records the changes that the upstream accepts.

It is below the policies, so the history has what was forwarded: without denied parts, with the overrides. A request
that only validates changes nothing and is not recorded.

The response may be lost when a connection breaks, or because the client closes its own. The change is recorded all the
same, as not confirmed: a client could avoid the history otherwise. So is a change whose response leaves its outcome in
doubt, such as REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar, cast

from klamm.gateway.history.log import change_record
from klamm.kafka_client.errors import ConnectionLostError
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from klamm.gateway.history.recorded_api import RecordedApi
    from klamm.gateway.history.writer import HistoryWriter
    from klamm.gateway.relay.filter import FilterContext
    from klamm.protocol.schema import Message

logger = logging.getLogger(__name__)

AnyResponse = TypeVar("AnyResponse", bound="Message")


class ChangeRecorder:
    """Recorder of the changes in requests.

    Args:
        apis: Recorded APIs, by request class.
        writer: Writer of the history.
        now_ms: Wall clock, in milliseconds since the epoch.
    """

    def __init__(
        self, apis: Mapping[type[Message], RecordedApi], writer: HistoryWriter, now_ms: Callable[[], int]
    ) -> None:
        self._apis = apis
        self._writer = writer
        self._now_ms = now_ms
        self._recordings: set[asyncio.Task[None]] = set()

    def context_of(self, call: FilterContext) -> FilterContext:
        """Return the context of a request that records the changes in what it forwards."""
        return cast("FilterContext", RecordedCall(call, self))

    async def observe(self, request: Message, context: FilterContext, send: Callable[[], Awaitable[Any]]) -> Any:
        """Send a request, record its changes, and return the response.

        Args:
            request: The request.
            context: Context of the client's request.
            send: Function that sends the request.
        """
        api = self._apis.get(type(request))
        if api is None or getattr(request, "validate_only", False):
            return await send()
        before = await api.read(request, context)
        try:
            response = await send()
        except (ConnectionLostError, asyncio.CancelledError):
            self._start(self._record(api, request, None, before, context))
            raise
        # The client may close its connection meanwhile.
        await asyncio.shield(self._start(self._record(api, request, response, before, context)))
        return response

    def _start(self, recording: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(recording)
        self._recordings.add(task)
        task.add_done_callback(self._recordings.discard)
        return task

    async def close(self) -> None:
        """Complete the records of the latest changes."""
        await asyncio.sleep(0)  # for changes whose connections were just closed
        await asyncio.gather(*self._recordings, return_exceptions=True)

    async def _record(
        self, api: RecordedApi, request: Message, response: Message | None, before: Any, context: FilterContext
    ) -> None:
        """Record the changes of a request. Without a response, they are not confirmed."""
        author, host, at_ms = context.author, context.client_host, self._now_ms()
        try:
            records = await TimeSlice().listed(
                change_record(change, author, host, at_ms=at_ms) for change in api.changes(request, response, before)
            )
        except Exception:
            # The change is made, so the client must get its response.
            logger.exception("The change history lacks a change by %s", author.principal)
            return
        if records:
            self._writer.add(records, author=author.principal)
            await self._writer.written()


class RecordedCall:
    """Context of a request whose changes are recorded: ``forward`` and ``call`` record, all else is that of the call.

    Args:
        call: Context that forwards the requests.
        recorder: Recorder of their changes.
    """

    def __init__(self, call: FilterContext, recorder: ChangeRecorder) -> None:
        self._call = call
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the call."""
        return getattr(self._call, name)

    async def forward(self, request: Message) -> Any:
        """Send a request of the same API in the same version; return the response."""
        return await self._recorder.observe(request, self._call, lambda: self._call.forward(request))

    async def call(self, request: Message, response_class: type[AnyResponse]) -> AnyResponse:
        """Send a request of any API; return the response."""
        response: AnyResponse = await self._recorder.observe(
            request, self._call, lambda: self._call.call(request, response_class)
        )
        return response
