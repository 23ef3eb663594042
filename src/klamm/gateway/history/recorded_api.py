"""Interface between the recorder of changes and the APIs whose changes it records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from klamm.gateway.interceptors import InterceptedCall
    from klamm.protocol.schema import Message


class Change(NamedTuple):
    """Change of one value."""

    resource: str
    """Resource as the history shows it: ``TOPIC:orders``."""
    name: str
    old: str | None
    """None if the value was not set."""
    new: str | None
    """None if the value is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedApi:
    """API whose changes are recorded."""

    request: type[Message]
    response: type[Message]
    read: Callable[[Any, InterceptedCall], Awaitable[Any]]
    """Takes a request and its context; returns the state before the change, as ``changes`` needs it."""
    changes: Callable[[Any, Any, Any], Iterable[Change]]
    """Takes a request, its response, and the state before; yields the changes that the upstream has accepted. The
    response is None if none was received; then it yields all changes that the request may have made.
    """
    claims: Callable[[memoryview], bool] | None = None
    """As in ``Interceptor``."""
