"""``klamm mirror mm2.properties``, and what else is done with the same file: ``klamm mirror verify mm2.properties``."""

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
"""By first word, the module whose ``main(arguments)`` does it; a first word that is none is the file to run."""


def main(arguments: Sequence[str]) -> int:
    """Run a mirror, or do what the first word says; 0 when all went well, 1 when something failed, 2 wrong usage."""
    action = ACTIONS.get(arguments[0]) if arguments else None
    module = import_module(action or "klamm.cli.mirror.run")
    return int(module.main(arguments[1:] if action else arguments))
