"""Logins through a gateway: TLS to clients, SASL checked by the upstream, its ACLs by the client's own principal."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from kafka import KafkaConsumer, KafkaProducer

import klamm
from klamm.admin import AdminClient as KlammAdminClient
from klamm.admin import NewTopic
from klamm.embedded.server_process import BrokerStartError
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.processes import free_port
from tests.support.security import PASSWORDS, PLAIN_MODULE, Certificates, log_in, sasl_settings
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UPSTREAM_LOGIN = {
    "upstream.security.protocol": "SASL_PLAINTEXT",
    "upstream.sasl.mechanism": "PLAIN",
    "upstream.sasl.jaas.config": f'{PLAIN_MODULE} required username="admin" password="{PASSWORDS["admin"]}";',
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates.create(tmp_path_factory.mktemp("certificates"))
    made.issue("gateway", "/CN=gateway")
    return made


@pytest.fixture(scope="module")
def upstream() -> Iterator[klamm.Broker]:
    config = sasl_settings(authorizer=True) | {"super.users": "User:admin;User:alice"}
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=config) as broker:
        yield broker


@pytest.fixture(scope="module")
def gateway(upstream: klamm.Broker) -> Iterator[klamm.Gateway]:
    with klamm.Gateway(upstream.bootstrap_servers, config=UPSTREAM_LOGIN) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def tls_gateway(upstream: klamm.Broker, certificates: Certificates) -> Iterator[klamm.Gateway]:
    store = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificates.directory / "gateway.pem")}
    with klamm.Gateway(upstream.bootstrap_servers, listen="SSL://127.0.0.1:0", config=UPSTREAM_LOGIN | store) as made:
        yield made


def librdkafka(address: str, user: str, *, mechanism: str = "PLAIN", **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
        "log_level": 0,
        **more,
    }


def round_trip(settings: dict[str, Any], topic: str, value: bytes) -> bytes | None:
    producer = Producer(settings)
    producer.produce(topic, value)
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_logins_pass_through(gateway: klamm.Gateway, mechanism: str) -> None:
    if mechanism != "PLAIN":
        admin = AdminClient(librdkafka(gateway.bootstrap_servers, "admin"))
        kind = ScramMechanism.SCRAM_SHA_256 if mechanism.endswith("256") else ScramMechanism.SCRAM_SHA_512
        upsertion = UserScramCredentialUpsertion("alice", ScramCredentialInfo(kind, 4096), PASSWORDS["alice"].encode())
        admin.alter_user_scram_credentials([upsertion])["alice"].result(300)
    settings = librdkafka(gateway.bootstrap_servers, "alice", mechanism=mechanism)
    assert round_trip(settings, f"login-{mechanism}", b"hello") == b"hello"


def test_records_of_any_size_pass_tls(tls_gateway: klamm.Gateway, certificates: Certificates) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": tls_gateway.bootstrap_servers,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORDS["alice"],
        "ssl_cafile": str(certificates.authority),
    }
    values = [bytes([number]) * (number * 90_000 + 1) for number in range(10)]
    producer = KafkaProducer(**settings)
    for value in values:
        producer.send("tls", value)
    producer.flush(60)
    producer.close()
    consumer = KafkaConsumer("tls", **settings, auto_offset_reset="earliest", consumer_timeout_ms=300_000)
    assert [next(consumer).value for _ in values] == values
    consumer.close()


def test_client_reaches_each_broker_by_host_name_on_one_port(
    make_klamm_gateway: Callable[..., klamm.Gateway],
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given: three brokers, and names that lead to the gateway only
    store = certificates.issue("kafka", "/CN=kafka", hosts=("kafka.example", "*.kafka.example"))
    hosts = set()
    resolve = socket.getaddrinfo

    def to_the_gateway(host: str, *more: Any, **options: Any) -> Any:
        hosts.add(host)
        return resolve("127.0.0.1" if host.endswith("kafka.example") else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", to_the_gateway)
    port = free_port()
    config = {
        "advertised.listeners": f"SSL://kafka.example:{port}",
        "broker.host.pattern": "broker-$(nodeId).kafka.example",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
    }
    with klamm.Broker(brokers=3) as upstream:
        with KlammAdminClient(upstream.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("named", 3)]).all().result()
            (topic,) = admin.describe_topics(["named"]).all().result().values()
        make_klamm_gateway(upstream.bootstrap_servers, listen=f"SSL://127.0.0.1:{port}", config=config)
        # when
        settings: dict[str, Any] = {
            "bootstrap_servers": f"kafka.example:{port}",
            "security_protocol": "SSL",
            "ssl_cafile": str(certificates.authority),
        }
        producer = KafkaProducer(**settings)
        for partition in range(3):
            producer.send("named", str(partition).encode(), partition=partition)
        producer.flush(60)
        producer.close()
        consumer = KafkaConsumer(
            "named", **settings, group_id="named", auto_offset_reset="earliest", consumer_timeout_ms=300_000
        )
        values = {next(consumer).value for _ in range(3)}
        consumer.close()
    # then
    assert values == {b"0", b"1", b"2"}
    leaders = {partition.leader for partition in topic.partitions}
    assert len(leaders) == 3
    assert {f"broker-{leader}.kafka.example" for leader in leaders} | {"kafka.example"} <= hosts


def test_plaintext_client_on_tls_listener_is_closed_and_others_are_served(
    tls_gateway: klamm.Gateway, certificates: Certificates
) -> None:
    host, _, port = tls_gateway.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\0\xff\xff")
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1000):  # the alert of TLS, then the end
                pass
    tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(certificates.authority)}
    settings = librdkafka(tls_gateway.bootstrap_servers, "alice") | tls
    assert Producer(settings).list_topics(timeout=60).brokers


def test_acls_apply_to_the_principal_of_the_client(gateway: klamm.Gateway) -> None:
    with log_in(gateway.bootstrap_servers, "alice") as client:
        client.create_topic("of-alice")
        assert "of-alice" in client.topic_ids()
    with log_in(gateway.bootstrap_servers, "mallory") as client:
        assert client.topic_ids() == {}


def test_before_the_login_no_other_request_is_served(gateway: klamm.Gateway) -> None:
    with WireClient(gateway.bootstrap_servers) as client, pytest.raises(ConnectionResetError):
        client.ask(MetadataRequest(topics=[]), MetadataResponse, 1)


def test_wrong_password_is_rejected_by_upstream_and_not_logged(gateway: klamm.Gateway) -> None:
    with WireClient(gateway.bootstrap_servers) as client:
        assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1).error_code == 0
        token = SaslAuthenticateRequest(auth_bytes=b"\0alice\0my-wrong-password")
        answer = client.ask(token, SaslAuthenticateResponse, 2)
    assert (answer.error_code, answer.error_message) == (58, "Authentication failed: Invalid username or password")
    log = gateway.log_text()
    assert "my-wrong-password" not in log
    assert not [password for password in PASSWORDS.values() if password in log]


def test_gssapi_is_rejected_with_supported_mechanisms(gateway: klamm.Gateway) -> None:
    with WireClient(gateway.bootstrap_servers) as client:
        answer = client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), SaslHandshakeResponse, 1)
    assert answer.error_code == 33
    assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert "SASL mechanism 'GSSAPI' cannot pass the gateway" in gateway.log_text()


def test_invalid_upstream_credentials_fail_gateway_start(
    upstream: klamm.Broker, make_klamm_gateway: Callable[..., klamm.Gateway]
) -> None:
    login = UPSTREAM_LOGIN["upstream.sasl.jaas.config"].replace(PASSWORDS["admin"], "not-this-one")
    config = UPSTREAM_LOGIN | {"upstream.sasl.jaas.config": login, "upstream.start.timeout.ms": 1}
    with pytest.raises(BrokerStartError, match="SASL_AUTHENTICATION_FAILED") as rejected:
        make_klamm_gateway(upstream.bootstrap_servers, config=config)
    assert "not-this-one" not in str(rejected.value)
