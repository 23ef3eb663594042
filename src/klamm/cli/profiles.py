"""Profiles of clusters, so that commands need no ``--bootstrap-server``: names for addresses and security settings.

The file is ``~/.config/klamm/config.toml``, or below ``XDG_CONFIG_HOME``::

    default = "dev"

    [clusters.dev]
    bootstrap_server = "localhost:9092"

    [clusters.prod]
    bootstrap_server = "kafka-1.example:9093,kafka-2.example:9093"
    command_config = "prod.properties"          # relative to this file

Without ``--bootstrap-server`` and ``--cluster`` the variable ``KLAMM_BOOTSTRAP_SERVER`` counts, then ``default``.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError, did_you_mean, file_error

if TYPE_CHECKING:
    import argparse

BOOTSTRAP_SERVER_VARIABLE: Final = "KLAMM_BOOTSTRAP_SERVER"
_KEYS: Final = ("bootstrap_server", "command_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Address and security settings of a cluster."""

    bootstrap_server: str
    command_config: str | None
    """File with the properties of Kafka's Java admin client. None: the cluster needs none."""


def profiles_path() -> Path:
    """Return the path of the user's profiles."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base else Path.home() / ".config") / "klamm" / "config.toml"


def find_profile(name: str) -> Profile:
    """Return the profile of a cluster.

    Raises:
        SettingsError: The file cannot be read or is invalid, or has no cluster of this name.
    """
    path = profiles_path()
    clusters = _read(path).get("clusters", {})
    if not isinstance(clusters, dict) or name not in clusters:
        names = sorted(map(str, clusters)) if isinstance(clusters, dict) else []
        expected = f"expected one of {', '.join(names)}" if names else f"expected a table [clusters.{name}] in {path}"
        raise SettingsError(f"--cluster {name}: {expected}{did_you_mean(name, names)}")
    place = f"{path}: clusters.{name}"
    table = clusters[name]
    if not isinstance(table, dict):
        raise SettingsError(f"{place}: {table!r}: expected a table with {', '.join(_KEYS)}")
    for key, value in table.items():
        if key not in _KEYS:
            raise SettingsError(
                f"{place}.{key}: unknown key: expected one of {', '.join(_KEYS)}{did_you_mean(key, _KEYS)}"
            )
        if not isinstance(value, str) or not value:
            raise SettingsError(f"{place}.{key}: {value!r}: expected a string")
    if "bootstrap_server" not in table:
        raise SettingsError(f"{place}.bootstrap_server: expected HOST:PORT, comma separated for several servers")
    config = table.get("command_config")
    try:
        file = None if config is None else str(path.parent / Path(config).expanduser())
    except RuntimeError as error:  # an unknown ~user
        raise SettingsError(f"{place}.command_config: {config!r}: {error}") from error
    return Profile(bootstrap_server=table["bootstrap_server"], command_config=file)


def fill_in(options: argparse.Namespace, *, needs_server: bool = True) -> None:
    """Set the servers and the properties of a command's options that no flag gives.

    Args:
        options: Options with ``profile``, ``bootstrap_server`` and ``command_config``.
        needs_server: Whether the variable and the default cluster count, too.

    Raises:
        SettingsError: As of ``find_profile``, or both ``--cluster`` and ``--bootstrap-server`` are given.
    """
    name = options.profile
    if options.bootstrap_server is not None:
        if name is not None:
            raise SettingsError("--cluster and --bootstrap-server: expected one of both")
        return
    if name is None and not needs_server:
        return
    if name is None:
        options.bootstrap_server = os.environ.get(BOOTSTRAP_SERVER_VARIABLE) or None
        if options.bootstrap_server is not None or (name := _default()) is None:
            return
    profile = find_profile(name)
    options.bootstrap_server = profile.bootstrap_server
    if options.command_config is None:
        options.command_config = profile.command_config


def _default() -> str | None:
    path = profiles_path()
    if not path.exists():
        return None
    default = _read(path).get("default")
    if default is not None and not isinstance(default, str):
        raise SettingsError(f"{path}: default: {default!r}: expected the name of a cluster")
    return default


def _read(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {file_error(error)}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: {error}") from error
    for key in content:
        if key not in ("default", "clusters"):
            raise SettingsError(f"{path}: unknown key {key}: expected default or clusters")
    return content
