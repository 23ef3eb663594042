"""A recorded change, its author, the masks in place of values that no history keeps, and the rule of a revert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    def subject(self) -> str:
        """Resource for people. Its name in the history, ``BROKER:``, looks like one whose id is missing."""
        return "the default of all brokers" if self.resource == "BROKER:" else self.resource

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reversal:
    """The value that one config needs so that its resource is as it was before."""

    name: str
    value: str | None
    """None if the config was not set on the resource."""
    replaces: str | None
    """Current value: the live one if it is known, else that of the newest entry. None if it is not set."""

    @property
    def is_known(self) -> bool:
        """False for a value that is not recorded: a secret, for example."""
        return self.value not in NOT_KEPT


def plan_revert(
    history: Sequence[RecordedChange], *, resource: str, to_ms: int, live: Mapping[str, str] | None = None
) -> tuple[Reversal, ...]:
    """Return the changes that restore a resource to its state at a given time.

    Only configs that changed after ``to_ms`` and would differ are included. The history of a deleted topic with the
    same name counts as well, including its deletion. Numbers of partitions are left out, because they cannot be
    restored.

    Args:
        history: All entries since then, newest first, as ``read_config_history`` returns them.
        resource: Resource to restore; entries of other resources are skipped.
        to_ms: Time in milliseconds since the epoch. Changes within this very millisecond are kept.
        live: Values that are set on the resource now, which may have been changed without a record. None if unknown.
    """
    then: dict[str, str | None] = {}
    now: dict[str, str | None] = {}
    for line in history:
        if line.resource != resource or line.at_ms <= to_ms or line.name == PARTITIONS:
            continue
        now.setdefault(line.name, line.new)
        then[line.name] = line.old
    if live is not None:
        now |= {name: live.get(name) for name, value in now.items() if value not in NOT_KEPT}
    return tuple(
        Reversal(name=name, value=value, replaces=now[name])
        for name, value in sorted(then.items())
        if value != now[name] or value in NOT_KEPT
    )
