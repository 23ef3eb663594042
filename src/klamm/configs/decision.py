"""Decided change of the configs of one resource, as the broker applies it and as a policy sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from klamm.configs.layers import NOTHING_SET
from klamm.configs.operations import apply_changes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.configs.operations import ConfigDelta
    from klamm.protocol.types import ResourceType


class ConfigDecision(NamedTuple):
    """Decided change of one resource, not yet applied."""

    resource_type: ResourceType
    resource_name: str
    changes: tuple[ConfigDelta, ...]
    before: Mapping[str, str] = NOTHING_SET
    """Dynamic configs of the resource at the time of the decision."""
    replaced: frozenset[str] | None = None
    """Configs that a legacy AlterConfigs names; None for IncrementalAlterConfigs."""
    defaults: Mapping[str, str] = NOTHING_SET
    """For a topic or a broker, the values of configs that it does not set, without secrets."""

    @property
    def altered(self) -> Mapping[str, str | None]:
        """Changed configs that the request names; None as value means removal.

        As in Kafka, a policy does not see the configs that a replacement removes by not naming them.
        """
        named = self.replaced
        return {change.name: change.value for change in self.changes if named is None or change.name in named}

    @property
    def result(self) -> Mapping[str, str]:
        """Dynamic configs of the resource after the change."""
        return apply_changes(self.before, self.changes)
