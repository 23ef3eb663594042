"""Command ``klamm mirror mm2.properties`` and its actions on the same file, such as ``klamm mirror verify``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ACTIONS: Final[Mapping[str, str]] = {
    "cutover": "klamm.cli.mirror.cutover",
    "status": "klamm.cli.mirror.status",
    "verify": "klamm.cli.mirror.verify",
}
"""Module with ``main(arguments)`` for each action. Any other first word is the properties file of a mirror to run."""


def main(arguments: Sequence[str]) -> int:
    """Run a mirror, or the action of the first word. Return 0 on success, 1 on failure and 2 for wrong usage."""
    action = ACTIONS.get(arguments[0]) if arguments else None
    module = import_module(action or "klamm.cli.mirror.run")
    return int(module.main(arguments[1:] if action else arguments))
