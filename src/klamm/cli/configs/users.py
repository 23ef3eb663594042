"""Configs of users, their clients and IP addresses: quotas, SCRAM credentials and dynamic client configs.

Each of the three has an API of its own; this module splits a command by API.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.configs import clients, credentials, quotas
from klamm.cli.connection import RequestError
from klamm.cli.output import print_error, print_result
from klamm.client_configs.definitions import SETTABLE
from klamm.display import escaped
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import UnsupportedVersionError
from klamm.security.scram import ScramMechanism

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from klamm.admin import AdminClient
    from klamm.cli.configs.changes import Changes
    from klamm.cli.configs.entities import Target

_SHOWN: Final = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Changes of one entity, split by API."""

    quotas: Changes
    credentials: Changes
    dynamic: Changes


def parts_of(target: Target) -> tuple[tuple[str, str | None], ...]:
    """Return type and name of each component of an entity. The name None means the default of its type."""
    return tuple(
        (quotas.ENTITY_TYPES[kind], name or None) for kind, name in zip(target.types, target.names, strict=True)
    )


def describe(admin: AdminClient, target: Target, options: argparse.Namespace) -> None:
    """Print the entities of exactly the given types, one line per entity and API."""
    lines: list[str] = []
    documents: dict[tuple[tuple[str, str | None], ...], dict[str, Any]] = {}

    def document(parts: Sequence[tuple[str, str | None]]) -> dict[str, Any]:
        empty = {"entity": dict(parts), "quotas": {}, "credentials": {}, "configs": {}, "registered": []}
        return documents.setdefault(tuple(parts), empty)

    for entity, values in quotas.find(admin, target).items():
        lines.append(quotas.line(spelled(entity.parts), values))
        document(entity.parts)["quotas"] = values
    with suppress(UnsupportedVersionError):  # served by Kafka since 2.7
        for user, infos in credentials.find(admin, target.name_of("users")).items() if _of_users(target) else ():
            lines.append(credentials.line(user, infos))
            iterations = {info.mechanism.mechanism_name: {"iterations": info.iterations} for info in infos}
            document([("user", user)])["credentials"] = iterations
    with suppress(UnsupportedVersionError):  # not served by Apache Kafka
        for described in clients.find(admin, target) if "users" in target.types else ():
            parts = [(kind.value, name) for kind, name in described.entity.components]
            lines += clients.lines(spelled(parts), described)
            document(parts).update(clients.document(described))
    print_result(options.output, list(documents.values()), lambda: lines)


def _of_users(target: Target) -> bool:
    """Return whether users are selected by name or as a whole, and not the default user."""
    return target.types == ("users",) and "" not in target.names


def spelled(parts: Sequence[tuple[str, str | None]]) -> str:
    """Return an entity in the terms of Kafka's tool."""
    return ", ".join(
        f"the default {_SHOWN.get(kind, kind)}" if name is None else f"{_SHOWN.get(kind, kind)} '{name}'"
        for kind, name in parts
    )


def route(target: Target, changes: Changes) -> Routed:
    """Split the changes by API.

    Raises:
        RequestError: A key is unknown to all three APIs, or the changes cannot be combined. Nothing is sent.
    """
    if changes.appended or changes.subtracted:
        raise RequestError(
            "--append-config and --subtract-config are for lists; configs of users and clients are not lists"
        )
    if target.types == ("ips",):
        return _route_of_addresses(changes)
    routed = Routed(
        quotas=changes.only(lambda key: key in quotas.CLIENT_QUOTAS),
        credentials=changes.only(lambda key: ScramMechanism.from_name(key) != ScramMechanism.UNKNOWN),
        dynamic=changes.only(lambda key: key in SETTABLE),
    )
    served = {*quotas.CLIENT_QUOTAS, *SETTABLE}
    is_of_users = target.types == ("users",)
    if is_of_users:
        served |= {member.mechanism_name for member in ScramMechanism if member}
    for verb, keys in (("added", changes.added), ("deleted", changes.deleted)):
        if unknown := [key for key in keys if key not in served]:
            kinds = "Only quotas, SCRAM credentials" if is_of_users else "Only quotas"
            raise RequestError(
                f"{kinds} and dynamic client configs ({', '.join(sorted(SETTABLE))}) can be {verb} for"
                f" '{','.join(target.types)}'. Unexpected config names: {','.join(unknown)}"
            )
    if routed.credentials.is_any:
        _check_credentials(target, routed)
    if routed.dynamic.is_any:
        clients.check(target)
    return routed


def _route_of_addresses(changes: Changes) -> Routed:
    nothing = changes.only(lambda _: False)
    if unknown := [key for key in (*changes.added, *changes.deleted) if key not in quotas.IP_QUOTAS]:
        raise RequestError(
            "Only connection quota configs can be added for 'ips' using --bootstrap-server. "
            f"Unexpected config names: {','.join(unknown)}"
        )
    return Routed(quotas=changes, credentials=nothing, dynamic=nothing)


def _check_credentials(target: Target, routed: Routed) -> None:
    if "" in target.names:
        raise RequestError(
            "The use of --entity-default or --user-defaults is not allowed with User SCRAM Credentials using"
            " --bootstrap-server."
        )
    if routed.quotas.is_any:
        raise RequestError(
            "Cannot alter both quota and SCRAM credential configs simultaneously for 'users' using --bootstrap-server."
        )
    credentials.read(target.names[0], routed.credentials)


def alter(admin: AdminClient, target: Target, changes: Changes, options: argparse.Namespace) -> list[str]:
    """Send the changes of one entity; if they need two APIs, the cluster first validates all parts that it can.

    Returns:
        Lines about the effect, for people; empty without ``--percent``.

    Raises:
        RequestError: The requested change is not possible. Nothing is sent.
    """
    routed = route(target, changes)
    if options.percent is not None and (routed.quotas.is_any or routed.credentials.is_any):
        raise RequestError(f"--percent is for dynamic client configs: {', '.join(sorted(SETTABLE))}")
    if options.validate_only and routed.credentials.is_any:
        raise RequestError("--validate-only: Kafka has no way to check a SCRAM credential without setting it")
    parts = sum(part.is_any for part in (routed.quotas, routed.credentials, routed.dynamic))
    rounds = [True, False] if parts > 1 and not options.validate_only else [options.validate_only]
    effects: list[str] = []
    for validate_only in rounds:
        if routed.quotas.is_any:
            quotas.alter(admin, target, routed.quotas, validate_only=validate_only)
        if routed.credentials.is_any and not validate_only:
            credentials.alter(admin, target.names[0], routed.credentials)
        if routed.dynamic.is_any:
            effects = clients.alter(admin, target, routed.dynamic, percent=options.percent, validate_only=validate_only)
    if routed.dynamic.added:
        warning = clients.unregistered_warning(admin, clients.entity_of(target))
        if warning is not None:
            print_error(f"Warning: {escaped(warning)}")
    return effects
