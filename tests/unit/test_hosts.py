from __future__ import annotations

import pytest

from klamm.hosts import host_forms, plain_host


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("::ffff:a01:203", "10.1.2.3"),
        ("::ffff:nonsense", "::ffff:nonsense"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:DB8::a", "2001:db8:0:0:0:0:0:a"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("10.1.2.3", "10.1.2.3"),
        ("b.example.org", "b.example.org"),
    ],
)
def test_ip_address_is_formatted_like_java(address: str, shown: str) -> None:
    """As ``InetAddress.getByName(address).getHostAddress()``, where that is an address."""
    assert plain_host(address) == shown


def test_host_forms_contain_short_and_long_ipv6_address() -> None:
    assert host_forms("2001:db8::1") == host_forms("2001:db8:0:0:0:0:0:1") == ("2001:db8:0:0:0:0:0:1", "2001:db8::1")
