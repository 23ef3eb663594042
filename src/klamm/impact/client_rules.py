"""Predictions for client quotas, dynamic client configs, and the ACLs and credentials of clients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm.client_configs.kinds import concerns, kinds_of_configs
from klamm.client_configs.rollout import PREFIX, parse_rollout
from klamm.impact.findings import Finding, ImpactLevel, Names, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from klamm.impact.changes import (
        AclsRemoved,
        ClientConfigAltered,
        CredentialsRemoved,
        DenyAclsAdded,
        EntityParts,
        QuotaAltered,
    )
    from klamm.impact.facts import ClientFacts, ClusterFacts

_SESSION_KEYS: Final = frozenset({"session.timeout.ms", "heartbeat.interval.ms"})
"""Client configs whose change makes a consumer of a classic group leave and join again."""
_WEAK_ACKS: Final = frozenset({"0", "1"})


def quota_altered(change: QuotaAltered, facts: ClusterFacts) -> Iterator[Finding]:
    """Predict clients above a lower quota, which the broker delays."""
    before = facts.quotas.get(change.entity, {}).get(change.name)
    if before is None:
        before = _inherited_limit(change, facts)
    value = change.value
    if value is None:  # then the strictest of the less specific entities may apply
        others = [quotas for entity, quotas in facts.quotas.items() if _may_replace(entity, change.entity)]
        value = min((quotas[change.name] for quotas in others if change.name in quotas), default=None)
    if value is None or (before is not None and value >= before):
        return
    figures = {"limit": value, **({} if before is None else {"limit_before": before})}
    above = [
        client
        for client in facts.clients or ()
        if client.rates.get(change.name, 0) > value and _is_concerned(client, change.entity, facts.quotas)
    ]
    text = "was not limited" if before is None else f"was {_plain(before)}"
    if above:
        names = Names.of(client.name for client in above)
        message = f"{counted(len(above), 'client')} ({names}) exceed {change.name}={_plain(value)} and are delayed."
    else:
        names = Names()
        message = f"{change.name} becomes {_plain(value)} ({text}). Clients above it are delayed."
    yield Finding(
        kind="clients_throttled" if above else "quota_lowered",
        level=ImpactLevel.DISRUPTION if above or value == 0 else ImpactLevel.NOTICE,
        resource=entity_text(change.entity),
        message=message,
        figures={**figures, **({"clients": len(above)} if above else {})},
        names={"clients": names} if above else {},
    )


def _inherited_limit(change: QuotaAltered, facts: ClusterFacts) -> float | None:
    """Return the limit of a less specific entity that applies to an entity without one; None without it.

    A limit that each client id has for itself does not count for a user: the clients of the user will share theirs.
    """
    others = [
        entity
        for entity, quotas in facts.quotas.items()
        if change.name in quotas and _may_replace(entity, change.entity)
    ]
    first = min(others, key=_precedence, default=None)
    if first is None or not dict(first).keys() <= dict(change.entity).keys():
        return None
    return facts.quotas[first][change.name]


def _precedence(entity: EntityParts) -> tuple[int, ...]:
    """Return a key by which the entity whose quota applies comes first, in the precedence of KIP-55."""
    names = dict(entity)
    return tuple(2 if kind not in names else int(names[kind] is None) for kind in ("user", "client-id"))


def _plain(value: float) -> str:
    """Return a quota as text, an integer with all its digits."""
    return f"{value:.17g}" if value.is_integer() else f"{value:g}"


def acls_removed(change: AclsRemoved, _: ClusterFacts) -> Iterator[Finding]:
    """Predict requests of a principal that are denied."""
    yield _acl_finding("acls_removed", change, "loses", "What no other ACL allows is denied.")


def deny_acls_added(change: DenyAclsAdded, _: ClusterFacts) -> Iterator[Finding]:
    """Predict requests of a principal that are denied although another ACL allows them."""
    yield _acl_finding("deny_acls_added", change, "gets", "Requests that match are denied.")


def _acl_finding(kind: str, change: AclsRemoved | DenyAclsAdded, verb: str, consequence: str) -> Finding:
    names = Names.of(change.acls)
    return Finding(
        kind=kind,
        level=ImpactLevel.DISRUPTION,
        resource=change.principal,
        message=f"{verb} {counted(names.count, 'ACL')} ({names}). {consequence}",
        figures={"acls": names.count},
        names={"acls": names},
    )


def credentials_removed(change: CredentialsRemoved, _: ClusterFacts) -> Iterator[Finding]:
    """Predict logins of a user that are rejected."""
    names = Names.of(change.mechanisms)
    rest = " and has no other SCRAM credential" if change.are_all else ""
    yield Finding(
        kind="credentials_removed",
        level=ImpactLevel.DISRUPTION,
        resource=f"user {change.user}",
        message=f"can no longer log in with {names}{rest}.",
        names={"mechanisms": names},
    )


def client_config_altered(change: ClientConfigAltered, facts: ClusterFacts) -> Iterator[Finding]:
    """Predict clients that do not follow a dynamic config, consumers that join again, and weaker acknowledgements."""
    resource = entity_text(change.entity)
    if change.name.startswith(PREFIX):
        value, before = (_rolled_out(change.name, text) for text in (change.value, change.value_before))
        change = replace(change, name=change.name.removeprefix(PREFIX), value=value, value_before=before)
    concerned = [
        client
        for client in facts.clients or ()
        if _is_concerned(client, change.entity, {})
        and concerns(change.name, kinds_of_configs(client.supported_configs or ()))
    ]
    deaf = [c for c in concerned if c.supported_configs is not None and change.name not in c.supported_configs]
    if deaf:
        names = Names.of(client.name for client in deaf)
        yield Finding(
            kind="clients_do_not_follow",
            level=ImpactLevel.NOTICE,
            resource=resource,
            message=f"{counted(len(deaf), 'registered client')} ({names}) do not support {change.name} and keep their"
            " own value, unless client.config.enforcement is on.",
            figures={"clients": len(deaf)},
            names={"clients": names},
        )
    followers = Names.of(client.name for client in concerned if client not in deaf)
    if change.name in _SESSION_KEYS:
        listed = f" ({followers})" if followers.count else ""
        yield Finding(
            kind="sessions_restart",
            level=ImpactLevel.NOTICE,
            resource=resource,
            message=f"consumers{listed} that apply {change.name} join their group again: one rebalance per group.",
            names={"clients": followers},
        )
    if change.name == "acks" and change.value is None and change.value_before not in _WEAK_ACKS:
        yield Finding(
            kind="weaker_durability",
            level=ImpactLevel.NOTICE if change.value_before is None else ImpactLevel.DISRUPTION,
            resource=resource,
            message="producers use the acks of a less specific entity, or their own: if these are 0 or 1, records that"
            " they count as sent may be lost when a leader fails.",
            names={"clients": followers},
        )
    if change.name == "acks" and change.value in _WEAK_ACKS:
        yield Finding(
            kind="weaker_durability",
            level=ImpactLevel.DISRUPTION,
            resource=resource,
            message=f"producers no longer wait for all in-sync replicas (acks={change.value}): records that they count"
            " as sent may be lost when a leader fails.",
            names={"clients": followers},
        )


def _rolled_out(name: str, text: str | None) -> str | None:
    """Return the value of a roll-out; None if it applies to no client."""
    rollout = None if text is None else parse_rollout(name, text)
    return None if rollout is None or not rollout.hundredths else rollout.value


def _may_replace(entity: EntityParts, removed: EntityParts) -> bool:
    """Return whether the values of an entity may apply to clients of another one that has none."""
    own, kinds = dict(removed), {kind for kind, _ in entity}
    is_more_specific = set(removed) <= set(entity) or ("user" in kinds and "user" not in own)
    return not is_more_specific and all(name is None or own.get(kind, name) == name for kind, name in entity)


def _is_concerned(
    client: ClientFacts, entity: EntityParts, quotas: Mapping[tuple[tuple[str, str | None], ...], object]
) -> bool:
    """Return whether an entity is or may be the one that applies to a client. A default yields to a named entity."""
    own = {"user": client.user, "client-id": client.client_id}
    for kind, name in entity:
        if name is not None and own.get(kind) != name:
            return False
        if name is None and ((kind, own.get(kind)),) in quotas:
            return False
    return True


def entity_text(entity: EntityParts) -> str:
    """Return a user or client id, with quotas or client configs, as text for people."""
    return ", ".join(f"the default {kind}" if name is None else f"{kind} {name}" for kind, name in entity)
