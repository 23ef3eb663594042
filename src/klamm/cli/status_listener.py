"""Client of the listener that serves status and metrics of a klamm process (``--metrics HOST:PORT``)."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.cli.arguments import TIMEOUT, add_timeout
from klamm.cli.connection import RequestError, UsageError
from klamm.properties import split_address

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

TIMEOUT_S: Final = 10.0


class ListenerAnswer(NamedTuple):
    """Response of the listener."""

    status: int
    """Status of the HTTP response."""
    body: bytes


def add_limit(parser: argparse.ArgumentParser, default_s: float = TIMEOUT_S) -> None:
    """Add ``--timeout``, which ``limit_s`` reads. The help shows the default."""
    add_timeout(parser, f"time limit for a response of the listener (default {1000 * default_s:.0f})")


def limit_s(options: argparse.Namespace, default_s: float = TIMEOUT_S) -> float:
    """Return the time limit of ``--timeout`` in seconds, or the default."""
    limit_ms = getattr(options, TIMEOUT)
    return default_s if limit_ms is None else limit_ms / 1000


def ask(
    address: str, path: str, document: Mapping[str, Any] | None = None, *, timeout_s: float = TIMEOUT_S
) -> ListenerAnswer:
    """Request a page, or post a document as JSON.

    Args:
        address: Host and port of the listener, perhaps with ``http://``.
        path: Path of the page.
        document: Document to post. None: the page is requested with GET.
        timeout_s: Limit in seconds of each step.

    Raises:
        UsageError: The address is invalid.
        RequestError: The address does not answer. The message contains it, and says if a document that
            was posted may have had its effect.
    """
    target = split_address(address.removeprefix("http://").rstrip("/"))
    if target is None:
        raise UsageError(f"--metrics {address}: expected HOST:PORT")
    connection = http.client.HTTPConnection(*target, timeout=timeout_s)
    outcome = ""
    headers = {"Host": "localhost"}  # the listener serves public names to no browser; this is none
    try:
        if document is None:
            connection.request("GET", path, headers=headers)
        else:
            headers["Content-Type"] = "application/json"
            connection.connect()
            outcome = "; it is unknown whether the command was carried out"
            connection.request("POST", path, json.dumps(document).encode(), headers)
        response = connection.getresponse()
        return ListenerAnswer(response.status, response.read())
    except UnicodeError as error:
        raise UsageError(f"--metrics {address}: the host name is not valid") from error
    except http.client.HTTPException as error:
        raise RequestError(f"{address} does not answer with HTTP: {str(error).strip()}{outcome}") from error
    except OSError as error:
        raise RequestError(f"{address} does not answer: {error.strerror or error}{outcome}") from error
    finally:
        connection.close()
