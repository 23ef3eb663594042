"""Real clients with SASL and TLS, and rejected logins."""

from __future__ import annotations

import asyncio
import gc
import select
import socket
import ssl
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]
from aiokafka.errors import KafkaError as AiokafkaError  # type: ignore[import-untyped]
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as PythonError

import klamm
from klamm.embedded.broker import _free_addresses
from klamm.embedded.server_process import BrokerStartError
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.kafka_tools import run_tool
from tests.support.processes import wait_until
from tests.support.security import (
    PASSWORDS,
    PLAIN_MODULE,
    SCRAM_MODULE,
    Certificates,
    client_properties,
    log_in,
    sasl_settings,
)
from tests.support.wire import WireClient, request_frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
CONFIG_COMMAND = "kafka.admin.ConfigCommand"


@pytest.fixture(scope="module")
def broker() -> Iterator[klamm.Broker]:
    """A broker where alice can log in by every mechanism."""
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=sasl_settings()) as broker:
        admin = AdminClient(librdkafka(broker, "admin"))
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            credential = ScramCredentialInfo(mechanism, 4096)
            upsertion = UserScramCredentialUpsertion("alice", credential, PASSWORDS["alice"].encode())
            admin.alter_user_scram_credentials([upsertion])["alice"].result(300)
        yield broker


def librdkafka(
    broker: klamm.Broker, user: str, password: str | None = None, *, mechanism: str = "PLAIN", **more: Any
) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": PASSWORDS[user] if password is None else password,
        "log_level": 0,
        **more,
    }


def python(broker: klamm.Broker, user: str, password: str | None = None, *, mechanism: str = "PLAIN") -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": PASSWORDS[user] if password is None else password,
    }


def round_trip_by_librdkafka(settings: Mapping[str, Any], topic: str) -> bytes | None:
    producer = Producer({**settings})
    producer.produce(topic, b"hello")
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def round_trip_by_kafka_python(settings: Mapping[str, Any], topic: str) -> bytes:
    producer = KafkaProducer(**settings)
    producer.send(topic, b"hello").get(60)
    producer.close()
    consumer = KafkaConsumer(topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=300_000)
    try:
        return next(iter(consumer)).value  # type: ignore[no-any-return]
    finally:
        consumer.close()


async def send_by_aiokafka(settings: Mapping[str, Any], topic: str) -> int:
    producer = AIOKafkaProducer(**settings, request_timeout_ms=8000)
    try:
        await producer.start()
        return (await producer.send_and_wait(topic, b"hello")).offset  # type: ignore[no-any-return]
    finally:
        await producer.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in_and_is_served(broker: klamm.Broker, mechanism: str) -> None:
    settings = librdkafka(broker, "alice", mechanism=mechanism)
    assert round_trip_by_librdkafka(settings, f"rd-{mechanism}") == b"hello"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in_and_is_served(broker: klamm.Broker, mechanism: str) -> None:
    assert round_trip_by_kafka_python(python(broker, "alice", mechanism=mechanism), f"py-{mechanism}") == b"hello"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_logs_in_and_is_served(broker: klamm.Broker, mechanism: str) -> None:
    assert asyncio.run(send_by_aiokafka(python(broker, "alice", mechanism=mechanism), f"aio-{mechanism}")) == 0


def is_rejected_by_kafka_python(settings: Mapping[str, Any]) -> bool:
    """Try to log in; kafka-python leaves its sockets to the garbage collector when it gives up."""
    is_rejected = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            KafkaProducer(**settings, bootstrap_timeout_ms=1000)
        except PythonError:
            is_rejected = True
        gc.collect()
    return is_rejected


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), pytest.param("nobody", "alice-secret", marks=pytest.mark.long)]
)
def test_wrong_name_or_password_is_rejected(broker: klamm.Broker, mechanism: str, user: str, password: str) -> None:
    assert is_rejected_by_kafka_python(python(broker, user, password, mechanism=mechanism))
    errors: list[KafkaError] = []
    client = AdminClient(librdkafka(broker, user, password, mechanism=mechanism) | {"error_cb": errors.append})
    wait_until(
        lambda: bool(client.poll(0)) or KafkaError._AUTHENTICATION in {error.code() for error in errors},
        timeout_s=30,
        what="librdkafka to be rejected",
    )
    with pytest.raises(AiokafkaError):
        asyncio.run(send_by_aiokafka(python(broker, user, password, mechanism=mechanism), "t"))


@pytest.mark.parametrize("token", [b"\x00nobody\x00", b"\x00alice\x00", b"\x00\x00", b"\x00nobody\x00wrong"])
def test_empty_or_wrong_password_is_rejected(broker: klamm.Broker, token: bytes) -> None:
    with WireClient(broker.bootstrap_servers) as client:
        client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, 2)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        with pytest.raises(OSError, match=r"closed|reset"):
            client.ask(MetadataRequest(topics=None), MetadataResponse, 9)


def test_failed_login_returns_kafkas_message_and_closes_the_connection(broker: klamm.Broker) -> None:
    with WireClient(broker.bootstrap_servers) as client:
        client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
        token = SaslAuthenticateRequest(auth_bytes=b"\x00alice\x00wrong")
        answer = client.ask(token, SaslAuthenticateResponse, 2)
        assert answer.error_message == "Authentication failed: Invalid username or password"
        with pytest.raises(OSError, match=r"closed|reset"):
            client.ask(token, SaslAuthenticateResponse, 2)


def test_disabled_mechanism_is_rejected_with_enabled_mechanisms(broker: klamm.Broker) -> None:
    with WireClient(broker.bootstrap_servers) as client:
        answer = client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), SaslHandshakeResponse, 1)
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, MECHANISMS)
        with pytest.raises(OSError, match=r"closed|reset"):
            client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)


def test_before_login_any_other_request_closes_the_connection(broker: klamm.Broker) -> None:
    with WireClient(broker.bootstrap_servers) as client, pytest.raises(OSError, match=r"closed|reset"):
        client.ask(MetadataRequest(topics=None), MetadataResponse, 9)


def test_other_request_during_login_closes_the_connection_except_api_versions(broker: klamm.Broker) -> None:
    """Kafka answers both with ILLEGAL_SASL_STATE, see docs/divergences.md."""
    with WireClient(broker.bootstrap_servers) as client:
        assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1).error_code == 0
        assert client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2).error_code == 0
        with pytest.raises(OSError, match=r"closed|reset"):
            client.ask(MetadataRequest(topics=None), MetadataResponse, 9)


def test_before_login_a_large_frame_closes_the_connection(broker: klamm.Broker) -> None:
    with socket.create_connection(address_of(broker), timeout=60) as peer:
        peer.sendall((524_289).to_bytes(4))
        assert peer.recv(1) == b""


def test_raw_tokens_follow_sasl_handshake_v0(broker: klamm.Broker) -> None:
    with WireClient(broker.bootstrap_servers) as client:
        client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 0)
        token = b"\x00alice\x00alice-secret"
        client.socket.sendall(len(token).to_bytes(4) + token)
        assert client.read_exactly(4) == b"\x00\x00\x00\x00"
        assert client.ask(MetadataRequest(topics=[]), MetadataResponse, 9).cluster_id


def test_malformed_logins_do_not_stop_the_broker(broker: klamm.Broker) -> None:
    handshake = request_frame(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    for sent in (handshake + handshake, handshake[:9], b"\x00\x00\x00\x10" + b"\xff" * 16, handshake + b"\x00" * 400):
        with socket.create_connection(address_of(broker), timeout=60) as peer:
            peer.sendall(sent)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(4096):
                pass
    with log_in(broker.bootstrap_servers, "alice") as client:
        assert client.ask(MetadataRequest(topics=[]), MetadataResponse, 9).cluster_id


def test_no_password_is_ever_logged_or_described(broker: klamm.Broker) -> None:
    admin = AdminClient(librdkafka(broker, "admin"))
    described = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")])
    values = " ".join(str(entry.value) for future in described.values() for entry in future.result(300).values())
    for password in PASSWORDS.values():
        assert password not in values
        assert password not in broker.log_text()


def test_scram_credentials_survive_a_kill_until_deleted() -> None:
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=sasl_settings()) as broker:
        admin = AdminClient(librdkafka(broker, "admin"))
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", credential, b"bob-pw")])["bob"].result(
            9
        )
        broker.kill()
        broker.start()
        settings = librdkafka(broker, "bob", "bob-pw", mechanism="SCRAM-SHA-512")
        assert AdminClient(settings).list_topics(timeout=10).cluster_id
        admin = AdminClient(librdkafka(broker, "admin"))
        deletion = UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_512)
        admin.alter_user_scram_credentials([deletion])["bob"].result(300)
        with pytest.raises(KafkaException):
            AdminClient(settings).list_topics(timeout=1)


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_kafkas_own_tool_keeps_credentials_and_logs_in_with_them(broker: klamm.Broker, tmp_path: Path) -> None:
    def properties(mechanism: str, user: str, password: str) -> Path:
        module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
        return client_properties(
            tmp_path / f"{user}.properties",
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": mechanism,
                "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
            },
        )

    def run(config: Path, *arguments: str) -> str:
        servers = ["--bootstrap-server", broker.bootstrap_servers, "--command-config", str(config)]
        return run_tool(CONFIG_COMMAND, *servers, *arguments)

    admin = properties("PLAIN", "admin", PASSWORDS["admin"])
    user = ("--entity-type", "users", "--entity-name", "carol")
    run(admin, "--alter", *user, "--add-config", "SCRAM-SHA-512=[iterations=4096,password=carol-pw]")
    carol = properties("SCRAM-SHA-512", "carol", "carol-pw")
    assert "SCRAM credential configs for user-principal 'carol' are SCRAM-SHA-512=iterations=4096" in run(
        carol, "--describe", *user
    )
    run(admin, "--alter", *user, "--delete-config", "SCRAM-SHA-512")
    assert "SCRAM" not in run(admin, "--describe", *user)


def address_of(broker: klamm.Broker) -> tuple[str, int]:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return host, int(port)


# --- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates.create(tmp_path_factory.mktemp("certificates"))
    made.issue("broker", "/O=klamm/CN=broker")
    made.issue("client", "/C=CZ/O=Castle, Inc./OU=Offices/CN=k")
    return made


def tls_settings(certificates: Certificates, **more: str) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.directory / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.fixture(scope="module")
def tls_broker(certificates: Certificates) -> Iterator[klamm.Broker]:
    with klamm.Broker(listen="SSL://127.0.0.1:0", config=tls_settings(certificates)) as broker:
        yield broker


def test_every_client_connects_over_tls(tls_broker: klamm.Broker, certificates: Certificates) -> None:
    servers, authority = tls_broker.bootstrap_servers, str(certificates.authority)
    rd = {"bootstrap.servers": servers, "security.protocol": "SSL", "ssl.ca.location": authority}
    assert round_trip_by_librdkafka(rd, "rd") == b"hello"
    py = {"bootstrap_servers": servers, "security_protocol": "SSL", "ssl_cafile": authority}
    assert round_trip_by_kafka_python(py, "py") == b"hello"
    context = ssl.create_default_context(cafile=authority)
    aio = {"bootstrap_servers": servers, "security_protocol": "SSL", "ssl_context": context}
    assert asyncio.run(send_by_aiokafka(aio, "aio")) == 0


def test_large_records_survive_tls(tls_broker: klamm.Broker, certificates: Certificates) -> None:
    value = bytes(range(256)) * 3000
    settings = {
        "bootstrap_servers": tls_broker.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_cafile": str(certificates.authority),
    }
    producer = KafkaProducer(**settings)
    for _ in range(5):
        producer.send("large", value).get(60)
    producer.close()
    consumer = KafkaConsumer("large", **settings, auto_offset_reset="earliest", consumer_timeout_ms=300_000)
    assert [record.value == value for _, record in zip(range(5), consumer, strict=False)] == [True] * 5
    consumer.close()


def test_certificate_subject_is_the_principal_and_missing_certificate_is_rejected(certificates: Certificates) -> None:
    """The certificate's subject is the principal, as Kafka prints it: the super user is known by it."""
    subject = r"User:CN=k,OU=Offices,O=Castle\, Inc.,C=CZ"
    more = tls_settings(certificates, ssl_client_auth="required")
    more |= {"authorizer.class.name": "klamm.Authorizer", "super.users": subject}
    with klamm.Broker(listen="SSL://127.0.0.1:0", config=more) as broker:
        settings: dict[str, Any] = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SSL",
            "ssl.ca.location": str(certificates.authority),
            "log_level": 0,
        }
        with pytest.raises(KafkaException):
            AdminClient(settings).list_topics(timeout=1)
        mine = {
            "ssl.certificate.location": str(certificates.certificate_of("client")),
            "ssl.key.location": str(certificates.key_of("client")),
        }
        assert round_trip_by_librdkafka({**settings, **mine}, "mine") == b"hello"


def test_each_listener_advertises_its_own_address(certificates: Certificates) -> None:
    inside, outside = _free_addresses("127.0.0.1", 2)
    config = {
        **tls_settings(certificates),
        **sasl_settings(listener="outside"),
        "listeners": f"INSIDE://{inside},OUTSIDE://{outside}",
        "advertised.listeners": f"OUTSIDE://localhost:{outside.rpartition(':')[2]}",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL",
    }
    with klamm.Broker(config=config) as broker:
        assert broker.bootstrap_servers == inside
        outer = librdkafka(broker, "alice") | {
            "bootstrap.servers": outside,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(certificates.authority),
        }
        inner: dict[str, Any] = {"bootstrap.servers": inside}
        brokers = {name: AdminClient(settings).list_topics(timeout=10).brokers[1]
                for name, settings in (("in", inner), ("out", outer))}  # fmt: skip
        assert f"{brokers['in'].host}:{brokers['in'].port}" == inside
        assert brokers["out"].host == "localhost"
        assert round_trip_by_librdkafka(outer, "outer") == b"hello"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ssl.keystore.type": "JKS"}, "a JKS store needs ssl.keystore.password"),
        ({"ssl.keystore.location": "missing.pem"}, "missing.pem: cannot be read"),
        *(
            pytest.param(*invalid, marks=pytest.mark.long)
            for invalid in (
                ({"ssl.keystore.type": "PKCS12", "ssl.keystore.password": "p"}, "it is PEM text; set the type to PEM"),
                ({"ssl.cipher.suites": "TLS_MADE_UP"}, "ssl.cipher.suites: TLS_MADE_UP: expected Java's names"),
                ({"ssl.client.auth": "maybe"}, "expected one of|ssl.client.auth"),
                ({"ssl.enabled.protocols": "SSLv3"}, "ssl.enabled.protocols"),
            )
        ),
    ],
)
def test_invalid_tls_settings_fail_broker_start(
    certificates: Certificates, change: dict[str, str], reason: str
) -> None:
    with pytest.raises(BrokerStartError, match=reason):
        klamm.Broker(listen="SSL://127.0.0.1:0", config=tls_settings(certificates) | change).start()


# --- limits


def test_max_connections_per_ip_closes_further_connections() -> None:
    with klamm.Broker(config={"max.connections.per.ip": 2}) as broker:
        kept = [socket.create_connection(address_of(broker), timeout=60) for _ in range(2)]
        with socket.create_connection(address_of(broker), timeout=60) as third:
            assert third.recv(1) == b""
        kept.pop().close()
        wait_until(lambda: is_served(broker), timeout_s=30, what="the broker to notice that there is room")
        kept.pop().close()


def is_served(broker: klamm.Broker) -> bool:
    try:
        with WireClient(broker.bootstrap_servers) as client:
            return bool(client.ask(MetadataRequest(topics=[]), MetadataResponse, 9).cluster_id)
    except ConnectionError:
        return False


@pytest.mark.long
def test_idle_connection_is_closed_and_busy_one_kept() -> None:
    with (
        klamm.Broker(config={"connections.max.idle.ms": 3000}) as broker,
        socket.create_connection(address_of(broker), timeout=30) as idle,
        WireClient(broker.bootstrap_servers) as busy,
    ):
        closing = select.poll()
        closing.register(idle, select.POLLIN)
        for _ in range(300):
            busy.ask(MetadataRequest(topics=[]), MetadataResponse, 9)
            if closing.poll(100):
                break
        assert idle.recv(1) == b""
        busy.ask(MetadataRequest(topics=[]), MetadataResponse, 9)
