"""Names of cipher suites."""

from __future__ import annotations

import subprocess

import pytest

from klamm.tls import SINCE_TLS_1_3, openssl_name


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("TLS_DHE_RSA_WITH_AES_256_CCM_8", "DHE-RSA-AES256-CCM8"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("SSL_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_ECDHE_RSA_WITH_ARIA_128_GCM_SHA256", "ECDHE-ARIA128-GCM-SHA256"),
        ("TLS_DH_anon_WITH_AES_128_CBC_SHA", None),
        ("TLS_RSA_WITH_NULL_SHA", None),
        ("ECDHE-RSA-AES256-GCM-SHA384", None),
        ("ALL", None),
    ],
)
def test_java_cipher_suite_maps_to_openssl_name(java: str, openssl: str | None) -> None:
    assert openssl_name(java) == openssl


@pytest.mark.process
def test_cipher_suite_names_agree_with_openssl() -> None:
    listed = subprocess.run(["openssl", "ciphers", "-stdname", "ALL"], capture_output=True, text=True, check=True)
    pairs = [(line.split()[0], line.split()[2]) for line in listed.stdout.splitlines()]
    ours = {name: openssl_name(name) for name, _ in pairs if openssl_name(name)}
    assert len(ours) > 20
    assert ours == {name: openssl for name, openssl in pairs if name in ours}
    assert {name for name, _ in pairs} >= set(SINCE_TLS_1_3)
