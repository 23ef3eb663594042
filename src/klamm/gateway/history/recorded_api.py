"""Interface between the recorder of changes and the APIs whose changes it records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable

    from klamm.gateway.relay.filter import FilterContext
    from klamm.protocol.schema import Message

IN_DOUBT: Final = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION})
"""Errors after which the upstream may have made the change, or may still make it: a broker that forwards the request
to the controller returns them when the controller does not respond in time.

When the controller changes, the broker sends the request once more, to the new controller. That one rejects what the
first try has changed. So an error that contradicts the state before the change leaves its outcome in doubt, too, such
as UNKNOWN_TOPIC_OR_PARTITION for a topic that existed.
"""


def topic_resource(name: str) -> str:
    """Return a topic as the history shows it."""
    return f"{ResourceType.TOPIC.name}:{name}"


class Change(NamedTuple):
    """Change of one value."""

    resource: str
    """Resource as the history shows it: ``TOPIC:orders``."""
    name: str
    old: str | None
    """None if the value was not set."""
    new: str | None
    """None if the value is removed."""
    is_confirmed: bool = True
    """Whether the upstream has reported that it made the change. See ``Outcomes``."""


class Outcomes:
    """Outcome of each part of a request.

    Args:
        parts: Parts of the response, each with an ``error_code``. None if no response was received.
        keys: Functions that return what identifies a part.
    """

    def __init__(self, parts: Iterable[Any] | None, *keys: Callable[[Any], Hashable]) -> None:
        self._error_codes = None if parts is None else {key(part): part.error_code for part in parts for key in keys}

    def confirmed(self, key: Hashable, *, in_doubt: Collection[int] = IN_DOUBT) -> bool | None:
        """Return whether the change is confirmed; False if its outcome is in doubt; None if it was not made.

        Args:
            key: Key of the part.
            in_doubt: Errors after which the change may have been made.
        """
        if self._error_codes is None:
            return False
        error_code = self._error_codes.get(key)
        if error_code == ErrorCode.NONE:
            return True
        return False if error_code in in_doubt else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedApi:
    """API whose changes are recorded."""

    request: type[Message]
    response: type[Message]
    read: Callable[[Any, FilterContext], Awaitable[Any]]
    """Takes a request and its context; returns the state before the change, as ``changes`` needs it."""
    changes: Callable[[Any, Any, Any], Iterable[Change]]
    """Takes a request, its response, and the state before; yields the changes that the upstream has made or may
    have made. The response is None if none was received.
    """
    claims: Callable[[memoryview], bool] | None = None
    """As in ``Filter``."""
