"""Parts of a broker's process that the program around it may replace: its clock, its event loop and its handlers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from klamm.broker.routes import ROUTES
from klamm.clock import wall_clock_ms
from klamm.server.sockets import fastest_event_loop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Mapping

    from klamm.broker.services import Services
    from klamm.server.route import Route


def _ignore(_services: Services) -> None:
    pass


async def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Surroundings of a broker. The defaults are those of ``klamm broker``."""

    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = fastest_event_loop
    now_ms: Callable[[], int] = wall_clock_ms
    """Wall clock, in milliseconds since the epoch."""
    routes: Mapping[int, Route] = field(default_factory=lambda: ROUTES)
    """Handlers by API key."""
    on_ready: Callable[[Services], None] = _ignore
    """Called when the broker listens, before it reports that it is ready."""
    on_stop: Callable[[], Awaitable[None]] = _nothing
    """Called before the broker stops."""


PLAIN = Surroundings()
"""Surroundings of ``klamm broker``."""
