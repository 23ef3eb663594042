"""Commands ``history`` and ``revert`` of ``klamm configs`` and ``klamm clients``: recorded changes, and their reversal.

``reader`` reads the changes, from the broker's data directory or from the topics of gateways. ``revert`` sends one
alter request with the values at the given time. It needs the same ACLs as any change, passes the same checks and is
recorded. Configs that did not change since then are left alone. Quotas can be reverted too. SCRAM credentials cannot,
because the history does not keep passwords.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.cli.arguments import TO_HELP, ToolParser, add_common, moment_ms, shown_moment
from klamm.cli.connection import RequestError, connect, guarded
from klamm.cli.history.reader import check_cluster, is_client_resource, read_changes
from klamm.cli.impact import add_impact_flags, impact_lines, predicted, with_impact
from klamm.cli.output import override_lines, print_error, print_result
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.rollout import PREFIX, rollout_key
from klamm.configs.durations import with_duration
from klamm.configs.names import identity_of
from klamm.configs.quotas import QUOTA_RESOURCE, entity_text, parse_entity_text
from klamm.display import counted, escaped
from klamm.history.change import plan_revert
from klamm.impact.changes import ClientConfigAltered, ConfigAltered, QuotaAltered
from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError
from klamm.protocol.errors import InvalidRequestError
from klamm.protocol.types import RESOURCE_TYPES, ResourceType
from klamm.security.principals import user_name
from klamm.server.arguments import whole_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from klamm.admin import PolicyOverride
    from klamm.configs.quotas import QuotaEntity
    from klamm.history.change import RecordedChange, Reversal
    from klamm.impact.findings import Impact

_Reverted: TypeAlias = "tuple[PolicyOverride | None, Impact | None]"
"""Values that a policy stored in place of the reverted ones, and the predicted impact if it was requested."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Resource of a command, and the way to change it."""

    resource: str | None
    """Name of the resource in the history. None: all resources."""
    way_back: Callable[[str], Callable[[Sequence[Reversal], argparse.Namespace], _Reverted]]
    """Function that returns the function which sends the reverting changes of a resource."""


def configs_main(arguments: Sequence[str]) -> int:
    """Run ``klamm configs history`` or ``revert``.

    Return 0 on success and 1 on failure; wrong flags exit with 2 (SystemExit).
    """
    flags = _parser(
        "configs",
        arguments[0],
        "A resource is TOPIC:name, BROKER:id, BROKER: (the default of all brokers), GROUP:id"
        " or CLIENT_METRICS:name; of quotas QUOTA:user=alice,client-id=reports (<default> for the default one);"
        " of SCRAM credentials SCRAM:alice; for client configs the name shown by the history, e.g. \"user 'alice'\".",
    )
    flags.add_value(
        "--resource", metavar="TYPE:NAME", help="only this resource; the flags below are other ways to name it"
    )
    flags.add_value("--entity-type", metavar="TYPE", help=f"one of {', '.join(_ENTITY_TYPES)}")
    flags.add_value("--entity-name", metavar="NAME", help="its name")
    flags.add_switch("--entity-default", help="the default of all brokers")
    for flag, entity_type in _SHORT_FLAGS.items():
        flags.add_value(f"--{flag}", metavar="NAME", help=f"the same as --entity-type {entity_type} --entity-name NAME")
    flags.add_switch("--broker-defaults", help="the same as --entity-type brokers --entity-default")
    options = flags.parse_args(list(arguments[1:]))
    resource = _resource(flags, options)
    if arguments[0] == "revert" and resource is None:
        flags.error("a resource must be specified: --topic NAME, --broker ID, ... or --resource TYPE:NAME")
    return _run(flags, options, arguments[0], lambda: _Target(resource=_as_in_history(resource), way_back=_way_back))


def clients_main(arguments: Sequence[str]) -> int:
    """Run ``klamm clients history`` or ``revert``.

    Return 0 on success and 1 on failure; wrong flags exit with 2 (SystemExit).
    """
    flags = _parser("clients", arguments[0], "Client configs belong to a user, or to a client id of a user.")
    flags.add_value("--user", metavar="NAME", help="the user")
    flags.add_switch("--user-defaults", help="the default user")
    flags.add_value("--client", metavar="ID", help="the client id of this user; without it the user itself")
    flags.add_switch("--client-defaults", help="the default client id of this user")
    options = flags.parse_args(list(arguments[1:]))
    if options.user is None and not options.user_defaults:
        flags.error("--user or --user-defaults must be specified: client configs belong to a user or its client ids")
    if (options.user is not None and options.user_defaults) or (options.client is not None and options.client_defaults):
        flags.error("a name cannot be combined with --user-defaults or --client-defaults of the same kind")
    entity = _entity(options)
    target = _Target(resource=str(entity), way_back=lambda _: partial(_send_client_configs, entity=entity))
    return _run(flags, options, arguments[0], lambda: target)


def _parser(command: str, action: str, epilog: str) -> ToolParser:
    flags = ToolParser(
        prog=f"klamm {command} {action}",
        description="Show past config changes with time and principal, the newest first."
        if action == "history"
        else "Restore the configs that a resource had at a time. Configs that were not changed since are left alone.",
        epilog=epilog,
    )
    flags.add_value(
        "--data-dir",
        metavar="DIR",
        help="the broker's data directory; the broker may be running (default: log.dirs of a local --bootstrap-server,"
        " or the topics of klamm gateways)",
    )
    add_common(flags, instead=("data_dir",))
    if action == "history":
        at_most = whole_number(ALL_LINES, lowest=1)
        flags.add_argument("--limit", type=at_most, default=100, metavar="N", help="lines at most (default 100)")
        flags.add_value("--since", type=moment_ms, metavar="TIME", help=f"only changes from this time on: {TO_HELP}")
        flags.add_value("--principal", metavar="NAME", help="only changes by this principal: alice or User:alice")
        flags.add_value("--key", metavar="NAME", help="only changes of this config")
    else:
        flags.add_value("--to", metavar="TIME", required=True, help=TO_HELP)
        flags.add_switch("--validate-only", help="check with the broker and change nothing")
        add_impact_flags(flags)
    return flags


def _run(flags: ToolParser, options: argparse.Namespace, action: str, target: Callable[[], _Target]) -> int:
    if action == "revert":
        flags.require_server(options)
    if options.data_dir is None and options.bootstrap_server is None:
        flags.error("--data-dir or --bootstrap-server must be specified")
    command = _history if action == "history" else _revert
    return guarded(flags.prog, lambda: command(options, target()))


def _entity(options: argparse.Namespace) -> ClientConfigEntity:
    user = None if options.user_defaults else user_name(options.user)
    if options.client is None and not options.client_defaults:
        return ClientConfigEntity.of_user(user)
    return ClientConfigEntity.of_client(user, options.client)


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


def _history(options: argparse.Namespace, target: _Target) -> int:
    is_filtered = any(each is not None for each in (options.since, options.principal, options.key))
    changes = read_changes(options, target.resource, limit=ALL_LINES if is_filtered else options.limit)
    lines = [change for change in changes if _is_wanted(change, options)][: options.limit]
    if options.bootstrap_server is not None:
        # the last change of a config counts, even if another principal made it
        _compare(
            options, [each for each in changes if options.key in (None, each.name)], [line.resource for line in lines]
        )
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
    nothing = _no_change(target.resource, is_filtered=is_filtered)
    print_result(options.output, document, lambda: [*map(_sentence, lines)] or [nothing])
    return 0


def _is_wanted(change: RecordedChange, options: argparse.Namespace) -> bool:
    """Return whether a change matches ``--since``, ``--principal`` and ``--key``."""
    wanted = options.principal
    return (
        (options.since is None or change.at_ms >= options.since)
        and (wanted is None or change.principal in (wanted, f"User:{user_name(wanted)}"))
        and options.key in (None, change.name)
    )


def _compare(
    options: argparse.Namespace, changes: Sequence[RecordedChange], resources: Iterable[str]
) -> Mapping[str, Mapping[str, str]]:
    """Return the live values of resources; report on stderr those that differ from the last recorded ones.

    Client configs are left out: they change only through requests that are recorded.
    """
    from klamm.cli.history.live import differences, live_values  # noqa: PLC0415  # --data-dir needs no network library

    compared = [resource for resource in resources if not is_client_resource(resource)]
    if not compared:
        return {}
    with connect(options) as admin:
        live = live_values(admin, compared)
    for sentence in differences(changes, live):
        print_error(escaped(sentence))
    return live


def _no_change(resource: str | None, *, is_filtered: bool) -> str:
    subject = "No change" if resource is None else f"No change of {resource}"
    return f"{subject} matches --since, --principal and --key." if is_filtered else f"{subject} is recorded."


def _revert(options: argparse.Namespace, target: _Target) -> int:
    resource = target.resource or ""
    to_ms, change = _to_ms(options.to), target.way_back(resource)
    changes = read_changes(options, resource, limit=ALL_LINES, since_ms=to_ms)
    check_cluster(options)
    live = _compare(options, changes, [resource]).get(resource)
    plan = plan_revert(changes, resource=resource, to_ms=to_ms, live=live)
    unknown = [reversal.name for reversal in plan if not reversal.is_known]
    if unknown:
        raise RequestError(
            f"{', '.join(unknown)}: the old value is not kept, as that of a secret; set it with klamm configs --alter"
        )
    override, impact = change(plan, options) if plan else (None, None)
    document = [
        {"name": reversal.name, "old": reversal.replaces, "new": reversal.value, **_stored(reversal.name, override)}
        for reversal in plan
    ]
    verb = "would be reverted" if options.validate_only else "reverted"
    count = counted(len(plan), "config")
    overrides = override_lines(override, {reversal.name: reversal.value for reversal in plan})
    last = f"{resource}: {count} {verb}." if plan else f"{resource} has the same configs as at {options.to}."
    lines = [*map(_change, plan), *overrides, last, *impact_lines(impact)]
    print_result(options.output, with_impact(document, impact), lambda: lines)
    return 0


def _stored(name: str, override: PolicyOverride | None) -> dict[str, str | None]:
    """Return what a policy of klamm stored in place of a reverted value, with its reason; empty if it did not."""
    if override is None or name not in override.values:
        return {}
    return {"stored": override.values[name], "reason": override.reason}


def _way_back(resource: str) -> Callable[[Sequence[Reversal], argparse.Namespace], _Reverted]:
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
        return partial(_send_quotas, entity=parse_entity_text(name))
    if kind in _KINDS:
        return partial(_send_configs, kind=_KINDS[kind], name=name)
    raise RequestError(f"{resource}: client configs are reverted by klamm clients revert")


def _send_quotas(plan: Sequence[Reversal], options: argparse.Namespace, *, entity: QuotaEntity) -> _Reverted:
    from klamm.admin import ClientQuotaEntity  # noqa: PLC0415  # an empty plan needs no network library
    from klamm.rollout.entities import quota_op  # noqa: PLC0415

    operations = [quota_op(reversal.name, reversal.value) for reversal in plan]
    altered = [QuotaAltered(entity=entity, name=operation.key, value=operation.value) for operation in operations]
    with connect(options) as admin:
        impact = predicted(admin, altered, options)
        changes = {ClientQuotaEntity(entity): operations}
        admin.alter_client_quotas(changes, validate_only=options.validate_only).all().result()
    return None, impact


def _send_configs(plan: Sequence[Reversal], options: argparse.Namespace, *, kind: ResourceType, name: str) -> _Reverted:
    # an empty plan needs no network library
    from klamm.admin import AlterConfigsOptions, ConfigResource  # noqa: PLC0415
    from klamm.rollout.entities import config_op  # noqa: PLC0415

    operations = [config_op(reversal.name, reversal.value) for reversal in plan]
    altered = [
        ConfigAltered(resource_type=kind, resource_name=name, name=reversal.name, value=reversal.value)
        for reversal in plan
    ]
    with connect(options) as admin:
        impact = predicted(admin, altered, options)
        alter_options = AlterConfigsOptions(validate_only=options.validate_only)
        resource = ConfigResource(kind, name)
        return admin.incremental_alter_configs({resource: operations}, alter_options).values()[
            resource
        ].result(), impact


def _send_client_configs(
    plan: Sequence[Reversal], options: argparse.Namespace, *, entity: ClientConfigEntity
) -> _Reverted:
    from klamm.admin import ClientConfigOp  # noqa: PLC0415  # an empty plan needs no network library
    from klamm.rollout.entities import configs_of  # noqa: PLC0415

    with connect(options) as admin:
        present = configs_of(admin, entity)
        values = _with_rollouts(plan, present)
        operations = [ClientConfigOp(name, value) for name, value in values.items()]
        parts = tuple((kind.value, name) for kind, name in entity.components)
        altered = [
            ClientConfigAltered(entity=parts, name=name, value=value, value_before=present.get(name))
            for name, value in values.items()
        ]
        impact = predicted(admin, altered, options)
        admin.alter_client_configs({entity: operations}, validate_only=options.validate_only).all().result()
    return None, impact


def _with_rollouts(plan: Sequence[Reversal], present: Mapping[str, str]) -> dict[str, str | None]:
    """Return the values to set, and None for each config to remove.

    The broker may change a config's roll-out when the config changes, and the config when its roll-out changes.
    Whichever of the two must keep its present value is therefore sent as well, with that value.
    """
    values = {reversal.name: reversal.value for reversal in plan}
    for reversal in plan:
        key = reversal.name.removeprefix(PREFIX)
        if rollout_key(key) in present or rollout_key(key) in values:
            for name in (key, rollout_key(key)):
                values.setdefault(name, present.get(name))
    return values


def _as_in_history(text: str | None) -> str | None:
    """Return a resource as the history shows it.

    Raises:
        SettingsError: The text is not ``TYPE:NAME`` with a known type, or not a valid quota entity.
    """
    if text is None or is_client_resource(text):
        return text
    kind, colon, name = text.partition(":")
    if kind.upper() == QUOTA_RESOURCE and colon:
        try:
            return f"{QUOTA_RESOURCE}:{entity_text(parse_entity_text(name))}"
        except InvalidRequestError as error:
            raise SettingsError(f"--resource {text}: {error}") from error
    kinds = (*_KINDS, QUOTA_RESOURCE, _SCRAM)
    if not colon or kind.upper() not in kinds:
        example = f"; a topic is TOPIC:{text}" if not colon else ""
        raise SettingsError(f"--resource {text}: expected TYPE:NAME with a type of {', '.join(kinds)}{example}")
    if kind.upper() == _SCRAM:
        return f"{_SCRAM}:{user_name(name)}"
    return f"{kind.upper()}:{identity_of(_KINDS[kind.upper()], name)[1]}"  # broker ``01`` is recorded as ``1``


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
        f"{shown_moment(line.at_ms)}  {line.subject}  {line.name}: {change}  by {line.principal}{client}{host}{doubt}"
    )


def _change(reversal: Reversal) -> str:
    mark = "-" if reversal.value is None else "~" if reversal.replaces is not None else "+"
    before, after = (_shown(reversal.name, value) for value in (reversal.replaces, reversal.value))
    return f"  {mark} {reversal.name}: {before} -> {after}"


def _shown(name: str, value: str | None) -> str:
    if value is None:
        return "unset"
    return repr(value) if value == "" or value != value.strip() else with_duration(name, value)
