"""The rule of a revert: the changes that restore a resource to its state at a given time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.history.change import NOT_KEPT, PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.history.change import RecordedChange


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
