from __future__ import annotations

import importlib.util
import ssl
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from klamm.kafka_client.connection.security import Security
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="al\\"ice" password="p w";'
SCRAM = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": LOGIN}


def test_default_protocol_is_plaintext() -> None:
    assert Security.of({"client.id": "c", "sasl.jaas.config": "not read"}) == Security()


def test_system_certificates_are_loaded_for_a_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Mock()
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", load)

    security = Security.of({"security.protocol": "SSL"})
    loads_of_check = load.call_count
    security.tls_context()

    assert (loads_of_check, load.call_count) == (0, 1)


def test_login_is_read_from_java_properties() -> None:
    """K894-27: Key precedence: ``A->B.k`` over top-level ``k``; for clients ``A->B.source.consumer.k``,
    ``A.consumer.k``, ``A.k``, ``k``, ``A->B.consumer.k``, ``A->B.source.cluster.k``.
    """
    read = Security.of(SCRAM)
    assert (read.mechanism, read.username, read.password) == ("SCRAM-SHA-512", 'al"ice', "p w")
    assert read.uses_sasl
    assert not read.uses_tls


def test_oauthbearer_options_are_kept_for_the_login() -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    read = Security.of(
        {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f'{module} required clientId="me" clientSecret="hush";',
            "sasl.oauthbearer.token.endpoint.url": "http://tokens.invalid/",
        }
    )
    assert read.login == {
        "clientId": "me",
        "clientSecret": "hush",
        "sasl.oauthbearer.token.endpoint.url": "http://tokens.invalid/",
    }
    assert "hush" not in repr(read)


def test_kerberos_service_name_is_required_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    settings = {"security.protocol": "SASL_PLAINTEXT"}
    for more in ({"sasl.kerberos.service.name": "kafka"}, {"sasl.jaas.config": 'M required serviceName="kafka";'}):
        read = Security.of(settings | more)
        assert (read.mechanism, read.login) == ("GSSAPI", {"sasl_kerberos_service_name": "kafka"})
    with pytest.raises(SettingsError, match=r"sasl\.kerberos\.service\.name: required"):
        Security.of(settings)


def test_security_keyword_arguments_equal_properties() -> None:
    read = Security.of_keywords(
        {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "alice",
            "sasl_plain_password": "p w",
            "sasl_kerberos_service_name": None,
            "ssl_check_hostname": False,
        }
    )
    assert (read.protocol, read.mechanism, read.username, read.password) == ("SASL_SSL", "PLAIN", "alice", "p w")
    assert not read.login
    assert not read.tls_context().check_hostname


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"security_protocol": "TLS"}, "security_protocol='TLS': expected one of PLAINTEXT, SSL"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "requires sasl_mechanism"),
    ],
)
def test_invalid_security_keyword_arguments_are_rejected(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Security.of_keywords(settings)


def test_passwords_are_not_shown() -> None:
    assert "p w" not in repr(Security.of(SCRAM))


def test_host_names_are_verified_unless_disabled() -> None:
    assert Security.of({"security.protocol": "SSL"}).tls_context().check_hostname
    unchecked = Security.of({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""})
    assert not unchecked.tls_context().check_hostname


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS: expected one of PLAINTEXT, SSL"),
        ({**SCRAM, "sasl.mechanism": "DIGEST-MD5"}, "sasl.mechanism=DIGEST-MD5: expected one of PLAIN"),
        ({**SCRAM, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI: requires the Python package gssapi"),
        ({**SCRAM, "sasl.jaas.config": 'Module required password="hunter2";'}, "expected a login module with username"),
        (
            {"security.protocol": "SSL", "ssl.truststore.type": "BKS"},
            "ssl.truststore.type=BKS: expected one of JKS, PKCS12",
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "/t.pem", "ssl.truststore.type": "PEM"},
            "ssl.truststore.location=/t.pem: cannot be read: No such file",
        ),
    ],
)
def test_unsupported_security_setting_is_rejected(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint) as rejected:
        Security.of(settings)
    assert "hunter2" not in str(rejected.value)


def test_truststore_without_certificates_is_rejected(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(SettingsError, match=r"ssl\.truststore\.location=.*empty\.pem: cannot be read"):
        Security.of({"security.protocol": "SSL", "ssl.truststore.location": str(empty), "ssl.truststore.type": "PEM"})
