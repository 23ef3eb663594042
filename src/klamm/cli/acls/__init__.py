"""Command ``klamm acls``: the counterpart of kafka-acls.sh, with JSON or YAML output.

Flags, stdout and exit codes are those of Kafka 4.3's AclCommand. Errors go to stdout as in Kafka, or to stderr with
``-o json`` and ``-o yaml``. These differences are deliberate:

- Conflicting flags exit with 2.
- Words that belong to no flag are rejected.
- ACLs are listed by resource (Kafka lists them in the order of a hash table).
- Errors have no stack trace.
- The answer to the question before a removal may come from a pipe. Without an answer nothing is removed, and the exit
  code is 1.
- ``--bootstrap-controller`` is rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.cli.acls.options import parse
from klamm.cli.connection import RequestError, connect, guarded
from klamm.cli.output import print_line

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run one action. Return 0 on success and 1 on failure; wrong flags exit with 2 (SystemExit)."""
    options = parse(arguments)

    def work() -> int:
        if options.bootstrap_controller is not None:
            raise RequestError("--bootstrap-controller: klamm has no separate controllers; use --bootstrap-server")
        from klamm.cli.acls import actions  # noqa: PLC0415  # wrong flags need no network library

        do = {"add": actions.add, "remove": actions.remove, "list": actions.list_acls}
        chosen = next(action for name, action in do.items() if getattr(options, name))
        with connect(options) as admin:
            return chosen(admin, options)

    if options.output != "human":
        return guarded("klamm acls", work)
    return guarded("", work, on_failure=lambda line: print_line(f"Error while executing ACL command: {line}"))
