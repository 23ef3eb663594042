"""Minimal HTTP server for scrapes and commands: one request per connection, a page for GET, an action for POST."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import socket
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from http import HTTPStatus

    View = Callable[[Mapping[str, str]], Awaitable[tuple[str, str]]]
    Action = Callable[[Mapping[str, Any]], Awaitable[tuple[HTTPStatus, object]]]

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 16 * 1024
MAX_CONNECTIONS: Final = 16
"""Number of connections that may be open. One more ends the oldest: a scrape takes milliseconds, so that one is silent
or slow. Without a limit, strangers could use up the file descriptors of the process.
"""
_SCRIPTS: Final = " script-src 'unsafe-inline'; connect-src 'self';"
_VIEW_HEADERS: Final = (
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self';{}"
    " frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n"
)
"""Headers of a view: other sites may not use it, nor may scripts unless the view has one of its own."""
_METRICS: Final = "/metrics"
LIMIT_S: Final = 10.0
"""Time limit of one request in seconds, however slow its client is."""
ACTION_LIMIT_S: Final = 60.0
"""Time limit of an action in seconds. It may wait for a cluster."""
MAX_BODY_BYTES: Final = 1024 * 1024
_MAX_DIGITS: Final = 7
_JSON: Final = "application/json"


_NOT_OURS: Final = (
    "This page is served to an IP address, localhost, a name without a dot or the name of this machine only, because"
    " any other name may belong to a site that reads it through your browser. Let a proxy set the header Host.\n"
)


def is_own_name(host: str) -> bool:
    """Return whether the header Host of a request can only name this machine.

    The owner of a public name can let it point to this machine (DNS rebinding). The scripts of his pages could then
    read, in a browser that reaches this machine, what is meant for its users.

    Args:
        host: Name or address, with or without a port. A client that is no browser may leave it out.
    """
    name = (host if host.endswith("]") else host.rpartition(":")[0] or host).strip("[]").rstrip(".").lower()
    if "." not in name or name.endswith(".localhost") or name == socket.gethostname().lower():
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class HttpListener:
    """HTTP server for pages by path. Confined to the event loop.

    Args:
        pages: Functions that return content type and text, by path.
        views: Coroutine functions that return content type and text for the query of the request, by path.
        checks: Functions that return why a check fails, None when it succeeds, by path. A failed one is status 503.
        remarks: Functions that return a warning to add to the text of a check that succeeds, by path.
        actions: Coroutine functions for POST that return status and JSON document for the JSON document of the request,
            by path. No site can call one from a browser: such a request has the header Origin.
        has_scripts: Whether views have scripts of their own.
    """

    def __init__(
        self,
        pages: Mapping[str, Callable[[], tuple[str, str]]],
        views: Mapping[str, View] = MappingProxyType({}),
        checks: Mapping[str, Callable[[], str | None]] = MappingProxyType({}),
        remarks: Mapping[str, Callable[[], str | None]] = MappingProxyType({}),
        *,
        actions: Mapping[str, Action] = MappingProxyType({}),
        has_scripts: bool = False,
    ) -> None:
        self._actions = actions
        self._view_headers = _VIEW_HEADERS.format(_SCRIPTS if has_scripts else "")
        self._pages = pages
        self._checks = checks
        self._remarks = remarks
        self._views = views
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, None] = {}
        """Writers of the open connections, oldest first."""

    async def listen(self, sock: socket.socket) -> None:
        """Start to serve on a bound socket."""
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=MAX_HEAD_BYTES, backlog=MAX_CONNECTIONS)

    async def close(self) -> None:
        """Stop serving. Responses in progress are completed; connections without a request are closed at once."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= MAX_CONNECTIONS:
            oldest = next(iter(self._writers))
            del self._writers[oldest]
            oldest.transport.abort()
        self._writers[writer] = None
        try:
            async with asyncio.timeout(LIMIT_S) as limit:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"POST "):
                    limit.reschedule(asyncio.get_running_loop().time() + ACTION_LIMIT_S)
                writer.write(await self._answer(head, reader))
                writer.close()
                await writer.wait_closed()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError) as error:
            logger.debug("A scrape ended early: %r", error)
        finally:
            # close() alone keeps the connection open until the client has read the response.
            writer.transport.abort()
            self._writers.pop(writer, None)

    async def _answer(self, head: bytes, reader: asyncio.StreamReader) -> bytes:
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004 -- method, target, version
            return _response("400 Bad Request", "text/plain", "Not HTTP/1\n")
        method, (path, _, query) = words[0], words[1].partition("?")
        if (rejection := self._rejection(method, path, lines)) is not None:
            return rejection
        if method == "POST":
            return await self._act(path, lines, reader)
        view = self._views.get(path)
        if view is not None:
            content_type, text = await view(dict(parse_qsl(query, keep_blank_values=True)))
            return _response("200 OK", content_type, text, self._view_headers, has_body=method == "GET")
        if path in self._checks:
            failure = self._checks[path]()
            status = "200 OK" if failure is None else "503 Service Unavailable"
            remark = self._remarks[path]() if path in self._remarks else None
            text = failure or (f"OK, but {remark}" if remark else "OK")
            return _response(status, "text/plain", f"{text}\n", has_body=method == "GET")
        content_type, text = self._pages[path]()
        return _response("200 OK", content_type, text, has_body=method == "GET")

    async def _act(self, path: str, headers: Sequence[str], reader: asyncio.StreamReader) -> bytes:
        """Run an action and return its response."""
        if _header(headers, "content-type").partition(";")[0].strip().lower() != _JSON:
            return _response("415 Unsupported Media Type", "text/plain", f"Content-Type: expected {_JSON}\n")
        if _header(headers, "origin"):
            return _response("403 Forbidden", "text/plain", "Commands are not accepted from a browser\n")
        length = _header(headers, "content-length")
        if not length.isdecimal() or len(length) > _MAX_DIGITS or int(length) > MAX_BODY_BYTES:
            text = f"Content-Length: expected a number up to {MAX_BODY_BYTES}\n"
            return _response("413 Content Too Large", "text/plain", text)
        try:
            document = json.loads(await reader.readexactly(int(length)))
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            return _response("400 Bad Request", "text/plain", "The body is not a JSON object\n")
        status, answer = await self._actions[path](document)
        return _response(f"{status.value} {status.phrase}", _JSON, json.dumps(answer) + "\n")

    def _rejection(self, method: str, path: str, headers: Sequence[str]) -> bytes | None:
        """Return the response to a request that is not served; None for all others."""
        paths = [*self._views, *self._pages, *self._checks]
        if path not in (*paths, *self._actions):
            return _response("404 Not Found", "text/plain", f"There is {', '.join(paths)}\n")
        allowed = ("POST",) if path in self._actions else ("GET", "HEAD")
        if method not in allowed:
            text = f"{allowed[0]} only\n"
            return _response("405 Method Not Allowed", "text/plain", text, f"Allow: {', '.join(allowed)}\r\n")
        host = _header(headers, "host")
        if path not in (_METRICS, *self._checks) and not is_own_name(host):
            return _response("421 Misdirected Request", "text/plain", _NOT_OURS)
        return None


def _header(headers: Sequence[str], name: str) -> str:
    """Return the value of a header, an empty string without it."""
    prefix = f"{name}:"
    return next((line[len(prefix) :].strip() for line in headers if line[: len(prefix)].lower() == prefix), "")


def _response(status: str, content_type: str, text: str, headers: str = "", *, has_body: bool = True) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{headers}"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if has_body else b"")
