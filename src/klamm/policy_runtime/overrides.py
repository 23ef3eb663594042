"""Requests with the values that a policy sets instead of the given ones (action OVERRIDE). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.types import ConfigOperation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.configs.operations import AlterOperation


def overridden_configs(
    configs: Sequence[tuple[str, str | None]], changed: Mapping[str, str | None]
) -> list[tuple[str, str | None]]:
    """Return the configs of a new topic, or of a replacing AlterConfigs, after an override."""
    kept = [(name, value) for name, value in configs if name not in changed]
    return [*kept, *((name, value) for name, value in changed.items() if value is not None)]


def overridden_operations(
    operations: Sequence[AlterOperation], changed: Mapping[str, str | None]
) -> list[AlterOperation]:
    """Return the operations of an IncrementalAlterConfigs after an override."""
    kept = [operation for operation in operations if operation.name not in changed]
    return [
        *kept,
        *(
            IncrementalAlterConfigsRequest.AlterableConfig(
                name=name,
                config_operation=ConfigOperation.DELETE if value is None else ConfigOperation.SET,
                value=value,
            )
            for name, value in changed.items()
        ),
    ]
