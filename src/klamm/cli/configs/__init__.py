"""Command ``klamm configs``: the counterpart of kafka-configs.sh.

``plan``, ``apply`` and ``export`` are further names of ``klamm plan``, ``apply`` and ``export``. ``history`` and
``revert`` show past changes and undo them.

Flags, stdout and exit codes are those of Kafka 4.3's ConfigCommand, with these deliberate differences:

- Conflicting flags exit with 2.
- Words that belong to no flag are rejected.
- Entities are listed by name (Kafka lists them in the order of a hash table).
- Errors have no stack trace.
- Users and clients have the dynamic configs of KIP-649 in addition to quotas and SCRAM credentials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.cli import EXIT_USAGE
from klamm.cli.arguments import unknown_action
from klamm.cli.configs.changes import client_changes, config_changes
from klamm.cli.configs.options import parse, target
from klamm.cli.connection import connect, guarded
from klamm.cli.impact import impact_lines, predicted, with_impact
from klamm.cli.output import override_document, override_lines, print_error, print_result

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from klamm.admin import AdminClient
    from klamm.cli.configs.changes import Changes
    from klamm.cli.configs.entities import Target
    from klamm.impact.changes import Change

_PROG: Final = "klamm configs"
_ACTIONS: Final = ("plan", "apply", "export", "history", "revert")


def main(arguments: Sequence[str]) -> int:
    """Run one action. Return 0 on success and 1 on failure; wrong flags exit with 2 (SystemExit)."""
    if arguments and arguments[0] in {"plan", "apply"}:
        from klamm.cli.resources.plan import main as plan_or_apply  # noqa: PLC0415

        return plan_or_apply(arguments[1:], prog=f"klamm configs {arguments[0]}")
    if arguments and arguments[0] == "export":
        from klamm.cli.resources.export import export_main  # noqa: PLC0415

        return export_main(arguments[1:], prog="klamm configs export")
    if arguments and arguments[0] in {"history", "revert"}:
        from klamm.cli.history.command import configs_main  # noqa: PLC0415

        return configs_main(arguments)
    if arguments and not arguments[0].startswith("-"):
        print_error(unknown_action(_PROG, arguments[0], _ACTIONS))
        return EXIT_USAGE
    options = parse(arguments)
    return guarded(_PROG, lambda: _run(options), on_failure=print_error)


def _run(options: argparse.Namespace) -> int:
    selected = target(options)
    from klamm.cli.configs import resources, users  # noqa: PLC0415  # wrong flags need no network library
    from klamm.cli.configs.changes import read_changes  # noqa: PLC0415

    if options.describe:
        show = users.describe if selected.has_quotas else resources.describe
        with connect(options) as admin:
            show(admin, selected, options)
        return 0
    changes = read_changes(options)
    if selected.has_quotas:
        users.route(selected, changes)  # flags that are wrong in themselves are reported before connecting
    override, effects = None, list[str]()
    with connect(options) as admin:
        impact = predicted(admin, _changes(admin, selected, changes, options), options)
        if selected.has_quotas:
            effects = users.alter(admin, selected, changes, options)
        else:
            override = resources.alter(admin, selected, changes, options)
    document = {
        "entity": dict(zip(selected.types, selected.names, strict=True)),
        "changes": changes.document(of_brokers=selected.types == ("brokers",)),
        "validate_only": options.validate_only,
        "override": override_document(override),
    }
    done = selected.valid() if options.validate_only else selected.completed()
    lines = [done, *effects, *override_lines(override, changes.requested), *impact_lines(impact)]
    print_result(options.output, with_impact(document, impact), lambda: lines)
    return 0


def _changes(admin: AdminClient, entity: Target, changes: Changes, options: argparse.Namespace) -> Sequence[Change]:
    """Return the changes whose impact a flag requests, or nothing."""
    if not options.impact and options.max_impact is None:
        return ()
    from klamm.cli.configs import clients, resources, users  # noqa: PLC0415
    from klamm.impact.changes import CredentialsRemoved  # noqa: PLC0415
    from klamm.rollout.entities import configs_of  # noqa: PLC0415

    if entity.has_quotas:
        routed = users.route(entity, changes)
        present = configs_of(admin, clients.entity_of(entity)) if routed.dynamic.is_any else {}
        of_client = client_changes(
            users.parts_of(entity), routed.quotas, routed.dynamic, present=present, percent=options.percent
        )
        mechanisms = tuple(routed.credentials.deleted)
        lost = [CredentialsRemoved(user=entity.names[0], mechanisms=mechanisms, are_all=False)] if mechanisms else []
        return [*of_client, *lost]
    return config_changes(admin, resources.resource_type(entity), entity.names[0], changes)
