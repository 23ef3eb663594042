from __future__ import annotations

from uuid import UUID

import pytest

from klamm.patterns import PatternError
from klamm.protocol.records.checksum import crc32c
from klamm.telemetry.instances import (
    DEFAULT_INTERVAL_MS,
    Subscribed,
    parse_subscription,
    subscribed,
    subscription_id,
)

CLIENT = {
    "client_instance_id": "m6Ssrvf2Rp25tKPv_Anotw",
    "client_id": "billing-1",
    "client_software_name": "apache-kafka-java",
    "client_software_version": "4.1.0",
    "client_source_address": "10.0.0.7",
    "client_source_port": "49152",
}


@pytest.mark.parametrize(
    ("match", "is_match"),
    [
        ("", True),
        ("client_id=billing-1", True),
        ("client_id=billing", False),
        ("client_id=billing.*, client_software_version = 4[.].*", True),
        ("client_id=billing.*,client_software_name=librdkafka", False),
        ("client_source_address=10[.]0[.].*,client_source_port=49152", True),
        ("client_instance_id=m6Ssrvf2Rp25tKPv_Anotw", True),
    ],
)
def test_every_pattern_must_match_the_whole_attribute(match: str, is_match: bool) -> None:
    """K714-02."""
    assert parse_subscription("s", {"match": match}).matches(CLIENT) is is_match


@pytest.mark.parametrize("pattern", ["(?=b).*", "(?:a?b?c?){1000}"])
def test_pattern_that_is_valid_in_java_only_or_too_complex_is_an_error(pattern: str) -> None:
    with pytest.raises(PatternError):
        parse_subscription("s", {"match": f"client_id={pattern}"})


def test_subscriptions_are_merged_with_the_shortest_interval() -> None:
    """K714-02."""
    some = parse_subscription("a", {"metrics": "org.b, org.a", "interval.ms": "5000"})
    more = parse_subscription("b", {"metrics": "org.a,org.c", "interval.ms": "1000"})
    other = parse_subscription("c", {"metrics": "*", "interval.ms": "100", "match": "client_id=other"})
    everything = parse_subscription("d", {"metrics": "*"})
    assert subscribed([some, more, other], CLIENT) == Subscribed(metrics=("org.a", "org.b", "org.c"), interval_ms=1000)
    assert subscribed([some, everything], CLIENT) == Subscribed(metrics=("*",), interval_ms=5000)
    assert subscribed([other], CLIENT) == Subscribed(metrics=(), interval_ms=DEFAULT_INTERVAL_MS)


def test_subscription_id_matches_kafka() -> None:
    """K714-03. CRC-32C of Java's text of the set and the interval, XOR the hash of Java's Uuid."""
    instance = UUID(int=(0x0123456789ABCDEF << 64) | 0xFEDCBA9876543210)
    high_xor_low = 0x0123456789ABCDEF ^ 0xFEDCBA9876543210
    hash_code = (high_xor_low >> 32) ^ (high_xor_low & 0xFFFFFFFF)
    subscribed_id = subscription_id(Subscribed(metrics=("org.a", "org.b"), interval_ms=100), instance)
    assert subscribed_id % 2**32 == crc32c(b"[org.a, org.b]100") ^ hash_code
    assert -(2**31) <= subscribed_id < 2**31
    assert subscribed_id != subscription_id(Subscribed(metrics=("org.a", "org.b"), interval_ms=101), instance)
