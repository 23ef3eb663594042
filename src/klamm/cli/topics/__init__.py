"""Command ``klamm topics``: the counterpart of kafka-topics.sh, with ``--validate-only`` and JSON or YAML output.

Flags, stdout and exit codes are those of Kafka 4.3's TopicCommand. Errors go to stdout as in Kafka, or to stderr with
``-o json`` and ``-o yaml``. These differences are deliberate:

- Conflicting flags exit with 2.
- Words that belong to no flag are rejected.
- Topics are described by name (Kafka describes them in the order of a hash table).
- Errors have no stack trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.cli.connection import connect, guarded
from klamm.cli.output import print_line
from klamm.cli.topics.options import parse

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run one action. Return 0 on success and 1 on failure; wrong flags exit with 2 (SystemExit)."""
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
    return guarded("", work, on_failure=lambda line: print_line(f"Error while executing topic command : {line}"))
