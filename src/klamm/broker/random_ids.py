"""Random ids of topics and of the cluster, drawn as Kafka draws them (``Uuid.randomUuid``)."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

if TYPE_CHECKING:
    from collections.abc import Callable


def random_uuid(draw: Callable[[], UUID] = uuid4) -> UUID:
    """Return an id whose text does not begin with ``-``, which command lines take for an option.

    Kafka's reserved ids, of which the first 64 bits are zero, are never drawn: version 4 has bits that are set.
    """
    while True:
        drawn = draw()
        if not uuid_text(drawn).startswith("-"):
            return drawn


def uuid_text(value: UUID) -> str:
    """Return an id as Kafka writes it: base64 for URLs without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
