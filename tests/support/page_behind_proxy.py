"""A page on this machine in an environment with an HTTP proxy."""

from __future__ import annotations

import contextlib
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


@contextlib.contextmanager
def page_behind_proxy(environment: pytest.MonkeyPatch, page: bytes = b"") -> Iterator[tuple[str, list[str]]]:
    """Serve a page under any path, at the address that is also the proxy of the environment.

    Yields:
        Host and port, and the targets of requests so far: a path if the page was asked directly, a URL if by the proxy.
    """
    targets: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            targets.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"127.0.0.1:{server.server_port}"
        for name in ("no_proxy", "NO_PROXY"):
            environment.delenv(name, raising=False)
        environment.setenv("http_proxy", f"http://{address}")
        environment.setattr(urllib.request, "_opener", None)  # that of urlopen keeps the proxies of its first use
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield address, targets
        finally:
            server.shutdown()
            thread.join()
