"""Random ids of topics and of the cluster, created as Kafka's ``Uuid.randomUuid`` does."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from klamm.protocol.primitives import uuid_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID


def random_uuid(draw: Callable[[], UUID] = uuid4) -> UUID:
    """Return a random id whose text does not start with ``-``, which command lines would parse as an option.

    Kafka's reserved ids, whose first 64 bits are zero, never occur: a version 4 UUID has bits set there.
    """
    while True:
        drawn = draw()
        if not uuid_text(drawn).startswith("-"):
            return drawn
