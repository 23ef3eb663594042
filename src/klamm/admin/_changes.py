"""Config changes as keyword arguments: dictionaries and lists instead of one object per operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from klamm.admin.types import AlterConfigOp, ConfigEntry, OpType

Scalar: TypeAlias = str | int | float
"""A config value. True and False are sent as ``true`` and ``false``."""
ConfigValue: TypeAlias = Scalar | Iterable[Scalar]
"""A config value, or the elements of a list config."""


def operations(
    *,
    set: Mapping[str, ConfigValue],  # noqa: A002 - KIP-339's word
    append: Mapping[str, ConfigValue],
    subtract: Mapping[str, ConfigValue],
    delete: Iterable[str],
) -> list[AlterConfigOp]:
    """Return the operations of KIP-339 for the arguments.

    Raises:
        TypeError: ``delete`` is a single string, which would otherwise be read as one key per character.
    """
    if isinstance(delete, str):
        raise TypeError(f"delete={delete!r}: expected a list of keys, as in delete=[{delete!r}]")
    changes = [
        AlterConfigOp(ConfigEntry(name, _text(value)), kind)
        for kind, values in ((OpType.SET, set), (OpType.APPEND, append), (OpType.SUBTRACT, subtract))
        for name, value in values.items()
    ]
    return changes + [AlterConfigOp(ConfigEntry(name, None), OpType.DELETE) for name in delete]


def _text(value: ConfigValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    return ",".join(map(_text, value))
