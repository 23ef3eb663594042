"""Staged roll-outs: a new value for a percentage of an entity's clients, while the others keep the old value.

KIP-649's wire protocol is unchanged. A roll-out is one more config of the entity: ``rollout.acks`` with the value
``10:all``. Operators set, describe and remove it like any other config; it is stored and kept in the history like any
other. Clients never see it, because the broker resolves it. A hash of user, client id and key decides which clients
take part. The result is therefore the same after a restart, and a client that takes part at 10 % also does at 50 %.

A roll-out at 100 percent applies to every client but is still a roll-out: the replaced value is kept, so removing the
roll-out restores it. Setting the config itself ends the roll-out and makes a value final.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.client_configs.entities import ClientConfigEntity

PREFIX: Final = "rollout."
HUNDREDTHS: Final = 10_000
"""Number of classes that clients are hashed into. It allows percentages with two decimals."""
_VALUE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,2})?):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A value for a percentage of the clients."""

    hundredths: int
    """Share in hundredths of a percent, 0 to 10,000. Clients whose class is below it take part."""
    value: str

    @property
    def is_complete(self) -> bool:
        """Return whether the roll-out applies to every client."""
        return self.hundredths >= HUNDREDTHS

    def applies_to(self, application: ClientConfigEntity, key: str) -> bool:
        """Return whether the roll-out applies to this application."""
        return client_class(application, key) < self.hundredths

    @property
    def percent(self) -> str:
        """The percentage without trailing zeros, such as ``12.5``."""
        return f"{self.hundredths / 100:.2f}".rstrip("0").rstrip(".")

    def __str__(self) -> str:
        """Return the roll-out in its stored form."""
        return f"{self.percent}:{self.value}"


def rollout_key(key: str) -> str:
    """Return the config name under which the roll-out of a config is set."""
    return PREFIX + key


def parse_rollout(name: str, text: str) -> Rollout:
    """Parse ``PERCENT:VALUE``.

    Raises:
        InvalidRequestError: The text is not of this form, or exceeds 100 percent.
    """
    match = _VALUE.fullmatch(text.strip())
    hundredths = round(float(match[1]) * 100) if match else -1
    if match is None or not 0 <= hundredths <= HUNDREDTHS:
        raise InvalidRequestError(
            f"Invalid value {text} for configuration {name}: expected PERCENT:VALUE, such as 10:all"
        )
    return Rollout(hundredths=hundredths, value=match[2].strip())


def client_class(application: ClientConfigEntity, key: str) -> int:
    """Return the class, 0 to 9,999, of an application for one key. It never changes."""
    name = "\0".join((application.user or "", application.client_id or "", key))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % HUNDREDTHS


def values_for(configs: Mapping[str, str], application: ClientConfigEntity) -> dict[str, str]:
    """Return one entity's configs as they apply to an application, with all roll-outs resolved."""
    values = {name: value for name, value in configs.items() if not name.startswith(PREFIX)}
    for name, text in configs.items():
        if name.startswith(PREFIX):
            rollout, key = parse_rollout(name, text), name.removeprefix(PREFIX)
            if rollout.applies_to(application, key):
                values[key] = rollout.value
    return values
