"""Command ``klamm mirror mm2.properties`` and its actions on the same file, such as ``klamm mirror verify``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.cli import EXIT_USAGE
from klamm.cli.output import print_error
from klamm.properties import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COMMANDS: Final = "klamm.cli.mirror.commands"
_PROMOTE: Final = "klamm.cli.mirror.promote"
_OF_SEVERAL: Final = (_COMMANDS, _PROMOTE)
"""Modules of several actions. Their ``main`` gets the action, too."""
ACTIONS: Final[Mapping[str, str]] = {
    "cutover": "klamm.cli.mirror.cutover",
    "demote": _PROMOTE,
    "pause": _COMMANDS,
    "promote": _PROMOTE,
    "reset": "klamm.cli.mirror.reset",
    "restart": _COMMANDS,
    "resume": _COMMANDS,
    "status": "klamm.cli.mirror.status",
    "stop": _COMMANDS,
    "verify": "klamm.cli.mirror.verify",
}
"""Module of each action. Any other first word is the properties file of a mirror to run."""


def main(arguments: Sequence[str]) -> int:
    """Run a mirror, or the action of the first word. Return 0 on success, 1 on failure and 2 for wrong usage."""
    word = arguments[0] if arguments else ""
    action = ACTIONS.get(word)
    similar = "" if action or word.startswith("-") else did_you_mean(word, ACTIONS)
    if similar and not Path(word).exists():
        print_error(f"klamm mirror: {word} is neither a file nor an action{similar}")
        return EXIT_USAGE
    module = import_module(action or "klamm.cli.mirror.run")
    return int(module.main(arguments[1:] if action and action not in _OF_SEVERAL else arguments))
