"""Listener settings, accepted or rejected with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from klamm.broker.settings import unknown_names
from klamm.properties import SettingsError
from klamm.server.listeners import parse_listeners
from klamm.server.security.endpoints import open_endpoint
from tests.support.tokens import Issuer, claims_of, key_set

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.server.security.endpoints import Endpoint

PACKAGE = "org.apache.kafka.common.security"
MODULE = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule"
SIGNED = f"{PACKAGE}.oauthbearer.OAuthBearerValidatorCallbackHandler"
PREFIX = "listener.name.sasl_plaintext.oauthbearer."
HANDLER = f"{PREFIX}sasl.server.callback.handler.class"
KEYS = f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url"
UNVERIFIED = {f"{PREFIX}sasl.oauthbearer.allow.unverified.{suffix}": "true" for suffix in ("audience", "issuer")}
OAUTH = UNVERIFIED | {"sasl.enabled.mechanisms": "OAUTHBEARER", f"{PREFIX}sasl.jaas.config": f"{MODULE} required;"}


def opened(configs: dict[str, str]) -> Endpoint:
    (listener,) = parse_listeners("SASL_PLAINTEXT://127.0.0.1:0", advertised=None, configs=configs, count=1)
    return open_endpoint(listener, configs, find_scram=lambda user, mechanism: None)


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"sasl.enabled.mechanisms": "PLAIN,GSSAPI"}, "expected some of PLAIN, .*; Kerberos is not served"),
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER"},
            r"without a login module: set listener\.name\.sasl_plaintext\.oauth",
        ),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "enables PLAIN but names no users"),
        (
            OAUTH | {f"{PREFIX}sasl.jaas.config": "com.example.Module required;"},
            "com.example.Module is not known, only",
        ),
        (OAUTH | {"connections.max.reauth.ms": "abc"}, r"connections\.max\.reauth\.ms=abc: expected a whole number"),
        (OAUTH | {"sasl.server.max.receive.size": "-1"}, r"max\.receive\.size=-1: expected a whole number from 1 to"),
        (
            OAUTH | {"listener.name.sasl_plaintext.connection.failed.authentication.delay.ms": "x"},
            r"authentication\.delay\.ms=x: expected a whole number from 0 to",
        ),
        (OAUTH | {KEYS: "file:///keys"}, "without it unsigned tokens are accepted"),
        (OAUTH | {HANDLER: "com.example.Own"}, "other Java classes are not run"),
        (OAUTH | {HANDLER: SIGNED}, r"jwks\.endpoint\.url=: expected file:///PATH"),
        (OAUTH | {HANDLER: SIGNED, KEYS: "https://issuer/keys"}, "keys are not fetched over a network"),
        (OAUTH | {HANDLER: SIGNED, KEYS: "file:///no/such/keys"}, "/no/such/keys cannot be read"),
        (
            OAUTH | {f"{PREFIX}sasl.jaas.config": f'{MODULE} required unsecuredValidatorAllowableClockSkewMs="-1";'},
            "AllowableClockSkewMs=-1: expected a whole number",
        ),
    ],
)
def test_invalid_login_settings_are_rejected_at_start(configs: dict[str, str], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        opened(configs)


def test_session_lifetime_is_set_by_mechanism() -> None:
    """As in Kafka's SaslChannelBuilder.createConnectionsMaxReauthMsMap."""
    listener = "listener.name.sasl_plaintext."
    configs = OAUTH | {
        "sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{listener}oauthbearer.connections.max.reauth.ms": "1000",
        f"{listener}scram-sha-256.connections.max.reauth.ms": "0",
        f"{listener}plain.connections.max.reauth.ms": "2000",
        "connections.max.reauth.ms": "3000",
    }

    login = opened(configs).login

    assert login is not None
    assert login.max_session_ms == {"OAUTHBEARER": 1000, "SCRAM-SHA-256": 0, "SCRAM-SHA-512": 3000}


def test_configs_of_an_authorizer_are_not_reported_as_unknown() -> None:
    assert unknown_names({"super.users": "User:a", "allow.everyone.if.no.acl.found": "true", "made.up": "x"}) == (
        "made.up",
    )


def test_key_set_file_is_read_at_start(tmp_path: Path) -> None:
    keys = tmp_path / "the keys.json"
    signed = OAUTH | {HANDLER: SIGNED, KEYS: keys.as_uri()}
    keys.write_text("{}")
    with pytest.raises(SettingsError, match="expected a JSON Web Key Set"):
        opened(signed)
    keys.write_text(key_set(Issuer("k", "ES256")))
    assert opened(signed).new_login() is not None


def test_changed_keys_are_read_again_after_a_failed_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    keys, issuer = tmp_path / "keys.json", Issuer("new", "ES256")
    keys.write_text(key_set(Issuer("k", "ES256")))
    endpoint = opened(OAUTH | {HANDLER: SIGNED, KEYS: keys.as_uri()})
    keys.write_text(key_set(issuer))

    def log_in() -> bool:
        login = endpoint.new_login()
        assert login is not None
        login.handshake("OAUTHBEARER", 1)
        login.authenticate(f"n,,\x01auth=Bearer {issuer.sign(claims_of('alice'))}\x01\x01".encode())
        return login.is_open

    # when
    with monkeypatch.context() as failing:
        failing.setattr("klamm.server.security.tokens.Path.read_text", Mock(side_effect=OSError("try again")))
        assert not log_in()
    # then
    assert log_in()
