"""Parser of the file that declares topics for ``klamm configs plan`` and ``apply``.

::

    topics:
      orders:
        partitions: 6
        replication_factor: 3
        configs:
          retention.ms: 7d
          cleanup.policy: [compact, delete]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from klamm.configs.durations import without_unit
from klamm.properties import SettingsError, did_you_mean
from klamm.strict_yaml import StrictYamlError, load_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_TOPIC_KEYS: Final = ("partitions", "replication_factor", "configs")
_MAX_REPLICATION_FACTOR: Final = 2**15 - 1
_MAX_PARTITIONS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTopic:
    """One topic as declared in the file."""

    name: str
    partitions: int | None = None
    """None means the broker's default for a new topic, and no change for an existing one."""
    replication_factor: int | None = None
    """None means the broker's default for a new topic, and no change for an existing one."""
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def parse_document(text: str) -> tuple[DeclaredTopic, ...]:
    """Return the topics of a file, in file order.

    Raises:
        SettingsError: The text is not YAML, or a key or value is invalid. The message contains the key, the value and
            the allowed values.
    """
    try:
        content = load_yaml(text)
    except StrictYamlError as error:
        raise SettingsError(str(error)) from error
    document = _mapping("the file", content, ("topics",))
    topics = _mapping("topics", document.get("topics"), None)
    return tuple(_topic(name, content) for name, content in topics.items())


def read_document(path: Path) -> tuple[DeclaredTopic, ...]:
    """Return the topics that a file declares.

    Raises:
        SettingsError: The file cannot be read, or ``parse_document`` rejects it. The message begins with the path.
    """
    try:
        return parse_document(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(f"{path}: cannot be read: {reason}") from error
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def _topic(name: str, content: object) -> DeclaredTopic:
    where = f"topics.{name}"
    if content is None:
        return DeclaredTopic(name=name)
    fields = _mapping(where, content, _TOPIC_KEYS)
    configs = fields.get("configs")
    return DeclaredTopic(
        name=name,
        partitions=_count(f"{where}.partitions", fields.get("partitions"), _MAX_PARTITIONS),
        replication_factor=_count(
            f"{where}.replication_factor", fields.get("replication_factor"), _MAX_REPLICATION_FACTOR
        ),
        configs=MappingProxyType(
            {}
            if configs is None
            else {
                key: without_unit(key, _config(f"{where}.configs.{key}", value))
                for key, value in _mapping(f"{where}.configs", configs, None).items()
            }
        ),
    )


def _mapping(where: str, content: object, allowed: Sequence[str] | None) -> dict[str, Any]:
    if not isinstance(content, dict):
        expected = "a mapping" if allowed is None else f"a mapping with {', '.join(allowed)}"
        raise SettingsError(f"{where}: {content!r}: expected {expected}")
    for key in content:
        if not isinstance(key, str):
            raise SettingsError(f"{where}: key {key!r}: expected a string; put it in quotes")
        if allowed is not None and key not in allowed:
            raise SettingsError(
                f"{where}: unknown key {key}: expected one of {', '.join(allowed)}{did_you_mean(key, allowed)}"
            )
    return content


def _count(where: str, value: object, highest: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= highest:
        raise SettingsError(f"{where}: {value!r}: expected a whole number from 1 to {highest}")
    return value


def _config(where: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, (str, int)) for item in value):
        return ",".join(map(str, value))
    raise SettingsError(
        f"{where}: {value!r}: expected a string, a number, true, false or a list of strings (a key that is left out"
        " keeps its value)"
    )
