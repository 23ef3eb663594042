"""``klamm configs``: kafka-configs.sh for every day.

``plan`` and ``apply`` keep topics as a file says; ``history`` and ``revert`` tell who changed what, and bring it back.

Flags, stdout and exit codes are those of Kafka 4.1's ConfigCommand. Deliberately different: flags that do not go
together exit with 2, words that belong to no flag are refused, entities are listed in the order of their names
(Kafka's order is that of a hash table), and no stack trace follows an error. Users and clients have, besides quotas and
SCRAM credentials, the dynamic configs of KIP-649.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.cli.configs.options import parse, target
from klamm.cli.connecting import connect, guarded
from klamm.cli.output import complain, write

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_PROG: Final = "klamm configs"


def main(arguments: Sequence[str]) -> int:
    """Run one action; 0 when it is done, 1 when it was refused, 2 (by SystemExit) when the flags are wrong."""
    if arguments and arguments[0] in {"plan", "apply"}:
        from klamm.cli.configs.plan import main as plan_or_apply  # noqa: PLC0415  # only these two need YAML

        return plan_or_apply(arguments)
    if arguments and arguments[0] in {"history", "revert"}:
        from klamm.cli.configs.history import main as history_or_revert  # noqa: PLC0415

        return history_or_revert(arguments)
    options = parse(arguments)
    return guarded(_PROG, lambda: _run(options), complain_with=complain)


def _run(options: argparse.Namespace) -> int:
    found = target(options)
    from klamm.cli.configs import resources, users  # noqa: PLC0415  # wrong flags need no network library
    from klamm.cli.configs.changes import read_changes  # noqa: PLC0415

    if options.describe:
        show = users.describe if found.has_quotas else resources.describe
        with connect(options) as admin:
            show(admin, found, options)
        return 0
    changes = read_changes(options)
    if found.has_quotas:
        users.route(found, changes)  # what is wrong in itself is told before anything is connected
    with connect(options) as admin:
        change = users.alter if found.has_quotas else resources.alter
        effects = change(admin, found, changes, options)
    document = {
        "entity": dict(zip(found.types, found.names, strict=True)),
        "changes": changes.document(),
        "validate_only": options.validate_only,
    }
    done = found.valid() if options.validate_only else found.completed()
    write(options.output, document, lambda: [done, *effects])
    return 0
