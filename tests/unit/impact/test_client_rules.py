"""Predictions for quotas and dynamic client configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.impact.changes import AclsRemoved, ClientConfigAltered, CredentialsRemoved, DenyAclsAdded, QuotaAltered
from klamm.impact.facts import ClientFacts
from klamm.impact.findings import ImpactLevel
from klamm.impact.prediction import UNSEEN_RATES, predict
from tests.unit.impact.builders import cluster

if TYPE_CHECKING:
    from klamm.impact.changes import EntityParts

_ALICE: EntityParts = (("user", "alice"),)
_RATE = "producer_byte_rate"


def test_lower_quota_names_clients_above_it() -> None:
    clients = (
        ClientFacts(user="alice", client_id="fast", rates={_RATE: 2_000.0}),
        ClientFacts(user="alice", client_id="slow", rates={_RATE: 10.0}),
        ClientFacts(user="bob", client_id="fast", rates={_RATE: 9_000.0}),
    )
    facts = cluster(clients=clients, quotas={_ALICE: {_RATE: 5_000.0}})

    (finding,) = predict([QuotaAltered(entity=_ALICE, name=_RATE, value=1_000.0)], facts).findings

    assert (finding.kind, finding.level) == ("clients_throttled", ImpactLevel.DISRUPTION)
    assert finding.names["clients"].first == ("alice/fast",)


def test_quota_of_default_user_leaves_users_with_their_own_out() -> None:
    clients = (ClientFacts(user="alice", client_id=None, rates={_RATE: 2_000.0}),)
    facts = cluster(clients=clients, quotas={_ALICE: {_RATE: 5_000.0}})

    (finding,) = predict([QuotaAltered(entity=(("user", None),), name=_RATE, value=1_000.0)], facts).findings

    assert finding.kind == "quota_lowered"


def test_lower_quota_without_rates_reports_them_as_unknown() -> None:
    impact = predict([QuotaAltered(entity=_ALICE, name=_RATE, value=1_000.0)], cluster())

    assert (impact.level, impact.unknown) == (ImpactLevel.NOTICE, (UNSEEN_RATES,))


def test_raised_or_removed_quota_has_no_impact() -> None:
    facts = cluster(quotas={_ALICE: {_RATE: 5_000.0}})

    for value in (6_000.0, None):
        assert predict([QuotaAltered(entity=_ALICE, name=_RATE, value=value)], facts).level is ImpactLevel.NONE


_DEFAULT_USER: EntityParts = (("user", None),)
_CLIENT: EntityParts = (("client-id", "a"),)


@pytest.mark.parametrize(
    ("quotas", "before"),
    [
        ({}, "was not limited"),
        ({_DEFAULT_USER: 1_048_576.0}, None),
        ({_DEFAULT_USER: 1_048_576.0, _CLIENT: 20_971_520.0}, None),
        ({_DEFAULT_USER: 20_971_520.0}, "was 20971520"),
        ({_DEFAULT_USER: 1_048_576.0, (*_DEFAULT_USER, *_CLIENT): 1_048_576.0}, "was not limited"),
        ({_CLIENT: 1_048_576.0}, "was not limited"),
        ({(("client-id", None),): 1_048_576.0}, "was not limited"),
        ({(("user", "bob"),): 1_048_576.0}, "was not limited"),
    ],
)
def test_first_quota_of_user_is_compared_with_that_of_less_specific_entities(
    quotas: dict[EntityParts, float], before: str | None
) -> None:
    facts = cluster(quotas={entity: {_RATE: value} for entity, value in quotas.items()})

    findings = predict([QuotaAltered(entity=_ALICE, name=_RATE, value=10_485_760.0)], facts).findings

    assert [finding.message for finding in findings] == (
        [] if before is None else [f"{_RATE} becomes 10485760 ({before}). Clients above it are delayed."]
    )


def test_removed_quota_gives_way_to_a_stricter_default() -> None:
    others = {
        (("user", None),): {_RATE: 1.0},
        (*_ALICE, ("client-id", "a")): {_RATE: 0.5},
        (("user", "bob"),): {_RATE: 0.1},
    }
    facts = cluster(quotas={_ALICE: {_RATE: 5_000.0}, **others})

    (finding,) = predict([QuotaAltered(entity=_ALICE, name=_RATE, value=None)], facts).findings

    assert (finding.kind, finding.figures) == ("quota_lowered", {"limit": 1.0, "limit_before": 5_000.0})


def test_removed_client_id_quota_leaves_user_quota_unchanged() -> None:
    entity: EntityParts = (("client-id", "a"),)
    facts = cluster(quotas={entity: {_RATE: 5_000.0}, (("user", "bob"),): {_RATE: 1.0}})

    assert predict([QuotaAltered(entity=entity, name=_RATE, value=None)], facts).findings == ()


def test_client_config_names_clients_that_do_not_support_it() -> None:
    clients = (
        ClientFacts(user="alice", client_id="old", supported_configs=frozenset({"heartbeat.interval.ms"})),
        ClientFacts(user="alice", client_id="producer", supported_configs=frozenset({"acks"})),
        ClientFacts(user="alice", client_id="new", supported_configs=frozenset({"session.timeout.ms"})),
    )
    change = ClientConfigAltered(entity=_ALICE, name="session.timeout.ms", value="10000")

    findings = {finding.kind: finding for finding in predict([change], cluster(clients=clients)).findings}

    assert findings["clients_do_not_follow"].names["clients"].first == ("alice/old",)
    assert findings["clients_do_not_follow"].figures == {"clients": 1}, "a producer has no session"
    assert findings["sessions_restart"].names["clients"].first == ("alice/new",)


@pytest.mark.parametrize(
    ("name", "before", "value", "level"),
    [
        ("acks", None, "1", ImpactLevel.DISRUPTION),
        ("acks", "all", None, ImpactLevel.DISRUPTION),
        ("acks", None, None, ImpactLevel.NOTICE),
        ("acks", "1", None, ImpactLevel.NONE),
        ("rollout.acks", None, "5:0", ImpactLevel.DISRUPTION),
        ("rollout.acks", "50:all", "0:all", ImpactLevel.DISRUPTION),
        ("rollout.acks", "50:1", None, ImpactLevel.NONE),
    ],
)
def test_weaker_acks_are_a_disruption(name: str, before: str | None, value: str | None, level: ImpactLevel) -> None:
    change = ClientConfigAltered(entity=_ALICE, name=name, value=value, value_before=before)

    assert predict([change], cluster()).level is level


def test_new_deny_acls_disrupt_their_principal() -> None:
    change = DenyAclsAdded(principal="User:*", acls=("DENY ALL on TOPIC:LITERAL:* from *",))

    impact = predict([change], cluster())

    assert impact.lines() == [
        "Impact: disruption",
        "  DISRUPTION: User:*: gets 1 ACL (DENY ALL on TOPIC:LITERAL:* from *). Requests that match are denied.",
    ]


def test_removed_acls_and_credentials_disrupt_their_holder() -> None:
    changes = (
        AclsRemoved(principal="User:a", acls=("ALLOW READ on TOPIC:LITERAL:t from *",)),
        CredentialsRemoved(user="a", mechanisms=("SCRAM-SHA-256",), are_all=True),
        CredentialsRemoved(user="b", mechanisms=("SCRAM-SHA-256",), are_all=False),
    )

    impact = predict(changes, cluster())

    assert impact.lines() == [
        "Impact: disruption",
        "  DISRUPTION: User:a: loses 1 ACL (ALLOW READ on TOPIC:LITERAL:t from *). What no other ACL allows is denied.",
        "  DISRUPTION: user a: can no longer log in with SCRAM-SHA-256 and has no other SCRAM credential.",
        "  DISRUPTION: user b: can no longer log in with SCRAM-SHA-256.",
    ]
