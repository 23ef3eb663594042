"""Commands ``klamm clients history`` and ``klamm clients revert``: changes of client configs, and their reversal.

``recorded_changes`` reads the history, from the broker's data directory or from the topic of gateways. A revert is an
ordinary alter request: it needs the same ACLs, passes the same checks and is recorded like any other change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from klamm.cli.arguments import TO_HELP, ToolParser, add_common, moment_ms, shown_moment
from klamm.cli.connection import connect, guarded
from klamm.cli.output import print_result
from klamm.cli.recorded_changes import read_changes
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.rollout import PREFIX, rollout_key
from klamm.configs.durations import with_duration
from klamm.history.revert import plan_revert
from klamm.security.principals import user_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from klamm.history.change import RecordedChange
    from klamm.history.revert import Reversal

_DESCRIPTION: Final = (
    "Show the changes of client configs (history), or restore the configs of a user or client id at a time (revert).\n"
    "The history is read from the broker's data directory, or from the topic of klamm gateways.\n"
    "A revert is checked and recorded like any other change."
)
_ALL_LINES: Final = 1_000_000
_SHOWN_LINES: Final = 50


def main(arguments: Sequence[str]) -> int:
    """Run one action. Return 0 on success and 1 on failure; wrong flags exit with 2 (SystemExit)."""
    action, *rest = arguments
    prog = f"klamm clients {action}"
    parser = _parser(prog, action)
    options = parser.parse_args(rest)
    if options.user is None and not options.user_defaults:
        parser.error("--user or --user-defaults must be specified: client configs belong to a user or its client ids")
    if (options.user is not None and options.user_defaults) or (options.client is not None and options.client_defaults):
        parser.error("a name cannot be combined with --user-defaults or --client-defaults of the same kind")
    if action == "revert" and options.bootstrap_server is None:
        parser.error("--bootstrap-server must be specified")
    if options.data_dir is None and options.bootstrap_server is None:
        parser.error("--data-dir or --bootstrap-server must be specified")
    return guarded(prog, lambda: _revert(options) if action == "revert" else _history(options))


def _parser(prog: str, action: str) -> ToolParser:
    parser = ToolParser(prog=prog, description=_DESCRIPTION)
    add_common(parser, instead=("data_dir",))
    parser.add_value(
        "--data-dir",
        metavar="DIR",
        help="the broker's data directory; the broker may be running (default: log.dirs of a local --bootstrap-server,"
        " or the topics of klamm gateways)",
    )
    parser.add_value("--user", metavar="NAME", help="the user")
    parser.add_switch("--user-defaults", help="the default user")
    parser.add_value("--client", metavar="ID", help="the client id of this user; without it the user itself")
    parser.add_switch("--client-defaults", help="the default client id of this user")
    if action == "revert":
        parser.add_value("--to", type=moment_ms, required=True, metavar="TIME", help=TO_HELP)
        parser.add_switch("--validate-only", help="show what would change, and change nothing")
    else:
        parser.add_value("--limit", type=int, metavar="N", help=f"show at most N changes (default {_SHOWN_LINES})")
    return parser


def _entity(options: argparse.Namespace) -> ClientConfigEntity:
    user = None if options.user_defaults else user_name(options.user)
    if options.client is None and not options.client_defaults:
        return ClientConfigEntity.of_user(user)
    return ClientConfigEntity.of_client(user, options.client)


def _history(options: argparse.Namespace) -> int:
    lines = _read(options, limit=options.limit or _SHOWN_LINES)
    nothing = f"No change of {_entity(options)} is recorded."
    print_result(options.output, [_document(line) for line in lines], lambda: [*map(_line, lines)] or [nothing])
    return 0


def _read(options: argparse.Namespace, *, limit: int) -> Sequence[RecordedChange]:
    return read_changes(options, str(_entity(options)), limit=limit)


def _document(line: RecordedChange) -> dict[str, Any]:
    return {
        "at": shown_moment(line.at_ms),
        "name": line.name,
        "old": line.old,
        "new": line.new,
        "principal": line.principal,
        "client_id": line.client_id,
    }


def _line(line: RecordedChange) -> str:
    return f"{shown_moment(line.at_ms)}  {line.principal}  {_change(line.name, line.old, line.new)}"


def _change(name: str, old: str | None, new: str | None) -> str:
    before, after = (None if value is None else with_duration(name, value) for value in (old, new))
    if before is None:
        return f"+ {name}={after}"
    return f"- {name} (was {before})" if after is None else f"~ {name}: {before} -> {after}"


def _revert(options: argparse.Namespace) -> int:
    from klamm.admin import ClientConfigOp  # noqa: PLC0415  # wrong flags need no network library
    from klamm.cli.configs.clients import configs_of  # noqa: PLC0415

    entity = _entity(options)
    reversals = plan_revert(_read(options, limit=_ALL_LINES), resource=str(entity), to_ms=options.to)
    if reversals:
        with connect(options) as admin:
            wanted = _wanted(reversals, configs_of(admin, entity))
            operations = [ClientConfigOp(name, value) for name, value in wanted.items()]
            admin.alter_client_configs({entity: operations}, validate_only=options.validate_only).all().result()
    print_result(options.output, [_planned(one) for one in reversals], lambda: _said(reversals, options))
    return 0


def _wanted(reversals: Sequence[Reversal], present: Mapping[str, str]) -> dict[str, str | None]:
    """Return the values to set, and None for each config to remove.

    The broker may change a config's roll-out when the config changes, and the config when its roll-out changes.
    Whichever of the two must keep its present value is therefore sent as well, with that value.
    """
    wanted = {one.name: one.value for one in reversals}
    for one in reversals:
        key = one.name.removeprefix(PREFIX)
        if rollout_key(key) in present or rollout_key(key) in wanted:
            for name in (key, rollout_key(key)):
                wanted.setdefault(name, present.get(name))
    return wanted


def _planned(one: Reversal) -> dict[str, str | None]:
    return {"name": one.name, "old": one.replaces, "new": one.value}


def _said(reversals: Sequence[Reversal], options: argparse.Namespace) -> list[str]:
    if not reversals:
        return [f"Nothing to change: {_entity(options)} has the same configs as at {shown_moment(options.to)}."]
    done = "Would change" if options.validate_only else "Changed"
    return [*(_change(one.name, one.replaces, one.value) for one in reversals), f"{done}: {len(reversals)}."]
