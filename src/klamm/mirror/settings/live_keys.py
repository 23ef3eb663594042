"""Keys of ``mm2.properties`` that count without a restart: ``klamm.max.bytes.per.second``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from klamm.config_providers import resolve
from klamm.mirror.settings.definitions import MAX_BYTES_PER_SECOND
from klamm.mirror.settings.key_reader import KeyReader
from klamm.properties import SettingsError, read_properties

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from klamm.mirror.settings.flow import FlowSettings

logger = logging.getLogger(__name__)


class LiveKeys:
    """Live keys of a properties file. The content decides, not the modification time, so a replaced file counts too."""

    def __init__(self, path: Path, overrides: Mapping[str, str] | None = None) -> None:
        """Read the file later, with the first ``limits``.

        Args:
            path: Path of ``mm2.properties``.
            overrides: Keys that replace those of the file.
        """
        self._path = path
        self._overrides = dict(overrides or {})
        self._error = ""

    def limits(self, flows: Sequence[FlowSettings]) -> dict[str, int] | None:
        """Return the bytes per second of each flow that has a limit, or None if the file has an error.

        An error is logged once; the mirror keeps its values.
        """
        try:
            properties = resolve({**read_properties(self._path), **self._overrides})
            limits = {flow.name: limit for flow in flows if (limit := _limit(properties, flow)) is not None}
        except SettingsError as error:
            if str(error) != self._error:
                logger.warning("%s: the current %s is kept: %s", self._path, MAX_BYTES_PER_SECOND.key, error)
            self._error = str(error)
            return None
        self._error = ""
        return limits


def _limit(properties: Mapping[str, str], flow: FlowSettings) -> int | None:
    return KeyReader(properties, flow.source.alias, flow.target.alias).get(MAX_BYTES_PER_SECOND)
