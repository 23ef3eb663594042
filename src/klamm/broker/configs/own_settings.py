"""klamm's own broker configs, converted for use in the broker."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from klamm.configs.definitions import HISTORY_MAX_ENTRIES, broker_configs, own_broker_configs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.configs.values import ConfigValue


def max_history(static: Mapping[str, str]) -> int:
    """Return the maximum number of config changes in the history; 0 means no limit."""
    definition = broker_configs()[HISTORY_MAX_ENTRIES]
    return int(str(definition.parse(static.get(HISTORY_MAX_ENTRIES, str(definition.default)))))


def allowed_client_configs(value: ConfigValue | None) -> frozenset[str] | None:
    """Return the client configs that ``client.configs.allowed.keys`` permits; None permits all."""
    return None if value is None else frozenset(cast("tuple[str, ...]", value))


def with_dynamic_values(static: Mapping[str, str], layers: Iterable[Mapping[str, str]]) -> Mapping[str, str]:
    """Return the properties file, with klamm's own configs replaced by their dynamic values.

    Args:
        static: Settings of the properties file.
        layers: Dynamic configs of the cluster default and of the first broker id; later ones take precedence.
    """
    own = own_broker_configs()
    found = dict(static)
    for layer in layers:
        found.update({name: value for name, value in layer.items() if name in own})
    return MappingProxyType(found)
