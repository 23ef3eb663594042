"""Command ``klamm groups``: the counterpart of kafka-consumer-groups.sh, with JSON or YAML output.

Flags and stdout are those of Kafka 4.3's ConsumerGroupCommand. Errors go to stdout as in Kafka, or to stderr with
``-o json`` and ``-o yaml``. These differences are deliberate:

- A failed action exits with 1. Kafka's tool prints the error and exits with 0.
- Conflicting flags exit with 2.
- Words that belong to no flag are rejected.
- ``--list`` prints the groups of the brokers that respond, and a warning for each of the others on stderr.
- Groups and partitions are listed by name (Kafka lists them in the order of a hash table).
- Errors have neither a stack trace nor the name of a Java exception.
- ``--to-datetime`` may leave out the time of day, which is then midnight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.cli.connection import RequestError, connect, guarded
from klamm.cli.groups.description import reason
from klamm.cli.groups.options import TIMEOUT_MS, parse
from klamm.cli.output import print_error, print_line
from klamm.protocol.errors import KafkaApiError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_PROG = "klamm groups"


def main(arguments: Sequence[str]) -> int:
    """Run one action. Return 0 on success and 1 on failure; wrong flags exit with 2 (SystemExit)."""
    options = parse(arguments)
    if options.validate_regex is not None:
        return guarded(_PROG, lambda: _validate_regex(options))

    def work() -> int:
        from klamm.cli.groups import deletion, description, offset_reset  # noqa: PLC0415  # wrong flags need no network

        do = {
            "list": description.list_groups,
            "describe": description.describe,
            "reset_offsets": offset_reset.reset,
            "delete_offsets": deletion.delete_offsets,
            "delete": deletion.delete_groups,
        }
        chosen = next(action for name, action in do.items() if getattr(options, name))
        with connect(options, timeout_ms=TIMEOUT_MS) as admin:
            try:
                return chosen(admin, options)
            except KafkaApiError as error:
                raise RequestError(reason(error)) from error

    if options.output != "human":
        return guarded(_PROG, work)
    return guarded(
        "",
        work,
        on_failure=lambda line: print_line(f"\nError: Executing consumer group command failed due to {line}"),
    )


def _validate_regex(options: argparse.Namespace) -> int:
    """Check a regular expression as brokers read it, which is RE2 (KIP-848). Needs no connection."""
    import re2  # noqa: PLC0415  # only this action needs it

    pattern, settings = options.validate_regex, re2.Options()
    settings.log_errors = False
    try:
        re2.compile(pattern, settings)
    except re2.error as error:
        print_error(f"The regular expression `{pattern}` is invalid: {error.args[0].decode()}.")
        return 1
    print_line(f"The regular expression `{pattern}` is valid.")
    return 0
