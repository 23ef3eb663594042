"""Interface to the owner of all client configs, and what it cannot use of their stored records."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from klamm.client_configs.description import Compatibility
    from klamm.client_configs.entities import ClientConfigEntity

logger = logging.getLogger(__name__)

_MAX_SKIPPED: Final = 1000
_MAX_REASON: Final = 500
"""Limit for a kept reason in characters. It quotes values of any length."""


class SkippedRecords:
    """Stored records that cannot be used, wholly or in part. Each is logged once. Used on the event loop only.

    Args:
        place: Where the records are stored, for messages.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._reasons: dict[int, str] = {}
        """Reasons by the hash of the record, which may be long."""
        self._logged: dict[int, str] = {}

    @property
    def reasons(self) -> Sequence[str]:
        """Reason of each skipped record, at most 1,000."""
        return [f"{self._place}: {reason}" for reason in self._reasons.values()]

    def begin(self) -> None:
        """Start over, before all records are read again."""
        self._logged, self._reasons = self._reasons, {}

    def put(self, record: Hashable, reason: str) -> None:
        """Record why a record is skipped; with an empty reason, that it is usable now."""
        key, reason = hash(record), reason[:_MAX_REASON]
        if not reason:
            self._reasons.pop(key, None)
        elif key in self._reasons or len(self._reasons) < _MAX_SKIPPED:
            if reason not in (self._reasons.get(key), self._logged.get(key)):
                logger.warning("%s: a record was skipped: %s", self._place, reason)
            self._reasons[key] = reason


class ClientConfigSource(Protocol):
    """Owner of the configs of users and client ids, and of the registrations of clients."""

    @property
    def configs(self) -> Mapping[ClientConfigEntity, Mapping[str, str]]:
        """Configs of every entity that has any."""
        ...

    @property
    def registered(self) -> Mapping[ClientConfigEntity, Compatibility]:
        """Supported keys by client information, for each ``<user, client-id>``."""
        ...

    @property
    def skipped(self) -> Sequence[str]:
        """Reason of each stored config and registration that cannot be used."""
        ...

    def resolve(self, entity: ClientConfigEntity) -> dict[str, str]:
        """Return the configs that apply to the application ``<user, client-id>``."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change of configs."""
        ...
