"""Config providers: ``${provider:path:key}`` references in values, for secrets in separate files (KIP-297)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.patterns import java_pattern
from klamm.properties import SettingsError, file_error, parse_list, read_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Provider = Callable[[str, str, str], str | None]
    """From the key that refers to it, a path and a name to the value; None: there is none."""

_REFERENCE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
"""Kafka's ``ConfigTransformer.DEFAULT_PATTERN``. A path ends at the first colon; the key may contain more of them."""
_JAVA_PACKAGE: Final = "org.apache.kafka.common.config.provider."


def resolve(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a client or a mirror with all references to ``config.providers`` resolved.

    References to other providers stay as they are, as in Kafka.

    Raises:
        SettingsError: A provider's class is not one of Kafka's three, or a reference does not exist or is not allowed
            (``allowed.paths``, ``allowlist.pattern``). The message never contains a secret.
    """
    names = parse_list(properties.get("config.providers", ""))
    providers = {name: _provider(properties, name) for name in names}
    if not providers:
        return dict(properties)

    def resolved(key: str, value: str) -> str:
        def replace(reference: re.Match[str]) -> str:
            name, path, wanted = reference.groups()
            if name not in providers:
                return reference[0]
            value = providers[name](key, path or "", wanted)
            if value is None:
                raise SettingsError(f"{key}: {reference[0]} does not exist")
            return value

        return _REFERENCE.sub(replace, value)

    return {key: resolved(key, value) for key, value in properties.items()}


def _provider(properties: Mapping[str, str], name: str) -> Provider:
    key = f"config.providers.{name}.class"
    chosen = properties.get(key, "").strip()
    parameters = f"config.providers.{name}.param."
    match chosen.removeprefix(_JAVA_PACKAGE):
        case "FileConfigProvider":
            return _within(properties, f"{parameters}allowed.paths", _from_file)
        case "DirectoryConfigProvider":
            return _within(properties, f"{parameters}allowed.paths", _from_directory)
        case "EnvVarConfigProvider":
            return _listed(properties, f"{parameters}allowlist.pattern", _from_environment)
        case _:
            raise SettingsError(
                f"{key}={chosen}: expected {_JAVA_PACKAGE}FileConfigProvider, DirectoryConfigProvider "
                "or EnvVarConfigProvider"
            )


def _within(properties: Mapping[str, str], limit: str, read: Provider) -> Provider:
    """Return a resolver limited to the paths of ``allowed.paths``, if that is set (KIP-993)."""
    allowed = parse_list(properties.get(limit, ""))
    for place in allowed:
        if not Path(place).is_absolute():
            raise SettingsError(f"{limit}={properties[limit]}: expected absolute paths, {place} is relative")

    def limited(key: str, path: str, wanted: str) -> str | None:
        if not allowed:
            return read(key, path, wanted)
        # Symbolic links are not resolved, as in Kafka: mounted secrets are symbolic links. The normalized path is read,
        # because in the path as it is, ".." after a symbolic link leads to another place.
        normal = Path(os.path.normpath(path))
        if not any(normal.is_relative_to(os.path.normpath(place)) for place in allowed):
            raise SettingsError(f"{key}: {path} is not within {limit}={properties[limit]}")
        return read(key, str(normal), wanted)

    return limited


def _listed(properties: Mapping[str, str], limit: str, read: Provider) -> Provider:
    """Return a resolver limited to the variables that match ``allowlist.pattern``, if that is set (KIP-887)."""
    pattern = properties.get(limit, "").strip()
    try:
        allowed = java_pattern(pattern) if pattern else None
    except re.error as error:
        raise SettingsError(f"{limit}={pattern}: expected a regular expression in Java's syntax: {error}") from error

    def limited(key: str, path: str, wanted: str) -> str | None:
        if allowed is not None and allowed.fullmatch(wanted) is None:
            raise SettingsError(f"{key}: {wanted} is not one that {limit}={pattern} allows")
        return read(key, path, wanted)

    return limited


def _from_file(key: str, path: str, wanted: str) -> str | None:
    try:
        return read_properties(Path(path)).get(wanted)
    except SettingsError as error:
        raise SettingsError(f"{key}: {error}") from error


def _from_directory(key: str, path: str, wanted: str) -> str | None:
    file = Path(path) / wanted
    if file.parent != Path(path):
        raise SettingsError(f"{key}: {wanted} is not a file in the directory {path}")
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{key}: {file} cannot be read: {file_error(error)}") from error


def _from_environment(key: str, path: str, wanted: str) -> str | None:
    if path:
        raise SettingsError(f"{key}: expected ${{provider:NAME}} for an environment variable, without a path")
    return os.environ.get(wanted)
