"""The levels of the broker's loggers (KIP-412), by the names that Kafka gives levels."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.broker.configs.logger_levels import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.configs.operations import ConfigDelta

_NUMBERS: Final = MappingProxyType(
    {
        "TRACE": 5,
        "DEBUG": logging.DEBUG,
        "INFO": logging.INFO,
        "WARN": logging.WARNING,
        "ERROR": logging.ERROR,
        "FATAL": logging.CRITICAL,
    }
)
_PACKAGE: Final = "klamm"


class PythonLoggers:
    """The loggers of this process: the root and those of klamm. Levels last as long as the process, as in Kafka."""

    def levels(self) -> Mapping[str, str]:
        """Return the level in force of every logger."""
        names = [name for name in logging.Logger.manager.loggerDict if name.split(".")[0] == _PACKAGE]
        levels = {name: _level_name(logging.getLogger(name).getEffectiveLevel()) for name in names}
        return {ROOT: _level_name(logging.getLogger().getEffectiveLevel()), **levels}

    def apply(self, changes: Sequence[ConfigDelta]) -> None:
        """Set levels; a removed level is inherited again."""
        for change in changes:
            logger = logging.getLogger(None if change.name == ROOT else change.name)
            logger.setLevel(logging.NOTSET if change.value is None else _NUMBERS[change.value])


def _level_name(number: int) -> str:
    """Return the lowest of Kafka's levels that lets as much through."""
    return next((name for name, level in _NUMBERS.items() if number <= level), "FATAL")
