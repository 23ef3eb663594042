"""SASL/OAUTHBEARER by real clients: unsecured tokens as Kafka takes them, and signed ones by a file of keys."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

import klamm
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.kafka_tools import run_tool
from tests.support.security import client_properties
from tests.support.tokens import Issuer, claims_of, key_set, unsecured
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
PREFIX = "listener.name.sasl_plaintext.oauthbearer."
SIGNED = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
SETTINGS = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    f"{PREFIX}sasl.jaas.config": f"{MODULE} required;",
    "connection.failed.authentication.delay.ms": "20",
    "authorizer.class.name": "klamm.Authorizer",
    "super.users": "User:alice",
}
ISSUER, STRANGER = Issuer("key"), Issuer("key")


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


def produce_by_kafka_python(broker: klamm.Broker, token: str) -> int:
    """Return the offset; only alice may write."""
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Tokens(token),
    )
    offset: int = producer.send("python", b"hello").get(30).offset
    producer.close()
    return offset


def answers_to(broker: klamm.Broker, token: str) -> list[SaslAuthenticateResponse]:
    """Return the responses to a token; a failed login includes the client's acknowledgement."""
    with WireClient(broker.bootstrap_servers) as client:
        client.ask(SaslHandshakeRequest(mechanism="OAUTHBEARER"), SaslHandshakeResponse, 1)
        first = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        answers = [client.ask(SaslAuthenticateRequest(auth_bytes=first), SaslAuthenticateResponse, 2)]
        if answers[0].auth_bytes:
            answers.append(client.ask(SaslAuthenticateRequest(auth_bytes=b"\x01"), SaslAuthenticateResponse, 2))
        return answers


def is_rejected(broker: klamm.Broker, token: str) -> bool:
    first, *last = answers_to(broker, token)
    return first.auth_bytes == b'{"status":"invalid_token"}' and [answer.error_code for answer in last] == [58]


def librdkafka(broker: klamm.Broker, **more: Any) -> AdminClient:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "log_level": 0,
        **{name.replace("_", ".") if name != "oauth_cb" else name: value for name, value in more.items()},
    }
    return AdminClient(settings)


@pytest.fixture(scope="module")
def unsecured_broker() -> Iterator[klamm.Broker]:
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=SETTINGS) as broker:
        yield broker


def test_kafka_python_and_librdkafka_log_in_by_unsecured_tokens(unsecured_broker: klamm.Broker) -> None:
    assert produce_by_kafka_python(unsecured_broker, unsecured(claims_of("alice"))) == 0
    assert is_rejected(unsecured_broker, unsecured(claims_of("alice", exp=time.time() - 1)))
    assert is_rejected(unsecured_broker, ISSUER.sign(claims_of("alice")))
    own = librdkafka(
        unsecured_broker, enable_sasl_oauthbearer_unsecure_jwt="true", sasl_oauthbearer_config="principal=alice"
    )
    assert own.list_topics(timeout=30).cluster_id


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_java_client_logs_in_with_an_unsecured_token(unsecured_broker: klamm.Broker, tmp_path: Path) -> None:
    login = f'{MODULE} required unsecuredLoginStringClaim_sub="alice";'
    properties = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": login,
    }  # fmt: skip
    config = str(client_properties(tmp_path / "client.properties", properties))
    servers = ("--bootstrap-server", unsecured_broker.bootstrap_servers, "--command-config", config)
    run_tool("org.apache.kafka.tools.TopicCommand", *servers, "--create", "--topic", "by-java")
    assert "by-java" in run_tool("org.apache.kafka.tools.TopicCommand", *servers, "--list")


def test_signed_tokens_are_verified_with_a_reloadable_key_file(tmp_path: Path) -> None:
    # given
    keys = tmp_path / "keys.json"
    keys.write_text(key_set(ISSUER))
    signed = {
        f"{PREFIX}sasl.server.callback.handler.class": SIGNED,
        f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        f"{PREFIX}sasl.oauthbearer.expected.audience": "kafka",
        f"{PREFIX}sasl.oauthbearer.allow.unverified.issuer": "true",
    }
    token = ISSUER.sign(claims_of("alice", aud="kafka"))
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=SETTINGS | signed) as broker:
        # then
        assert produce_by_kafka_python(broker, token) == 0
        for wrong in (
            unsecured(claims_of("alice", aud="kafka")),
            STRANGER.sign(claims_of("alice", aud="kafka")),
            ISSUER.sign(claims_of("alice", aud="others")),
        ):
            assert is_rejected(broker, wrong)
        admin = librdkafka(broker, oauth_cb=lambda _: (token, time.time() + 600))
        admin.poll(1)
        assert admin.list_topics(timeout=30).cluster_id
        # and when the issuer changes its key
        keys.write_text(key_set(STRANGER) + "\n")
        assert not is_rejected(broker, STRANGER.sign(claims_of("alice", aud="kafka")))
        assert is_rejected(broker, token)
        assert token not in broker.log_text()


def test_token_login_reports_session_lifetime(unsecured_broker: klamm.Broker) -> None:
    """The client learns the lifetime, so that it can reauthenticate in time (KIP-368)."""
    (answer,) = answers_to(unsecured_broker, unsecured(claims_of("alice", seconds=600)))
    assert answer.error_code == 0
    assert 0 < answer.session_lifetime_ms <= 600_000


def test_expired_token_of_librdkafka_is_rejected(unsecured_broker: klamm.Broker) -> None:
    def expired(_: str) -> tuple[str, float]:
        return unsecured(claims_of("alice", exp=1.0)), time.time() + 60

    admin = librdkafka(unsecured_broker, oauth_cb=expired)
    admin.poll(0.5)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
