"""Guard of TLS settings: whatever they name, the request is answered and the other resources are changed."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
from cryptography.exceptions import UnsupportedAlgorithm

import klamm.tls
from klamm.broker.configs.service import ConfigsChanged
from klamm.broker.security import tls_renewal
from klamm.broker.security.tls_renewal import TlsRenewal
from klamm.properties import SettingsError
from klamm.protocol.errors import InvalidRequestError
from klamm.protocol.types import ResourceType
from klamm.security.stores import pem
from klamm.server.listeners import Listener, SecurityProtocol
from klamm.server.security.tls import ServerTls, server_tls
from tests.support.configs import ANNA, SET, alteration, make_service, operation, topic
from tests.support.java_stores import identity

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN = identity("broker")
LISTENER = Listener(name="TLS", protocol=SecurityProtocol.SSL, listen=(), advertise=None)
KEY, CHAIN = pem("PRIVATE KEY", OWN.key_der), pem("CERTIFICATE", OWN.der)
STATIC = {"ssl.keystore.type": "PEM", "ssl.keystore.key": KEY, "ssl.keystore.certificate.chain": CHAIN}
STORE = {
    "ssl.keystore.type": "JKS",
    "ssl.keystore.key": "",
    "ssl.keystore.certificate.chain": "",
    "ssl.keystore.location": __file__,
    "ssl.keystore.password": "store-pw",
}


def renewal(static: Mapping[str, str] = STATIC, dynamic: Mapping[str, Mapping[str, str]] = {}) -> TlsRenewal:
    return TlsRenewal([LISTENER], node_ids=[1, 2], static=static, dynamic=dynamic)


async def alter(tls: TlsRenewal, settings: Mapping[str, str]) -> tuple[object, object]:
    """Return the outcomes of a request that changes a topic and the TLS settings of a listener."""
    own = [operation(f"listener.name.tls.{name}", SET, value) for name, value in settings.items()]
    changes = (topic("t", operation("retention.ms", SET, "1")), alteration(ResourceType.BROKER, "1", *own))
    first, second = await make_service(guards=[tls]).alter(changes, node_id=1, author=ANNA, validate_only=False)
    return first, second


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({**STORE, "ssl.keystore.location": "a\0b"}, "keystore.location=a\0b: cannot be read"),
        (
            {**STORE, "ssl.keystore.type": "PEM", "ssl.keystore.location": "a\0b"},
            "keystore.location=a\0b: cannot be read",
        ),
        (
            {"ssl.client.auth": "required", "ssl.truststore.type": "PEM", "ssl.truststore.certificates": "é"},
            "ssl.truststore.certificates: cannot be read",
        ),
    ],
    ids=["null byte in the path of a store", "null byte in the path of a PEM file", "certificates are not ASCII"],
)
async def test_unreadable_tls_settings_are_rejected_and_other_resources_changed(
    settings: Mapping[str, str], reason: str
) -> None:
    # given
    tls = renewal()
    # when
    first, second = await alter(tls, settings)
    # then
    assert first is None
    assert isinstance(second, InvalidRequestError)
    assert reason in str(second.error_message)


async def test_keystore_with_unsupported_key_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    def read_store(*_: object, **__: object) -> None:
        raise UnsupportedAlgorithm("Curve 1.3.132.0.6 is not supported")

    monkeypatch.setattr(klamm.tls, "read_store", read_store)
    # when
    first, second = await alter(renewal(), STORE)
    # then
    assert first is None
    assert isinstance(second, InvalidRequestError)


async def test_tls_settings_are_rejected_if_no_temporary_file_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    tls = renewal()

    def mkstemp(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", mkstemp)
    # when
    first, second = await alter(tls, {"ssl.enabled.protocols": "TLSv1.3"})
    # then
    assert first is None
    assert isinstance(second, InvalidRequestError)
    assert "No space left on device" in str(second.error_message)


@pytest.mark.parametrize("label", ["X509 CERTIFICATE", "TRUSTED CERTIFICATE"])
async def test_keystore_with_older_certificate_label_is_accepted(label: str) -> None:
    # given
    chain = CHAIN.replace("CERTIFICATE", label)
    # when
    outcomes = await alter(renewal(), {**STATIC, "ssl.keystore.certificate.chain": chain})
    # then
    assert outcomes == (None, None)


async def test_change_is_rejected_if_names_of_current_certificate_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    with monkeypatch.context() as patched:
        unknown = ServerTls(context=server_tls(LISTENER, STATIC).context, certificate=b"")
        patched.setattr(tls_renewal, "server_tls", lambda *_: unknown)
        tls = renewal()
    # when
    first, second = await alter(tls, STATIC)
    # then
    assert first is None
    assert isinstance(second, InvalidRequestError)
    assert "names in the old or the new certificate cannot be read" in str(second.error_message)


def test_stored_path_with_null_byte_keeps_the_tls_settings_of_the_start(caplog: pytest.LogCaptureFixture) -> None:
    # given
    tls, stored = renewal(), {f"listener.name.tls.{name}": value for name, value in STORE.items()}
    stored["listener.name.tls.ssl.keystore.location"] = "a\0b"
    before = tls.context(1, "TLS").current
    # when
    tls.follow(ConfigsChanged(ResourceType.BROKER, "1", frozenset(stored)), stored)
    # then
    assert tls.context(1, "TLS").current is before
    assert isinstance(before, ssl.SSLContext)
    assert "keeps its TLS settings" in caplog.text


def test_broker_starts_with_its_dynamic_keystore_if_that_of_the_properties_is_gone() -> None:
    # given
    gone = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/no/such.pem"}
    own = {f"listener.name.tls.{name}": value for name, value in {**STATIC, "ssl.keystore.location": ""}.items()}
    # when
    tls = renewal(gone, {"1": own, "2": own})
    # then
    current = tls.current(1, "TLS")
    assert current is not None
    assert (current.certificate, tls.context(1, "TLS").current) == (OWN.der, current.context)


def test_broker_starts_with_the_properties_if_its_dynamic_keystore_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    # given
    own = {f"listener.name.tls.{name}": value for name, value in STORE.items()}
    # when
    tls = renewal(dynamic={"1": own})
    # then
    current = tls.current(1, "TLS")
    assert current is not None
    assert current.certificate == OWN.der
    assert "Listener TLS of broker 1 keeps its TLS settings" in caplog.text


def test_keystore_of_a_broker_must_work_with_or_without_its_dynamic_configs() -> None:
    # given
    own = {f"listener.name.tls.{name}": value for name, value in STORE.items()}
    # when, then
    with pytest.raises(SettingsError, match=r"no/such\.pem"):
        renewal({"ssl.keystore.type": "PEM", "ssl.keystore.location": "/no/such.pem"}, {"1": own})
