"""Plan of a roll-out: the entities that the flags select, their waves, and the checks before the first wave."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.admin import ConfigResource, ResourceType
from klamm.cli.configs.changes import parse_pairs
from klamm.cli.configs.quotas import CLIENT_QUOTAS
from klamm.cli.connection import RequestError, UsageError
from klamm.cli.output import print_error
from klamm.cli.topics.names import matching, parse_pattern
from klamm.client_configs.definitions import SETTABLE
from klamm.client_configs.rollout import parse_rollout, rollout_key
from klamm.configs.durations import DURATION_UNITS, parse_amount
from klamm.configs.quotas import QUOTA_RESOURCE, USER, quota_resource, quota_text, unescaped_name
from klamm.display import counted
from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError
from klamm.protocol.errors import InvalidRequestError
from klamm.resources.cluster import observe
from klamm.resources.diff import plan_resources
from klamm.resources.model import NUMBERS, Kind, Mark
from klamm.rollout import waves as division
from klamm.rollout.entities import Entities, RejectedSettingsError
from klamm.rollout.guards import GuardKind, LimitBase, parse_guard
from klamm.rollout.record import RolloutRecord, Values, Wave, is_equal, values_before
from klamm.security.principals import user_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from klamm.admin import AdminClient
    from klamm.resources.files import ClusterFiles
    from klamm.rollout.guards import Guard

_KAFKA: Final = "org.apache.kafka."
_DEFAULT_PUSH_MS: Final = "300000"
_MIN_PUSHES: Final = 2
_WHICH: Final = ("topic", "broker", "user", "user_defaults", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRollout:
    """A roll-out that may begin."""

    record: RolloutRecord
    current: Values
    """Present values of its entities."""


def planned(options: argparse.Namespace, admin: AdminClient, files: ClusterFiles | None) -> PlannedRollout:
    """Return the roll-out that the flags describe, after the cluster has validated all of its settings.

    Args:
        options: Flags of the command.
        admin: Connection to the cluster.
        files: What ``--file`` declares for this cluster; None without the flag.

    Raises:
        SettingsError: A flag has a wrong value, or a guard cannot work.
        UsageError: A flag has a wrong value.
        RequestError: There is nothing to change, the file cannot be used, or the cluster rejects a setting.
    """
    guards = [parse_guard(text) for text in options.guard]
    bake_ms, check_ms = _duration("--bake", options.bake), max(_duration("--interval", options.interval), 1)
    entities = Entities(admin)
    waves, current = _waves(options, admin, entities, files)
    _check_guards(guards, options.metrics, waves, admin, bake_ms)
    waves = _validated(entities, waves)
    record = RolloutRecord(
        id="",
        waves=waves,
        bake_ms=bake_ms,
        check_ms=check_ms,
        guards=tuple(options.guard),
        metrics=tuple(options.metrics),
        reverts_without_data=options.without_data == "revert",
        before=values_before(waves, current),
    )
    return PlannedRollout(record=record, current=current)


def _waves(
    options: argparse.Namespace, admin: AdminClient, entities: Entities, files: ClusterFiles | None
) -> tuple[tuple[Wave, ...], Values]:
    which = [name for name in _WHICH if getattr(options, name)]
    if len(which) != 1:
        listed = ", ".join(f"--{name.replace('_', '-')}" for name in _WHICH)
        raise SettingsError(f"exactly one of {listed} must be given")
    if options.waves is not None and options.wave:
        raise SettingsError("--waves and --wave exclude each other")
    percentages = division.parse_percentages(options.waves or division.DEFAULT_PERCENTAGES)
    wanted = _from_flags(options, admin, which[0]) if files is None else _from_file(options, admin, files)
    is_of_clients = any(entity.startswith(division.USER) for entity in wanted)
    current = _present(entities, wanted)
    wanted = _differing(wanted, current)
    if not wanted:
        raise RequestError("nothing to roll out: every value is set already")
    if is_of_clients:
        values = {entity: {key: str(value) for key, value in of.items()} for entity, of in wanted.items()}
        if options.wave:
            raise SettingsError("--wave: client configs are rolled out by percentage of the clients; use --waves")
        try:
            return division.waves_of_clients(values, current, percentages), current
        except SettingsError as error:  # the flags are right, but another roll-out is in progress
            raise RequestError(str(error)) from error
    if options.wave:
        return division.waves_by_name(wanted, options.wave), current
    waves = division.waves_by_percentage(wanted, percentages)
    if left_out := [name for each in percentages if (name := f"{each:g}%") not in {wave.name for wave in waves}]:
        print_error(
            f"Waves left out: {', '.join(left_out)}. With {counted(len(wanted), 'resource')} in all, the waves before"
            " them have changed their resources already."
        )
    return waves, current


def _from_flags(options: argparse.Namespace, admin: AdminClient, which: str) -> dict[str, dict[str, str | None]]:
    """Return the values to set by entity."""
    removed = [key.strip() for key in (options.delete_config or "").split(",") if key.strip()]
    try:
        added = parse_pairs(options.add_config)
        if which == "topic":
            parse_pattern(options.topic)
    except RequestError as error:
        raise UsageError(str(error)) from error
    changes: dict[str, str | None] = {**added, **dict.fromkeys(removed)}
    if not changes:
        raise SettingsError("--add-config or --delete-config must be given")
    if which == "topic":
        is_internal = options.topic.startswith("__")
        everything = [
            name
            for name in admin.list_topics(include_internal=True).result()
            if is_internal or not name.startswith("__")
        ]
        names = matching(everything, options.topic, exclude_internal=not is_internal)
        if not names:
            raise RequestError(f"--topic {options.topic}: no topic has such a name")
        return {f"TOPIC:{name}": changes for name in names}
    if which == "broker":
        every = options.broker == "all"
        ids = [str(node.id) for node in admin.describe_cluster().result().nodes] if every else _names(options.broker)
        return {f"BROKER:{broker_id}": changes for broker_id in ids}
    return _of_users([None] if which == "user_defaults" else _users(options.user), changes)


def _of_users(users: Sequence[str | None], changes: Mapping[str, str | None]) -> dict[str, dict[str, str | None]]:
    if changes.keys() <= CLIENT_QUOTAS:
        try:
            quotas = {key: None if value is None else quota_text(float(value)) for key, value in changes.items()}
        except ValueError as error:
            raise SettingsError(f"--add-config: {error}: a quota is a number") from error
        return {quota_resource(((USER, user),)): quotas for user in users}
    if not changes.keys() <= set(SETTABLE):
        raise SettingsError(
            f"{', '.join(sorted(changes))}: for users, either quotas ({', '.join(sorted(CLIENT_QUOTAS))}) or client"
            f" configs ({', '.join(sorted(SETTABLE))}) can be rolled out"
        )
    if None in changes.values():
        raise SettingsError("--delete-config: the removal of a client config cannot be rolled out by percentage")
    return {f"{division.USER}{user or ''}": dict(changes) for user in users}


def _from_file(
    options: argparse.Namespace, admin: AdminClient, files: ClusterFiles
) -> dict[str, dict[str, str | None]]:
    if options.add_config or options.delete_config:
        raise SettingsError("--file declares the configs; --add-config and --delete-config exclude it")
    declared = [resource for resource in files.resources if resource.is_managed]
    others = [str(resource.key) for resource in declared if resource.kind is not Kind.TOPIC]
    if others:
        raise RequestError(f"{options.file}: {', '.join(others)}: only topics can be rolled out from a file")
    keys = {
        topic.key: None if topic.owns_all else [key for key in topic.values if key not in NUMBERS] for topic in declared
    }
    diffs = plan_resources(declared, observe(admin, keys).resources)
    problems = [problem for diff in diffs for problem in diff.problems]
    for diff in diffs:
        if not diff.exists or diff.is_deletion or len(diff.config_changes) != len(diff.changes):
            reason = "more than its configs differ" if diff.exists else "it does not exist"
            problems.append(f"{diff.declared.place}: {reason}; use klamm apply first")
    if problems:
        raise RequestError("; ".join(problems))
    return {
        f"TOPIC:{diff.key.name}": {
            change.key: None if change.mark is Mark.REMOVE else change.new for change in diff.config_changes
        }
        for diff in diffs
        if diff.config_changes
    }


def _present(entities: Entities, wanted: Values) -> Values:
    """Return the values that are set on the entities.

    Raises:
        RequestError: One cannot be read or does not exist.
    """
    present = entities.values(wanted)
    if present.unreadable:
        raise RequestError(present.trouble)
    if missing := sorted(wanted.keys() - present.values.keys()):
        raise RequestError(f"{', '.join(missing)} does not exist")
    return present.values


def _differing(wanted: Values, current: Values) -> dict[str, dict[str, str | None]]:
    """Return the settings without those that are set already.

    A staged roll-out of another value overrides the plain value of a client config for some clients, or for all.
    """
    differing: dict[str, dict[str, str | None]] = {}
    for entity, values in wanted.items():
        for key, value in values.items():
            staged = current[entity].get(rollout_key(key))
            is_overridden = staged is not None and parse_rollout(rollout_key(key), staged).value != value
            if is_overridden or not is_equal(entity, key, current[entity].get(key), value):
                differing.setdefault(entity, {})[key] = value
    return differing


def _validated(entities: Entities, waves: tuple[Wave, ...]) -> tuple[Wave, ...]:
    """Return the waves with the values that policies store in place of the requested ones, or beside them.

    Raises:
        RequestError: The cluster rejects a setting, or a value could not be restored.
    """
    if secrets := [secret for wave in waves for secret in entities.secrets(wave.settings)]:
        raise RequestError(f"{', '.join(secrets)}: the cluster does not show its value, so it could not be restored")
    checked: list[Wave] = []
    for wave in waves:
        try:
            checked.append(replace(wave, settings=entities.write(wave.settings, validate_only=True)))
        except RejectedSettingsError as error:
            raise RequestError(f"wave {wave.name}: {error}") from error
    return tuple(checked)


def _check_guards(
    guards: Sequence[Guard], metrics: Sequence[str], waves: Sequence[Wave], admin: AdminClient, bake_ms: int
) -> None:
    """Check that guards can have data.

    Raises:
        SettingsError: A guard needs ``--metrics``, compares clients that no wave distinguishes, or needs a longer bake
            time.
    """
    by_client = any(entity.startswith((division.USER, f"{QUOTA_RESOURCE}:")) for entity in waves[0].settings)
    for guard in guards:
        if guard.kind in {GuardKind.CLIENTS, GuardKind.METRICS} and not metrics:
            raise SettingsError(f"--guard {guard.text!r}: --metrics HOST:PORT must name a klamm broker or gateway")
        if guard.limit.base is LimitBase.UNCHANGED and not by_client:
            raise SettingsError(
                f"--guard {guard.text!r}: configs of topics and brokers concern every client; compare with before"
            )
    needed = [guard for guard in guards if guard.kind is GuardKind.CLIENTS]
    if not needed:
        return
    for name, push_ms in _push_intervals(admin, [guard.subject for guard in needed]).items():
        if bake_ms < _MIN_PUSHES * push_ms:
            raise SettingsError(
                f"--bake of {bake_ms:,} ms: clients push every {push_ms:,} ms (subscription {name}), so at least"
                f" {_MIN_PUSHES * push_ms:,} ms are needed"
            )


def _push_intervals(admin: AdminClient, metrics: Sequence[str]) -> dict[str, int]:
    """Return the push interval in milliseconds of each subscription that selects one of the metrics."""
    names = admin.list_config_resources(ResourceType.CLIENT_METRICS).result()
    resources = [ConfigResource(ResourceType.CLIENT_METRICS, name) for name in names]
    described = admin.describe_configs(resources).all().result()

    def value(entries: Mapping[str, Any], key: str, default: str) -> str:
        return str(entries[key].value or default) if key in entries else default

    wanted = [f"{_KAFKA}{metric.removeprefix(_KAFKA)}" for metric in metrics]
    intervals: dict[str, int] = {}
    for resource, entries in described.items():
        prefixes = [prefix.strip() for prefix in value(entries, "metrics", "").split(",") if prefix.strip()]
        if any(prefix == "*" or metric.startswith(prefix) for prefix in prefixes for metric in wanted):
            intervals[resource.name] = int(value(entries, "interval.ms", _DEFAULT_PUSH_MS))
    return intervals


def _users(text: str) -> list[str]:
    """Return the names of users, with the escapes of files for ``klamm plan``.

    Raises:
        SettingsError: A name is empty, or its escapes are not UTF-8.
    """
    try:
        users = [unescaped_name(user_name(name)) for name in _names(text)]
    except InvalidRequestError as error:
        raise SettingsError(f"--user {text}: {error}") from error
    if not users or "" in users:
        raise SettingsError(f"--user {text}: expected names of users; --user-defaults is for the default user")
    return list(dict.fromkeys(users))


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _duration(flag: str, text: str) -> int:
    amount = parse_amount("duration.ms", text)
    if amount is None:
        units = ", ".join(DURATION_UNITS)
        raise SettingsError(f"{flag} {text}: expected a duration with a unit of {units}, such as 10m")
    return amount
