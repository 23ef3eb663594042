"""Random ids of topics and of the cluster, created as Kafka's ``Uuid.randomUuid`` does."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

if TYPE_CHECKING:
    from collections.abc import Callable


def random_uuid(draw: Callable[[], UUID] = uuid4) -> UUID:
    """Return a random id whose text does not start with ``-``, which command lines would parse as an option.

    Kafka's reserved ids, whose first 64 bits are zero, never occur: a version 4 UUID has bits set there.
    """
    while True:
        drawn = draw()
        if not uuid_text(drawn).startswith("-"):
            return drawn


def uuid_text(value: UUID) -> str:
    """Return an id in Kafka's form: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
