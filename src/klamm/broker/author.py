"""Who asks for a change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who asks for a change."""

    principal: str
    client_id: str | None
    """None when the client sent none."""
    listener: str | None = None
    """The name of the listener it came through; None when the broker itself is the author."""


BROKER_ITSELF: Final = Author(principal="User:ANONYMOUS", client_id=None)
