"""Author of a change: the principal, client id and listener that the history of changes names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Principal, client id and listener of the request that makes a change."""

    principal: str
    client_id: str | None
    """Client id; None when the client sent null."""
    listener: str | None = None
    """Name of the listener; None when the broker itself is the author."""


BROKER_ITSELF: Final = Author(principal="User:ANONYMOUS", client_id=None)
