"""Commands ``klamm configs history`` and ``klamm configs revert``: past config changes, and their reversal.

``recorded_changes`` reads them, from the broker's data directory or from the topic of gateways.
``revert`` sends one alter request with the values at the given time. Configs that did not change since then are left
alone. Quotas can be reverted too. SCRAM credentials cannot, because the history does not keep passwords.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from functools import partial
from typing import TYPE_CHECKING, Final

from klamm.cli.arguments import TO_HELP, ToolParser, add_common, moment_ms, shown_moment, whole_number
from klamm.cli.connection import RequestError, connect, guarded
from klamm.cli.output import override_lines, print_error, print_result
from klamm.cli.recorded_changes import is_client_resource, read_changes
from klamm.configs.durations import with_duration
from klamm.configs.quotas import QUOTA_RESOURCE, USER, parse_quota_resource, quota_resource
from klamm.display import counted, escaped
from klamm.properties import SettingsError
from klamm.protocol.errors import InvalidRequestError
from klamm.protocol.types import RESOURCE_TYPES, ResourceType
from klamm.security.principals import user_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from klamm.admin import PolicyOverride
    from klamm.configs.quotas import QuotaEntity
    from klamm.history.change import RecordedChange
    from klamm.history.revert import Reversal

ALL_LINES: Final = 1_000_000
_SCRAM: Final = "SCRAM"
_ENTITY_TYPES: Final = {"topics": "TOPIC", "brokers": "BROKER", "groups": "GROUP", "client-metrics": "CLIENT_METRICS"}
_SHORT_FLAGS: Final = {
    "topic": "topics",
    "broker": "brokers",
    "group": "groups",
    "client-metrics": "client-metrics",
}
_KINDS: Final = {kind.name: kind for kind in RESOURCE_TYPES if kind is not ResourceType.BROKER_LOGGER}


def parser(action: str) -> ToolParser:
    """Return the argument parser of ``history`` or ``revert``."""
    found = ToolParser(
        prog=f"klamm configs {action}",
        description="Show past config changes with time and principal, the newest first."
        if action == "history"
        else "Restore the configs that a resource had at a time. Configs that were not changed since are left alone.",
        epilog="A resource is TOPIC:name, BROKER:id, BROKER: (the default of all brokers), GROUP:id"
        " or CLIENT_METRICS:name; of quotas QUOTA:user=alice,client-id=reports (<default> for the default one);"
        " of SCRAM credentials SCRAM:alice; for client configs the name shown by the history, e.g. \"user 'alice'\".",
    )
    found.add_value(
        "--data-dir",
        metavar="DIR",
        help="the broker's data directory; the broker may be running (default: log.dirs of a local --bootstrap-server,"
        " or the topics of klamm gateways)",
    )
    add_common(found, instead=("data_dir",))
    found.add_value(
        "--resource", metavar="TYPE:NAME", help="only this resource; the flags below are other ways to name it"
    )
    found.add_value("--entity-type", metavar="TYPE", help=f"one of {', '.join(_ENTITY_TYPES)}")
    found.add_value("--entity-name", metavar="NAME", help="its name")
    found.add_switch("--entity-default", help="the default of all brokers")
    for flag, entity_type in _SHORT_FLAGS.items():
        found.add_value(f"--{flag}", metavar="NAME", help=f"the same as --entity-type {entity_type} --entity-name NAME")
    found.add_switch("--broker-defaults", help="the same as --entity-type brokers --entity-default")
    if action == "history":
        at_most = whole_number(ALL_LINES, lowest=1)
        found.add_argument("--limit", type=at_most, default=100, metavar="N", help="lines at most (default 100)")
    else:
        found.add_value("--to", metavar="TIME", required=True, help=TO_HELP)
        found.add_switch("--validate-only", help="check with the broker and change nothing")
    return found


def main(arguments: Sequence[str]) -> int:
    """Show or revert changes. Return 0 on success and 1 on failure; wrong flags exit with 2 (SystemExit)."""
    action = arguments[0]
    flags = parser(action)
    options = flags.parse_args(list(arguments[1:]))
    options.resource = _resource(flags, options)
    if action == "revert" and options.resource is None:
        flags.error("a resource must be specified: --topic NAME, --broker ID, ... or --resource TYPE:NAME")
    if action == "revert" and options.bootstrap_server is None:
        flags.error("--bootstrap-server must be specified")
    if options.data_dir is None and options.bootstrap_server is None:
        flags.error("--data-dir or --bootstrap-server must be specified")
    return guarded(flags.prog, lambda: _history(options) if action == "history" else _revert(options))


def _resource(flags: ToolParser, options: argparse.Namespace) -> str | None:
    """Return the one resource that the flags name, or None if they name none; exit with 2 if they name several."""
    named = [] if options.resource is None else [options.resource]
    for flag, entity_type in _SHORT_FLAGS.items():
        name = getattr(options, flag.replace("-", "_"))
        if name is not None:
            named.append(f"{_ENTITY_TYPES[entity_type]}:{name}")
    if options.broker_defaults:
        named.append("BROKER:")
    if options.entity_type is not None:
        if options.entity_type not in _ENTITY_TYPES:
            flags.error(
                f"--entity-type {options.entity_type}: expected one of {', '.join(_ENTITY_TYPES)}; users, clients and"
                " ips are named by --resource"
            )
        if options.entity_default and options.entity_type != "brokers":
            flags.error(f"--entity-default: there is no default of {options.entity_type}")
        if (options.entity_name is None) != options.entity_default:
            flags.error("--entity-type needs one of --entity-name and --entity-default")
        named.append(f"{_ENTITY_TYPES[options.entity_type]}:{options.entity_name or ''}")
    elif options.entity_name is not None or options.entity_default:
        flags.error("--entity-name and --entity-default need --entity-type")
    if len(named) > 1:
        flags.error(f"one resource at a time: {' or '.join(named)}")
    return named[0] if named else None


def _history(options: argparse.Namespace) -> int:
    lines = read_changes(options, _as_in_history(options.resource), limit=options.limit)
    if options.bootstrap_server is not None:
        _compare(options, lines, [line.resource for line in lines])
    document = [
        {
            "at": shown_moment(line.at_ms),
            "resource": line.resource,
            "name": line.name,
            "old": line.old,
            "new": line.new,
            "principal": line.principal,
            "client_id": line.client_id,
            "host": line.host,
            "is_confirmed": line.is_confirmed,
        }
        for line in lines
    ]
    print_result(options.output, document, lambda: [*map(_sentence, lines)] or [_no_change(options.resource)])
    return 0


def _compare(
    options: argparse.Namespace, changes: Sequence[RecordedChange], resources: Iterable[str]
) -> Mapping[str, Mapping[str, str]]:
    """Return the live values of resources; report on stderr those that differ from the last recorded ones."""
    from klamm.cli.configs.live import differences, live_values  # noqa: PLC0415  # --data-dir needs no network library

    with connect(options) as admin:
        live = live_values(admin, resources)
    for sentence in differences(changes, live):
        print_error(escaped(sentence))
    return live


def _no_change(resource: str | None) -> str:
    return "No change is recorded." if resource is None else f"No change of {resource} is recorded."


def _revert(options: argparse.Namespace) -> int:
    from klamm.history.revert import plan_revert  # noqa: PLC0415  # wrong flags need no database

    resource = _as_in_history(options.resource) or ""
    change = _way_back(resource)
    changes = read_changes(options, resource, limit=ALL_LINES)
    live = _compare(options, changes, [resource]).get(resource)
    plan = plan_revert(changes, resource=resource, to_ms=_to_ms(options.to), live=live)
    unknown = [reversal.name for reversal in plan if not reversal.is_known]
    if unknown:
        raise RequestError(
            f"{', '.join(unknown)}: the old value is not kept, as that of a secret; set it with klamm configs --alter"
        )
    override = change(plan, options) if plan else None
    document = [
        {"name": reversal.name, "old": reversal.replaces, "new": reversal.value, **_stored(reversal.name, override)}
        for reversal in plan
    ]
    verb = "would be reverted" if options.validate_only else "reverted"
    count = counted(len(plan), "config")
    overrides = override_lines(override, {reversal.name: reversal.value for reversal in plan})
    print_result(options.output, document, lambda: [*map(_change, plan), *overrides, f"{resource}: {count} {verb}."])
    return 0


def _stored(name: str, override: PolicyOverride | None) -> dict[str, str | None]:
    """Return what a policy of klamm stored in place of a reverted value, with its reason; empty if it did not."""
    if override is None or name not in override.values:
        return {}
    return {"stored": override.values[name], "reason": override.reason}


def _way_back(resource: str) -> Callable[[Sequence[Reversal], argparse.Namespace], PolicyOverride | None]:
    """Return the function that sends the reverting changes of a resource, given by its name in the history.

    Raises:
        RequestError: Changes of this type cannot be reverted, or only by another command, which the message names.
    """
    kind, _, name = resource.partition(":")
    if kind == _SCRAM:
        raise RequestError(
            f"{resource}: SCRAM credentials cannot be reverted, because the history does not keep passwords; set them"
            " with klamm configs --alter --user"
        )
    if kind == QUOTA_RESOURCE:
        return partial(_send_quotas, entity=parse_quota_resource(name))
    if kind in _KINDS:
        return partial(_send_configs, kind=_KINDS[kind], name=name)
    raise RequestError(f"{resource}: client configs are reverted by klamm clients revert")


def _send_quotas(plan: Sequence[Reversal], options: argparse.Namespace, *, entity: QuotaEntity) -> None:
    from klamm.admin import ClientQuotaEntity, ClientQuotaOp  # noqa: PLC0415  # an empty plan needs no network library

    operations = [
        ClientQuotaOp(reversal.name, None if reversal.value is None else float(reversal.value)) for reversal in plan
    ]
    with connect(options) as admin:
        changes = {ClientQuotaEntity(entity): operations}
        admin.alter_client_quotas(changes, validate_only=options.validate_only).all().result()


def _send_configs(
    plan: Sequence[Reversal], options: argparse.Namespace, *, kind: ResourceType, name: str
) -> PolicyOverride | None:
    from klamm.admin import (  # noqa: PLC0415  # an empty plan needs no network library
        AlterConfigOp,
        AlterConfigsOptions,
        ConfigEntry,
        ConfigResource,
        OpType,
    )

    operations = [
        AlterConfigOp(
            ConfigEntry(reversal.name, reversal.value), OpType.DELETE if reversal.value is None else OpType.SET
        )
        for reversal in plan
    ]
    with connect(options) as admin:
        asked = AlterConfigsOptions(validate_only=options.validate_only)
        resource = ConfigResource(kind, name)
        return admin.incremental_alter_configs({resource: operations}, asked).values()[resource].result()


def _as_in_history(text: str | None) -> str | None:
    """Return a resource in the spelling of the history.

    Raises:
        SettingsError: The text is not ``TYPE:NAME`` with a known type, or not a valid quota entity.
    """
    if text is None or is_client_resource(text):
        return text
    kind, colon, name = text.partition(":")
    if kind.upper() == QUOTA_RESOURCE and colon:
        try:
            entity = parse_quota_resource(name)
            return quota_resource(tuple((each, of and (user_name(of) if each == USER else of)) for each, of in entity))
        except InvalidRequestError as error:
            raise SettingsError(f"--resource {text}: {error}") from error
    kinds = (*_KINDS, QUOTA_RESOURCE, _SCRAM)
    if not colon or kind.upper() not in kinds:
        example = f"; a topic is TOPIC:{text}" if not colon else ""
        raise SettingsError(f"--resource {text}: expected TYPE:NAME with a type of {', '.join(kinds)}{example}")
    return f"{kind.upper()}:{user_name(name) if kind.upper() == _SCRAM else name}"


def _to_ms(text: str) -> int:
    try:
        return moment_ms(text)
    except ArgumentTypeError as error:
        raise SettingsError(f"--to {error}") from error


def _sentence(line: RecordedChange) -> str:
    client = f" ({line.client_id})" if line.client_id else ""
    host = f" from {line.host}" if line.host else ""
    doubt = "" if line.is_confirmed else ", but the response was lost or left it in doubt: it may not have been made"
    change = f"{_shown(line.name, line.old)} -> {_shown(line.name, line.new)}"
    return (
        f"{shown_moment(line.at_ms)}  {line.resource}  {line.name}: {change}  by {line.principal}{client}{host}{doubt}"
    )


def _change(reversal: Reversal) -> str:
    mark = "-" if reversal.value is None else "~" if reversal.replaces is not None else "+"
    before, after = (_shown(reversal.name, value) for value in (reversal.replaces, reversal.value))
    return f"  {mark} {reversal.name}: {before} -> {after}"


def _shown(name: str, value: str | None) -> str:
    if value is None:
        return "unset"
    return repr(value) if value == "" or value != value.strip() else with_duration(name, value)
