"""Division of a change into waves.

Topics, brokers and quotas are ordered by the hash that client configs use for their percentages, so the same entities
come first in every roll-out of the same names. Client configs are set for a percentage of each user's clients (ADR 8).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.rollout import Rollout, client_class, parse_rollout, rollout_key, values_for
from klamm.configs.quotas import QUOTA_RESOURCE, quota_resource
from klamm.configs.quotas import USER as QUOTA_USER
from klamm.patterns import compile_pattern
from klamm.properties import SettingsError
from klamm.rollout.record import Wave

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.rollout.record import RolloutRecord, Values

USER: Final = "USER:"
"""Prefix of entities with client configs."""
DEFAULT_PERCENTAGES: Final = "1%,10%,50%,100%"
_ALL: Final = 100.0
_FINAL: Final = "final"


def parse_percentages(text: str) -> tuple[float, ...]:
    """Parse a list such as ``1%,10%,100%``.

    Raises:
        SettingsError: The percentages do not ascend from above 0 to 100.
    """
    try:
        percentages = tuple(float(part.strip().removesuffix("%")) for part in text.split(","))
    except ValueError:
        percentages = ()
    ascending = all(lower < higher for lower, higher in zip((0.0, *percentages), percentages, strict=False))
    if not percentages or not ascending or percentages[-1] != _ALL:
        raise SettingsError(f"--waves {text}: expected ascending percentages that end with 100%, such as 1%,10%,100%")
    return percentages


def waves_by_percentage(settings: Values, percentages: Sequence[float]) -> tuple[Wave, ...]:
    """Divide settings of topics, brokers and quotas. A wave without further entities is left out.

    Args:
        settings: Values to set in the end.
        percentages: Share of the entities after each wave, ascending. Every wave has at least one entity.
    """
    order = sorted(settings, key=lambda entity: (client_class(ClientConfigEntity.of_client(None, entity), ""), entity))
    waves: list[Wave] = []
    begun = 0
    for percentage in percentages:
        end = math.ceil(len(order) * percentage / _ALL)
        if end > begun:
            waves.append(
                Wave(name=f"{percentage:g}%", settings={entity: settings[entity] for entity in order[begun:end]})
            )
        begun = max(begun, end)
    return tuple(waves)


def waves_by_name(settings: Values, groups: Sequence[str]) -> tuple[Wave, ...]:
    """Divide settings into explicit waves.

    Args:
        settings: Values to set in the end.
        groups: Comma separated regular expressions for names of entities, one text per wave. The first one that matches
            decides.

    Raises:
        SettingsError: An expression is invalid, a wave has no entity, or an entity is in no wave.
    """
    left = dict(settings)
    waves: list[Wave] = []
    for group in groups:
        try:
            pattern = compile_pattern(group.replace(",", "|").replace(" ", ""))
        except re.error as error:
            raise SettingsError(f"--wave {group}: not a regular expression: {error}") from error
        chosen = [entity for entity in left if pattern.fullmatch(name_of(entity))]
        if not chosen:
            raise SettingsError(f"--wave {group}: it matches none of those that are left: {_some(left) or 'none'}")
        waves.append(Wave(name=group, settings={entity: left.pop(entity) for entity in chosen}))
    if left:
        raise SettingsError(f"{_some(left)}: in no --wave; name it, or end with --wave '.*'")
    return tuple(waves)


def waves_of_clients(
    users: Mapping[str, Mapping[str, str]], current: Values, percentages: Sequence[float]
) -> tuple[Wave, ...]:
    """Divide client configs by the percentage of each user's clients. A last wave makes the values final.

    Args:
        users: Values to set in the end by entity (``USER:alice``).
        current: Present configs of these entities.
        percentages: Share of the clients after each wave, ascending.

    Raises:
        SettingsError: A user has a staged roll-out of one of the keys that is not complete.
    """
    plain: dict[str, dict[str, str | None]] = {}
    complete: set[tuple[str, str]] = set()
    """Entities and keys whose clients all have the value already. It stays so in each wave."""
    for entity, values in users.items():
        for key, value in values.items():
            earlier = _earlier(entity, key, current.get(entity, {}))
            if earlier is not None and earlier.value == value:
                complete.add((entity, key))
            elif earlier is not None:
                # The broker makes the value of a complete roll-out the plain one when another roll-out begins.
                plain.setdefault(entity, {})[key] = earlier.value
    staged = [
        Wave(
            name=f"{percentage:g}%",
            settings={
                entity: {
                    **(plain.get(entity, {}) if number == 0 else {}),
                    **{
                        rollout_key(key): _staged(_ALL if (entity, key) in complete else percentage, value)
                        for key, value in values.items()
                    },
                }
                for entity, values in users.items()
            },
        )
        for number, percentage in enumerate(percentages)
    ]
    final: Values = {
        entity: {**values, **{rollout_key(key): None for key in values}} for entity, values in users.items()
    }
    return (*staged, Wave(name=_FINAL, settings=final, is_final=True))


def name_of(entity: str) -> str:
    """Return the name of an entity as users write it: ``orders``, ``1``, ``alice``."""
    kind, _, name = entity.partition(":")
    return name.removeprefix("user=") if kind == QUOTA_RESOURCE else name


def _staged(percentage: float, value: str) -> str:
    return str(Rollout(hundredths=round(percentage * 100), value=value))


def _earlier(entity: str, key: str, configs: Mapping[str, str | None]) -> Rollout | None:
    """Return the complete roll-out of a config that exists already; None without one."""
    text = configs.get(rollout_key(key))
    if text is None:
        return None
    earlier = parse_rollout(rollout_key(key), text)
    if not earlier.is_complete:
        raise SettingsError(
            f"{entity}: {rollout_key(key)}={text} is a roll-out that is not complete. Make it final with klamm configs"
            f" --add-config {key}=VALUE, or remove it with --percent 0"
        )
    return earlier


def is_changed(record: RolloutRecord, wave: int, application: ClientConfigEntity) -> bool | None:
    """Return whether the waves up to one change a client.

    A wave may set client configs without changing a client: it writes the value of a complete earlier roll-out as the
    plain one, and stages a value that all clients have already. So the resolved values are compared.

    Args:
        record: The roll-out.
        wave: Index of the latest of these waves.
        application: User and client id of the client.

    Returns:
        None for a client that no wave of the roll-out changes. Configs of topics and brokers concern every client.
    """
    users = {None, application.user}
    own = {f"{USER}{user or ''}" for user in users} | {quota_resource(((QUOTA_USER, user),)) for user in users}
    latest = dict(record.before)
    concerned = False
    for number, each in enumerate(record.waves):
        for entity, values in each.settings.items():
            if entity.startswith((USER, f"{QUOTA_RESOURCE}:")) and entity not in own:
                continue
            if entity.startswith(USER):
                latest[entity] = {**latest.get(entity, {}), **values}
                if _resolved(latest[entity], application) == _resolved(record.before.get(entity, {}), application):
                    continue
            concerned = True
            if number <= wave:
                return True
    return False if concerned else None


def _resolved(values: Mapping[str, str | None], application: ClientConfigEntity) -> dict[str, str]:
    return values_for({name: value for name, value in values.items() if value is not None}, application)


def _some(entities: Mapping[str, object]) -> str:
    shown = sorted(entities)[:10]
    more = len(entities) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
