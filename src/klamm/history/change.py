"""A recorded change, its author, and the masks in place of values that no history keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HIDDEN: Final = "[hidden]"
"""Value in the history instead of a secret."""
UNKNOWN: Final = "[unknown]"
"""Value in the history of a gateway that could not read it."""
TOO_LONG: Final = "[too long]"
"""Value in the history of a gateway instead of one that no record can hold."""
NOT_KEPT: Final = frozenset({HIDDEN, UNKNOWN, TOO_LONG})
"""Values in place of those that the history does not keep."""
SCRAM_RESOURCE: Final = "SCRAM"
"""Resource prefix of SCRAM credentials, before the user's name. The config names are the mechanisms."""
PARTITIONS: Final = "partitions"
"""Name in the history for the number of partitions of a topic, which is no config."""


_MAX_TIME_MS: Final = 253_402_300_799_999
"""End of the year 9999, in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedChange:
    """Entry of the change history: one config that a request set or removed. Entries are never replaced."""

    at_ms: int
    """Milliseconds since the epoch."""
    resource: str
    name: str
    old: str | None
    new: str | None
    principal: str
    client_id: str | None
    host: str | None = None
    """Address of the client. Only gateways record it."""
    is_confirmed: bool = True
    """False for a change that a gateway has forwarded, and whose response was lost or left its outcome in doubt, such
    as REQUEST_TIMED_OUT. It may not have been made.
    """

    @property
    def is_readable(self) -> bool:
        """Return whether the types and the time are possible. They are not if the stored entry is damaged."""
        texts = (self.resource, self.name, self.principal, *filter(None, (self.old, self.new, self.client_id)))
        return (
            isinstance(self.at_ms, int) and 0 <= self.at_ms <= _MAX_TIME_MS and all(isinstance(t, str) for t in texts)
        )


def shown_credential(iterations: int) -> str:
    """Return the text that the change history shows for a SCRAM credential."""
    return f"{HIDDEN} iterations={iterations}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Principal, client id and listener of the request that makes a change."""

    principal: str
    client_id: str | None
    """Client id; None when the client sent null."""
    listener: str | None = None
    """Name of the listener; None when the broker itself is the author."""


BROKER_ITSELF: Final = Author(principal="User:ANONYMOUS", client_id=None)
