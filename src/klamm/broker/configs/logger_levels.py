"""Rules for changes of the broker's log levels (KIP-412)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.configs.operations import ConfigDelta, check_operations
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError
from klamm.protocol.types import ConfigOperation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.configs.operations import AlterOperation

ROOT: Final = "root"
LEVELS: Final = ("DEBUG", "ERROR", "FATAL", "INFO", "TRACE", "WARN")


def plan_logger_levels(known: Mapping[str, str], operations: Sequence[AlterOperation]) -> tuple[ConfigDelta, ...]:
    """Decide on operations on loggers: either all are valid or none is applied.

    Args:
        known: Effective level of every existing logger.
        operations: Requested operations.

    Raises:
        InvalidConfigError: A logger or a level does not exist.
        InvalidRequestError: The operation is not defined for loggers, or would remove the level of the root logger.
    """
    check_operations(operations)
    return tuple(_plan_one(known, operation) for operation in operations)


def _plan_one(known: Mapping[str, str], operation: AlterOperation) -> ConfigDelta:
    name, level = operation.name, operation.value
    match operation.config_operation:
        case ConfigOperation.SET | ConfigOperation.DELETE as kind:
            if name not in known:
                raise InvalidConfigError(f"Logger {name} does not exist!")
            if kind == ConfigOperation.DELETE:
                if name == ROOT:
                    raise InvalidRequestError(f"Removing the log level of the {ROOT} logger is not allowed")
                return ConfigDelta(name=name, value=None)
            if level not in LEVELS:
                raise InvalidConfigError(
                    f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
                    f"Valid log levels are {', '.join(LEVELS)}"
                )
            return ConfigDelta(name=name, value=level)
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT as kind:
            raise InvalidRequestError(
                f"{ConfigOperation(kind).name} operation is not allowed for the BROKER_LOGGER resource"
            )
        case unknown:
            raise InvalidRequestError(f"Unknown operations type {unknown}")
