"""Sessions of the gateway's own logins on connections that serve clients, renewed before they expire (KIP-368)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from klamm.kafka_client.connection.login import RENEW_AT, login_steps
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.error_response import response_class

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from klamm.kafka_client.connection.security import Security
    from klamm.protocol.schema import Message

_NEVER: Final = float("inf")


class UpstreamSession:
    """Session of one connection to a broker.

    Args:
        security: Settings of the login.
        host: Host of the broker.
        due_at: Time of the next login on the monotonic clock, infinite if the session does not expire.
        versions: Versions by API key that the broker offers; None if they are not known.
    """

    __slots__ = ("_due_at", "_host", "_security", "versions")

    def __init__(
        self,
        security: Security,
        host: str,
        due_at: float,
        versions: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        self.versions = versions
        self._security = security
        self._host = host
        self._due_at = due_at

    @property
    def expires(self) -> bool:
        """Return whether the session ends at some time, so that the connection must log in again."""
        return self._due_at != _NEVER

    @property
    def is_due(self) -> bool:
        """Return whether the next request must wait for a login."""
        return time.monotonic() >= self._due_at

    async def renew(self, call: Callable[[Message, type[Message]], Awaitable[Any]]) -> None:
        """Log in again on the connection. Meanwhile no request of the client is forwarded.

        Args:
            call: Function that sends a request on the connection, and returns its response of the given class.

        Raises:
            ConnectionLostError: The connection broke, or the upstream rejects the login.
        """
        steps = login_steps(self._security, self._host)
        answer: Any = None
        while True:
            request = await asyncio.to_thread(_next, steps, answer)  # a token may have to be fetched
            if isinstance(request, int):
                self._due_at = time.monotonic() + request / 1000 * RENEW_AT if request else _NEVER
                return
            answer = await call(request, response_class(type(request)))


def _next(steps: Any, answer: Any) -> Message | int:
    """Return the next request of a login, or the lifetime of the session in milliseconds at its end."""
    try:
        request: Message = steps.send(answer)
    except StopIteration as end:
        lifetime_ms: int = end.value
        return lifetime_ms
    except ConnectionLostError:  # a rejected login, too
        raise
    except Exception as error:
        raise ConnectionLostError(f"the gateway cannot log in again: {error}") from error
    return request
