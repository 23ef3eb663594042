"""Contexts from Kafka's ``ssl.*`` settings."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from klamm.properties import SettingsError
from klamm.security.stores import pem
from klamm.tls import client_context, load_own
from tests.support.java_stores import identity, jks, p12

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

AUTHORITY = identity("authority")
OWN = identity("own", AUTHORITY)
KEY, CHAIN = pem("PRIVATE KEY", OWN.key_der), pem("CERTIFICATE", OWN.der)
GCM = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
NEW = "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stores")
    (directory / "own.jks").write_bytes(jks([(OWN, [AUTHORITY])], [], "store-pw", "key-pw"))
    (directory / "own.p12").write_bytes(p12(OWN, [AUTHORITY], "store-pw"))
    (directory / "trust.jks").write_bytes(jks([], [AUTHORITY], "store-pw"))
    (directory / "empty.jks").write_bytes(jks([], [], "store-pw"))
    return directory


def settings(stores: Path, **options: str) -> dict[str, str]:
    named = {f"ssl.{name.replace('_', '.')}": value for name, value in options.items()}
    return {name: str(stores / value) if name.endswith("location") else value for name, value in named.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"keystore_location": "own.jks", "keystore_password": "store-pw", "key_password": "key-pw"},
        {"keystore_location": "own.p12", "keystore_password": "store-pw", "keystore_type": "PKCS12"},
        {"keystore_location": "own.p12", "keystore_password": "store-pw", "key_password": "store-pw"},
        {"keystore_type": "PEM", "keystore_key": KEY, "keystore_certificate_chain": CHAIN},
    ],
    ids=["jks", "pkcs12", "pkcs12 called jks", "pem in the settings"],
)
def test_key_is_loaded_from_any_keystore_type(stores: Path, options: dict[str, str]) -> None:
    assert load_own(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings(stores, **options).get) == OWN.der


@pytest.mark.parametrize(
    "form",
    [
        lambda text: text.replace("\n", " "),
        lambda text: "    " + text.replace("\n", "\n    "),
        lambda text: "Bag Attributes\n    friendlyName: own\n" + text,
    ],
    ids=["one line", "indented", "with attributes"],
)
def test_pem_is_read_in_every_form_of_kafka(form: Callable[[str], str], tmp_path: Path) -> None:
    key, chain = form(KEY), form(CHAIN)
    (tmp_path / "own.pem").write_text(key + chain)
    inline = {"ssl.keystore.type": "PEM", "ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain}
    file = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(tmp_path / "own.pem")}
    for options in (inline, file):
        assert load_own(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), options.get) == OWN.der
    (tmp_path / "trust.pem").write_text(chain)
    for name, value in (("certificates", chain), ("location", str(tmp_path / "trust.pem"))):
        context = client_context({"ssl.truststore.type": "PEM", f"ssl.truststore.{name}": value})
        assert context.cert_store_stats()["x509"] == 1


@pytest.mark.parametrize(
    "text",
    ["-BEGIN" + " " * 32_000, "-" * 32_000, "-----BEGIN CERTIFICATE-----" * 1_000, "-BEGIN a-\n-END" + " " * 32_000],
    ids=["blanks", "dashes", "starts", "blanks at the end"],
)
def test_pem_of_maximum_length_is_rejected_in_linear_time(text: str) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        client_context({"ssl.truststore.type": "PEM", "ssl.truststore.certificates": text})


def test_only_truststore_certificates_are_trusted(stores: Path) -> None:
    context = client_context(settings(stores, truststore_location="trust.jks"))
    assert context.get_ca_certs(binary_form=True) == [AUTHORITY.der]
    assert context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"keystore_location": "own.jks"}, r"own\.jks: a JKS store needs ssl\.keystore\.password"),
        ({"keystore_location": "own.jks", "keystore_password": "hunter2"}, r"opened by ssl\.keystore\.password: its"),
        ({"keystore_location": "own.jks", "keystore_password": "store-pw"}, r"opened by ssl\.key\.password .* wrong"),
        ({"keystore_location": "trust.jks", "keystore_password": "store-pw"}, "holds no private key"),
        ({"keystore_location": "gone.jks", "keystore_password": "store-pw"}, "cannot be read: No such file"),
        ({"keystore_type": "BKS"}, "ssl.keystore.type=BKS: expected one of JKS, PKCS12, PEM"),
        ({"keystore_key": KEY, "keystore_certificate_chain": CHAIN}, "for PEM only, but ssl.keystore.type is JKS"),
        ({"keystore_type": "PEM", "keystore_key": KEY}, "set both or none"),
        ({"keystore_type": "PEM", "keystore_location": "own.jks"}, "cannot be read as key and certificates"),
        ({"truststore_location": "empty.jks"}, "holds no certificates"),
        ({"truststore_location": "trust.jks", "truststore_password": "hunter2"}, r"by ssl\.truststore\.password: its"),
        ({"truststore_certificates": CHAIN}, "for PEM only"),
        ({"protocol": "SSLv3"}, r"ssl\.protocol=SSLv3: expected one of TLS, TLSv1"),
        ({"enabled_protocols": "TLSv1.3,SSLv3"}, r"ssl\.enabled\.protocols=TLSv1\.3,SSLv3: expected some of"),
        ({"enabled_protocols": "TLSv1.1,TLSv1.3"}, r"leave out TLSv1\.2"),
        ({"cipher_suites": f"{GCM},TLS_NO_SUCH"}, r"ssl\.cipher\.suites: TLS_NO_SUCH: expected Java's names"),
        ({"cipher_suites": "ALL"}, "expected Java's names"),
        ({"cipher_suites": "TLS_AES_256_GCM_SHA384"}, r"cannot choose among the suites of TLS 1\.3"),
        ({"cipher_suites": GCM, "enabled_protocols": "TLSv1.3"}, "none of them belongs to a version"),
    ],
)
def test_invalid_tls_settings_are_rejected_without_secrets(
    stores: Path, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(SettingsError, match=complaint) as rejected:
        client_context(settings(stores, **options))
    assert not any(secret in str(rejected.value) for secret in ("hunter2", "store-pw", KEY))


@pytest.mark.parametrize(
    ("suites", "older", "versions"),
    [
        (GCM, {"ECDHE-RSA-AES256-GCM-SHA384"}, (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)),
        (f"{GCM},{NEW}", {"ECDHE-RSA-AES256-GCM-SHA384"}, (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)),
        (NEW, None, (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)),
    ],
)
def test_named_suites_are_the_only_ones(
    suites: str, older: set[str] | None, versions: tuple[ssl.TLSVersion, ssl.TLSVersion]
) -> None:
    context = client_context({"ssl.cipher.suites": suites})
    assert (context.minimum_version, context.maximum_version) == versions
    if older is not None:
        assert {cipher["name"] for cipher in context.get_ciphers()} - set(NEW.split(",")) == older


def test_tls_versions_have_kafkas_defaults() -> None:
    usual = client_context({})
    assert (usual.minimum_version, usual.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    only = client_context({"ssl.enabled.protocols": "TLSv1.2"})
    assert (only.minimum_version, only.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)
