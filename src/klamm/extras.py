"""Optional dependencies: the extras of the package, and the error for one that is not installed.

``pip install klamm`` brings the broker, the admin client, the policies and the command line. What only some users
need is an extra: ``pip install 'klamm[spark]'``.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MissingExtraError"]

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "spark": ("pyspark", "pyarrow", "pandas", "rich"),
        "security": ("cryptography", "jwt"),
        "uvloop": ("uvloop",),
        "confluent": ("confluent_kafka",),
        "aiokafka": ("aiokafka",),
    }
)
"""Modules that an extra provides, by the name of the extra in ``pyproject.toml``."""


class MissingExtraError(ModuleNotFoundError):
    """A feature needs an extra of klamm that is not installed. The message names the command that installs it."""


def require_extra(extra: str, *, feature: str) -> None:
    """Raise an error unless all modules of an extra are installed. None of them is imported.

    Args:
        extra: A key of ``EXTRAS``.
        feature: What needs it, for the message: a command, a module or a setting.

    Raises:
        MissingExtraError: A module of the extra is not installed.
    """
    missing = [module for module in EXTRAS[extra] if find_spec(module) is None]
    if missing:
        raise MissingExtraError(
            f"{feature} needs {_listed(missing)}, which klamm does not install by default and {sys.executable} lacks. "
            f"Install it with: pip install 'klamm[{extra}]'",
            name=missing[0],
        )


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
