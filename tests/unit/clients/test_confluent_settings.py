"""librdkafka's properties, parsed for a connection outside librdkafka."""

from __future__ import annotations

import ssl

import pytest

from klamm.clients.confluent_settings import (
    backoff_s,
    client_id,
    connection_settings,
    interval_s,
    is_true,
    split_properties,
)


def test_servers_login_and_certificates_are_translated() -> None:
    # when
    settings = connection_settings(
        {
            "bootstrap.servers": "a:1,b:2",
            "client.id": "app",
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": "secret",
            "ssl.ca.location": "ca.pem",
            "ssl.endpoint.identification.algorithm": "none",
            "linger.ms": 5,
        }
    )
    # then
    assert settings == {
        "bootstrap_servers": ["a:1", "b:2"],
        "client_id": "app",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "secret",
        "ssl_cafile": "ca.pem",
        "ssl_check_hostname": False,
    }


@pytest.mark.parametrize("name", ["oauth_cb", "sasl.oauthbearer.config", "ssl.ca.pem", "ssl.keystore.location"])
def test_librdkafka_only_login_setting_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        connection_settings({"bootstrap.servers": "a:1", name: "x"})


def test_disabled_certificate_verification_applies_to_own_connection() -> None:
    own = {"bootstrap.servers": "a:1", "security.protocol": "ssl", "enable.ssl.certificate.verification": "false"}
    context = connection_settings(own)["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)
    assert "ssl_context" not in connection_settings(own | {"enable.ssl.certificate.verification": True})
    with pytest.raises(FileNotFoundError):
        connection_settings(own | {"ssl.certificate.location": "missing.pem"})


def test_unset_properties_have_defaults() -> None:
    assert client_id({}) == "rdkafka"
    assert interval_s({}) == 300
    assert interval_s({"metadata.max.age.ms": "200"}) == 0.2
    assert backoff_s({}) == 0.1


@pytest.mark.parametrize(
    ("value", "expected"), [(True, True), ("true", True), ("1", True), (False, False), ("f", False)]
)
def test_switches_are_read_as_librdkafka_reads_them(value: object, expected: bool) -> None:
    assert is_true({"enable.idempotence": value}, "enable.idempotence") is expected
    assert is_true({}, "enable.idempotence") is False


def test_properties_come_in_a_dictionary_or_as_keywords() -> None:
    # when
    properties, more = split_properties({"client.id": "app", "acks": 1}, {"acks": "all", "logger": "mine"})
    # then
    assert properties == {"client.id": "app", "acks": "all"}
    assert more == {"logger": "mine"}
    assert split_properties(None, {"client.id": "app"}) == ({"client.id": "app"}, {})


def test_topic_config_overrides_properties_like_confluent_kafka() -> None:
    """Its auto.offset.reset decides where a consumer starts, and its acks what a producer reverts to."""
    config = {"acks": 1, "client.id": "app", "default.topic.config": {"acks": 0, "auto.offset.reset": "earliest"}}
    assert split_properties(config, {})[0] == {"acks": 0, "client.id": "app", "auto.offset.reset": "earliest"}
    assert "default.topic.config" in config, "the application's object is not changed"
    assert split_properties({"default.topic.config": "x"}, {})[0] == {"default.topic.config": "x"}
