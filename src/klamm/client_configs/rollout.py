"""A staged roll-out: a new value for some percent of an entity's clients, next to the value for the others.

KIP-649's wire stays as it is. A roll-out is one more config of the entity, ``rollout.acks`` with the value ``10:all``:
operators set, see and remove it as any other, it is kept and remembered like any other, and clients never see it,
because the broker resolves it. Which clients are in is decided by a hash of user, client id and key, so it is the same
after a restart, and whoever is in at 10 % is in at 50 %.

A roll-out at 100 percent applies to every client and still is a roll-out: the value that it replaces is kept beside it,
so that removing the roll-out restores that value. Setting the config itself ends the roll-out and makes a value final.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.client_configs.entities import ClientConfigEntity

PREFIX: Final = "rollout."
HUNDREDTHS: Final = 10_000
"""Clients fall into this many classes: percents may have two decimals."""
_VALUE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,2})?):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A value for some of the clients."""

    hundredths: int
    """Of a percent, 0 to 10,000: below it a client is in."""
    value: str

    @property
    def is_complete(self) -> bool:
        """Whether every client has the value."""
        return self.hundredths >= HUNDREDTHS

    def applies_to(self, application: ClientConfigEntity, key: str) -> bool:
        """Tell whether this application is among those that have it."""
        return client_class(application, key) < self.hundredths

    @property
    def percent(self) -> str:
        """The percent without needless zeros, as ``12.5``."""
        return f"{self.hundredths / 100:.2f}".rstrip("0").rstrip(".")

    def __str__(self) -> str:
        """Return the roll-out in its stored form."""
        return f"{self.percent}:{self.value}"


def rollout_key(key: str) -> str:
    """Return the name under which the roll-out of a config is set."""
    return PREFIX + key


def parse_rollout(name: str, text: str) -> Rollout:
    """Read ``PERCENT:VALUE``.

    Raises:
        InvalidRequestError: It is not of this form, or more than 100 percent.
    """
    found = _VALUE.fullmatch(text.strip())
    hundredths = round(float(found[1]) * 100) if found else -1
    if found is None or not 0 <= hundredths <= HUNDREDTHS:
        raise InvalidRequestError(f"Invalid value {text} for configuration {name}: expected PERCENT:VALUE, as 10:all")
    return Rollout(hundredths=hundredths, value=found[2].strip())


def client_class(application: ClientConfigEntity, key: str) -> int:
    """Return in which of the 10,000 classes an application falls, for one key; it never changes."""
    name = "\0".join((application.user or "", application.client_id or "", key))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % HUNDREDTHS


def values_for(configs: Mapping[str, str], application: ClientConfigEntity) -> dict[str, str]:
    """Return what one entity's configs mean for an application: roll-outs decided, and none of them left."""
    values = {name: value for name, value in configs.items() if not name.startswith(PREFIX)}
    for name, text in configs.items():
        if name.startswith(PREFIX):
            rollout, key = parse_rollout(name, text), name.removeprefix(PREFIX)
            if rollout.applies_to(application, key):
                values[key] = rollout.value
    return values
