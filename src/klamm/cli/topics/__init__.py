"""``klamm topics``: kafka-topics.sh for every day, with ``--validate-only`` and JSON or YAML where they are wanted.

Flags, stdout and exit codes are those of Kafka 4.1's TopicCommand, its failures on stdout included (with ``-o json`` or
``yaml`` they go to stderr). Deliberately different: flags that do not go together exit with 2, words that belong to
no flag are refused, topics are described in the order of their names (Kafka's order is that of a hash table), and no
stack trace follows an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.cli.connecting import connect, guarded
from klamm.cli.output import say
from klamm.cli.topics.options import parse

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run one action; 0 when it is done, 1 when it was refused, 2 (by SystemExit) when the flags are wrong."""
    options = parse(arguments)

    def work() -> int:
        from klamm.cli.topics import actions  # noqa: PLC0415  # wrong flags need no network library

        do = {
            "create": actions.create,
            "list": actions.list_all,
            "alter": actions.alter,
            "delete": actions.delete,
            "describe": actions.describe,
        }
        chosen = next(action for name, action in do.items() if getattr(options, name))
        with connect(options) as admin:
            chosen(admin, options)
        return 0

    if options.output != "human":
        return guarded("klamm topics", work)
    return guarded("", work, complain_with=lambda line: say(f"Error while executing topic command : {line}"))
