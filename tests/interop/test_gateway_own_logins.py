"""Logins that end at the gateway: its own users and certificates, its own credentials at the upstream."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer

import klamm
from klamm.admin import AdminClient, NewTopic
from klamm.protocol.errors import PolicyViolationError
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.security import PASSWORDS, PLAIN_MODULE, SCRAM_MODULE, Certificates, log_in, sasl_settings
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

UPSTREAM_LOGIN = {
    "upstream.security.protocol": "SASL_PLAINTEXT",
    "upstream.sasl.mechanism": "PLAIN",
    "upstream.sasl.jaas.config": f'{PLAIN_MODULE} required username="admin" password="{PASSWORDS["admin"]}";',
}
USERS = {"carol": "carol-secret", "dave": "dave-secret"}
"""Users of the gateway, whom the upstream does not know."""
OWN_USERS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "connection.failed.authentication.delay.ms": 20,
} | {
    f"listener.name.sasl_plaintext.{mechanism}.sasl.jaas.config": f"{module} required "
    + " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    + ";"
    for mechanism, module in (("plain", PLAIN_MODULE), ("scram-sha-512", SCRAM_MODULE))
}
RULES = """\
rules:
  - name: only-dave-creates
    principals: ["User:carol"]
    partitions: {min: 2}
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[klamm.Broker]:
    config = sasl_settings(authorizer=True)
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=config) as broker:
        yield broker


@pytest.fixture(scope="module")
def gateway(upstream: klamm.Broker) -> Iterator[klamm.Gateway]:
    config = UPSTREAM_LOGIN | OWN_USERS | {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
    with klamm.Gateway(upstream.bootstrap_servers, config=config) as gateway:
        yield gateway


def librdkafka(gateway: klamm.Gateway, mechanism: str, **more: Any) -> dict[str, Any]:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": "carol"}
    return (
        {"bootstrap.servers": gateway.bootstrap_servers, "sasl.password": USERS["carol"], "log_level": 0} | login | more
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_users_of_the_gateway_act_with_the_rights_of_the_gateway(gateway: klamm.Gateway, mechanism: str) -> None:
    settings = librdkafka(gateway, mechanism)
    producer = Producer(settings)
    producer.produce(f"own-{mechanism}", b"hello")
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": mechanism, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([f"own-{mechanism}"])
        message = consumer.poll(60)
        assert message is not None
        assert message.value() == b"hello"
    finally:
        consumer.close()


def test_gateway_and_upstream_logins_are_separate(gateway: klamm.Gateway, upstream: klamm.Broker) -> None:
    for address, user, password in (
        (gateway.bootstrap_servers, "admin", PASSWORDS["admin"]),
        (upstream.bootstrap_servers, "carol", USERS["carol"]),
    ):
        with pytest.raises(AssertionError, match="Authentication failed"):
            log_in(address, user, password)
    assert not [secret for secret in (*USERS.values(), *PASSWORDS.values()) if secret in gateway.log_text()]


def test_failed_login_or_unknown_mechanism_closes_the_connection(gateway: klamm.Gateway) -> None:
    with WireClient(gateway.bootstrap_servers) as client:
        assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1).error_code == 0
        rejected = client.ask(SaslAuthenticateRequest(auth_bytes=b"\0carol\0wrong"), SaslAuthenticateResponse, 2)
        assert rejected.error_code == 58
        with pytest.raises(ConnectionResetError):
            client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2)
    with WireClient(gateway.bootstrap_servers) as client:
        answer = client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), SaslHandshakeResponse, 1)
        assert (answer.error_code, answer.mechanisms) == (33, ["PLAIN", "SCRAM-SHA-512"])
        with pytest.raises(ConnectionResetError):
            client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2)


def test_requests_before_login_are_rejected_and_token_apis_hidden(gateway: klamm.Gateway) -> None:
    with WireClient(gateway.bootstrap_servers) as client:
        offered = {api.api_key for api in client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2).api_keys}
        assert offered
        assert not offered & {38, 39, 40, 41}
        with pytest.raises(ConnectionResetError):
            client.ask(MetadataRequest(topics=[]), MetadataResponse, 1)


def test_client_idle_beyond_the_gateways_upstream_session_is_served(
    make_klamm_broker: Callable[..., klamm.Broker], make_klamm_gateway: Callable[..., klamm.Gateway]
) -> None:
    """The broker accepts nothing but a login then, and closes the connection at any other request."""
    lifetime_s = 2.0
    config = sasl_settings(authorizer=True) | {"connections.max.reauth.ms": int(lifetime_s * 1000)}
    upstream = make_klamm_broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=config)
    own = UPSTREAM_LOGIN | OWN_USERS
    gateway = make_klamm_gateway(upstream.bootstrap_servers, listen="SASL_PLAINTEXT://127.0.0.1:0", config=own)
    with log_in(gateway.bootstrap_servers, "carol", USERS["carol"]) as client:
        for _ in range(2):
            time.sleep(lifetime_s + 0.1)
            assert len(client.ask(MetadataRequest(topics=[]), MetadataResponse, 1).brokers) == 1


def test_policies_see_the_principal_of_a_client_certificate(
    upstream: klamm.Broker, make_klamm_gateway: Callable[..., klamm.Gateway], tmp_path: Path
) -> None:
    # given: certificates of clients, mapped to principals, and a rule for one of them
    certificates = Certificates.create(tmp_path)
    for name in ("gateway", "carol", "dave"):
        certificates.issue(name, f"/CN={name}")
    (tmp_path / "rules.yaml").write_text(RULES)
    config = UPSTREAM_LOGIN | {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": tmp_path / "gateway.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.authority,
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/",
        "create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "policy.rules.file": tmp_path / "rules.yaml",
    }
    # when
    gateway = make_klamm_gateway(upstream.bootstrap_servers, listen="SSL://127.0.0.1:0", config=config)
    # then
    created = {}
    for name in ("carol", "dave"):
        login = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates.authority),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(tmp_path / f"{name}.pem"),
        }
        with AdminClient.from_properties(gateway.bootstrap_servers, login) as admin:
            created[name] = (
                admin.create_topics([NewTopic(f"of-{name}", num_partitions=1)]).values()[f"of-{name}"].exception()
            )
    assert isinstance(created["carol"], PolicyViolationError)
    assert created["dave"] is None
