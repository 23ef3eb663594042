"""Levels of the broker's loggers (KIP-412), with Kafka's level names."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.broker.configs.rules import ROOT

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
    """Loggers of this process: the root logger and those of klamm.

    As in Kafka, changed levels are lost at a restart.
    """

    def levels(self) -> Mapping[str, str]:
        """Return the effective level of every logger."""
        names = [name for name in logging.Logger.manager.loggerDict if name.split(".")[0] == _PACKAGE]
        levels = {name: _level_name(logging.getLogger(name).getEffectiveLevel()) for name in names}
        return {ROOT: _level_name(logging.getLogger().getEffectiveLevel()), **levels}

    def apply(self, changes: Sequence[ConfigDelta]) -> None:
        """Set levels. A logger whose level is removed inherits the level of its parent."""
        for change in changes:
            logger = logging.getLogger(None if change.name == ROOT else change.name)
            logger.setLevel(logging.NOTSET if change.value is None else _NUMBERS[change.value])


def _level_name(number: int) -> str:
    """Return the name of Kafka's lowest level that is at least ``number``."""
    return next((name for name, level in _NUMBERS.items() if number <= level), "FATAL")
