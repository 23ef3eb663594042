"""Client quotas: entities, filters and values (KIP-546)."""

from __future__ import annotations

import pytest

from klamm.configs.quotas import (
    QuotaChange,
    QuotaComponent,
    QuotaEntity,
    check_filter,
    find_address_limit,
    make_entity,
    matches,
    plan_quotas,
)
from klamm.protocol.errors import InvalidRequestError, KafkaApiError, UnsupportedVersionError

ANNA = (("user", "anna"),)
DEFAULT_USER = (("user", None),)
ANNAS_TOOL = (("user", "anna"), ("client-id", "tool"))


def test_quota_entity_order_is_canonical() -> None:
    assert make_entity([("client-id", "tool"), ("user", "anna")]) == ANNAS_TOOL
    assert make_entity([("ip", None)]) == (("ip", None),)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "Invalid empty client quota entity"),
        ([("user", "a"), ("user", "b")], "duplicate entity entry user"),
        ([("group", "a")], "Unhandled client quota entity type: group"),
        ([("ip", "1.2.3.4"), ("user", "a")], "IP entity should"),
        ([("ip", "not an address")], "is not a valid IP"),
        ([("user", "")], "Empty user not supported"),
    ],
)
def test_invalid_quota_entity_is_rejected(parts: list[tuple[str, str | None]], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        make_entity(parts)


@pytest.mark.parametrize(
    ("entity", "name", "value", "message"),
    [
        (ANNA, "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        (ANNA, "acks", 1.0, "Invalid configuration key acks"),
        (ANNA, "producer_byte_rate", 0.0, "Quota producer_byte_rate must be greater than 0"),
        (ANNA, "producer_byte_rate", float("nan"), "must be greater than 0"),
        (ANNA, "producer_byte_rate", 1.5, "producer_byte_rate cannot be a fractional value."),
        (ANNA, "consumer_byte_rate", 1e19, "too large for a LONG"),
        ((("ip", "::1"),), "connection_creation_rate", 3e9, "too large for an INT"),
        ((("ip", "::1"),), "producer_byte_rate", 1.0, "Invalid configuration key"),
    ],
)
def test_invalid_quota_is_rejected(
    entity: tuple[tuple[str, str | None], ...], name: str, value: float, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        plan_quotas(entity, {}, [QuotaChange(name=name, value=value)])


def test_only_differing_quotas_are_changes() -> None:
    changes = [
        QuotaChange(name="producer_byte_rate", value=5.0),
        QuotaChange(name="request_percentage", value=0.5),
        QuotaChange(name="consumer_byte_rate", value=None),
    ]
    assert plan_quotas(ANNA, {"producer_byte_rate": 5.0}, changes) == (changes[1],)
    with pytest.raises(InvalidRequestError, match="Duplicate quota key"):
        plan_quotas(ANNA, {}, [changes[1], changes[1]])


def component(entity_type: str, match_type: int, match: str | None = None) -> QuotaComponent:
    return QuotaComponent(entity_type=entity_type, match_type=match_type, match=match)


def test_maximum_java_long_is_a_valid_rate() -> None:
    change = QuotaChange(name="producer_byte_rate", value=float(2**63 - 1))
    assert plan_quotas(ANNA, {}, [change]) == (change,)


@pytest.mark.parametrize(
    ("components", "strict", "meant"),
    [
        ([], False, {ANNA, DEFAULT_USER, ANNAS_TOOL}),
        ([], True, set()),
        ([component("user", 0, "anna")], False, {ANNA, ANNAS_TOOL}),
        ([component("user", 0, "anna")], True, {ANNA}),
        ([component("user", 1)], False, {DEFAULT_USER}),
        ([component("user", 2)], True, {ANNA, DEFAULT_USER}),
        ([component("client-id", 2), component("user", 2)], True, {ANNAS_TOOL}),
    ],
)
def test_quota_filter_matches_entities_by_type_and_strictness(
    components: list[QuotaComponent], strict: bool, meant: set[object]
) -> None:
    check_filter(components)
    assert {e for e in (ANNA, DEFAULT_USER, ANNAS_TOOL) if matches(e, components, strict=strict)} == meant


@pytest.mark.parametrize(
    ("components", "error", "message"),
    [
        ([component("", 0, "a")], InvalidRequestError, "Invalid empty entity type."),
        ([component("user", 2), component("user", 1)], InvalidRequestError, "cannot appear more than once"),
        ([component("group", 2)], UnsupportedVersionError, "Unsupported entity type group"),
        ([component("user", 0)], InvalidRequestError, "MATCH_TYPE_EXACT, but set match string to null"),
        ([component("user", 1, "a")], InvalidRequestError, "MATCH_TYPE_DEFAULT, but also specified"),
        ([component("user", 2, "a")], InvalidRequestError, "MATCH_TYPE_SPECIFIED, but also specified"),
        ([component("user", 3)], InvalidRequestError, "Unknown match type 3"),
        ([component("user", 2), component("ip", 2)], InvalidRequestError, "IP filter component should not"),
    ],
)
def test_invalid_quota_filter_is_rejected(
    components: list[QuotaComponent], error: type[KafkaApiError], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_filter(components)


@pytest.mark.parametrize("named", ["2001:db8::1", "2001:db8:0:0:0:0:0:1"])
def test_ipv6_quota_applies_to_short_and_java_notation(named: str) -> None:
    quotas: dict[QuotaEntity, dict[str, float]] = {
        (("ip", named),): {"connection_creation_rate": 2.0},
        (("ip", None),): {"connection_creation_rate": 9.0},
    }
    assert find_address_limit(quotas, "2001:db8:0:0:0:0:0:1") == 2.0
