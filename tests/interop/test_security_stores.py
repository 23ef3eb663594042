"""Java's key and trust stores, made by keytool, on both ends; every client family logs in over TLS."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

import klamm
from klamm.cli import main
from klamm.embedded.server_process import BrokerStartError
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import Cluster
from tests.support.java import QUICK_TO_START, java_executable
from tests.support.kafka_tools import run_tool
from tests.support.processes import free_port
from tests.support.security import PASSWORDS, PLAIN_MODULE, RSA, Certificates, client_properties, sasl_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.long

_QUICK = tuple(f"-J{option}" for option in QUICK_TO_START)
OF_STORE, OF_KEY = "of the store", "of the key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Stores by name in one directory."""

    certificates: Certificates

    def path(self, name: str) -> str:
        return str(self.certificates.directory / name)

    def export(self, name: str) -> None:
        """Put a key with its certificate and the authority into NAME.p12 and NAME.jks; in the JKS it has its own
        password."""
        self._run("openssl", "pkcs12", "-export", "-in", f"{name}.pem", "-certfile", "ca.pem", "-name", name,
                  "-out", f"{name}.p12", "-passout", f"pass:{OF_STORE}")  # fmt: skip
        self._keytool("-importkeystore", "-srckeystore", f"{name}.p12", "-srcstorepass", OF_STORE, "-alias", name,
                      "-destkeystore", f"{name}.jks", "-deststoretype", "JKS", "-deststorepass", OF_STORE,
                      "-destkeypass", OF_KEY)  # fmt: skip

    def trust(self, name: str, kind: str, *options: str) -> None:
        """Make a trust store with the authority in it."""
        self._keytool(*options, "-importcert", "-noprompt", "-alias", "caroot", "-file", "ca.pem", "-keystore", name,
                      "-storetype", kind, "-storepass", OF_STORE)  # fmt: skip

    def _keytool(self, *arguments: str) -> None:
        self._run(str(Path(java_executable()).with_name("keytool")), *_QUICK, *arguments)

    def _run(self, *command: str) -> None:
        subprocess.run(command, cwd=self.certificates.directory, check=True, capture_output=True)


@pytest.fixture(scope="module")
def stores(java: None, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    certificates = Certificates.create(tmp_path_factory.mktemp("stores"), RSA)
    made = Stores(certificates=certificates)
    for name in ("broker", "client"):
        certificates.issue(name, f"/O=klamm/CN={name}")
        made.export(name)
    made.trust("trust.jks", "JKS")
    made.trust("trust.p12", "PKCS12")
    # What Java wrote before 8u301: certificates under RC2.
    made.trust("old.p12", "PKCS12", "-J-Dkeystore.pkcs12.legacy")
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A broker that wants certificates at one listener, and a login over TLS at another."""

    mutual: str
    login: str
    stores: Stores

    def java_mutual(self, kind: str) -> dict[str, str]:
        """Return the properties of a Java client that shows a certificate."""
        return {
            "security.protocol": "SSL",
            **self.trusting("trust.jks"),
            "ssl.keystore.type": kind.upper().replace("P12", "PKCS12"),
            "ssl.keystore.location": self.stores.path(f"client.{kind}"),
            "ssl.keystore.password": OF_STORE,
            **({"ssl.key.password": OF_KEY} if kind == "jks" else {}),
        }

    def java_login(self, trust: str = "trust.jks") -> dict[str, str]:
        """Return the properties of a Java client that logs in."""
        login = f'{PLAIN_MODULE} required username="alice" password="{PASSWORDS["alice"]}";'
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": login,
            **self.trusting(trust),
        }

    def trusting(self, name: str) -> dict[str, str]:
        return {
            "ssl.truststore.location": self.stores.path(name),
            "ssl.truststore.password": OF_STORE,
            "ssl.truststore.type": "JKS" if name.endswith("jks") else "PKCS12",
        }

    @property
    def python_login(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.login,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "alice",
            "sasl_plain_password": PASSWORDS["alice"],
        }


@pytest.fixture(scope="module")
def guarded(stores: Stores) -> Iterator[Guarded]:
    mutual, login = (f"127.0.0.1:{free_port()}" for _ in range(2))
    config = {
        **sasl_settings(listener="login"),
        "listeners": f"MUTUAL://{mutual},LOGIN://{login}",
        "listener.security.protocol.map": "MUTUAL:SSL,LOGIN:SASL_SSL",
        "ssl.keystore.location": stores.path("broker.jks"),
        "ssl.keystore.password": OF_STORE,
        "ssl.key.password": OF_KEY,
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.truststore.location": stores.path("trust.p12"),
        "listener.name.mutual.ssl.truststore.type": "PKCS12",
        "listener.name.mutual.ssl.truststore.password": OF_STORE,
        "listener.name.mutual.ssl.keystore.location": stores.path("broker.p12"),
        "listener.name.mutual.ssl.keystore.type": "PKCS12",
        "listener.name.mutual.ssl.key.password": OF_STORE,
    }
    with klamm.Broker(config=config) as broker:
        yield Guarded(mutual=mutual, login=login, stores=stores)
        for secret in (OF_STORE, OF_KEY, *PASSWORDS.values()):
            assert secret not in broker.log_text()


def test_java_clients_show_a_certificate_and_log_in_with_stores_of_their_own(guarded: Guarded, tmp_path: Path) -> None:
    # given
    mutual = str(client_properties(tmp_path / "mutual.properties", guarded.java_mutual("jks")))
    login = str(client_properties(tmp_path / "login.properties", guarded.java_login()))
    # when
    run_tool("org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", guarded.mutual, "--topic", "java",
              "--command-config", mutual, stdin="hello\n")  # fmt: skip
    read = run_tool("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", guarded.login, "--topic",
                     "java", "--from-beginning", "--max-messages", "1", "--timeout-ms", "30000", "--command-config",
                     login)  # fmt: skip
    # then
    assert read.strip() == "hello"


def test_librdkafka_logs_in_over_tls(guarded: Guarded) -> None:
    settings = {
        "bootstrap.servers": guarded.login,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": PASSWORDS["alice"],
        "ssl.ca.location": str(guarded.stores.certificates.authority),
    }
    producer = Producer(settings)
    producer.produce("rd-login", b"hello")
    assert producer.flush(30) == 0
    consumer = Consumer({**settings, "group.id": "rd", "auto.offset.reset": "earliest"})
    consumer.subscribe(["rd-login"])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.value() == b"hello"


def test_kafka_python_logs_in_over_tls(guarded: Guarded) -> None:
    settings = {**guarded.python_login, "ssl_cafile": str(guarded.stores.certificates.authority)}
    producer = KafkaProducer(**settings)
    producer.send("py-login", b"hello").get(30)
    producer.close()
    consumer = KafkaConsumer("py-login", **settings, auto_offset_reset="earliest", consumer_timeout_ms=300_000)
    assert next(iter(consumer)).value == b"hello"
    consumer.close()


async def test_aiokafka_logs_in_over_tls(guarded: Guarded) -> None:
    context = ssl.create_default_context(cafile=str(guarded.stores.certificates.authority))
    settings = {**guarded.python_login, "ssl_context": context}
    async with AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait("aio-login", b"hello")
    async with AIOKafkaConsumer("aio-login", **settings, auto_offset_reset="earliest") as consumer:
        assert (await asyncio.wait_for(consumer.getone(), 30)).value == b"hello"


@pytest.mark.parametrize("trust", ["trust.jks", "trust.p12", "old.p12"])
def test_command_line_reads_java_stores(
    guarded: Guarded, tmp_path: Path, capsys: pytest.CaptureFixture[str], trust: str
) -> None:
    config = client_properties(tmp_path / "client.properties", guarded.java_login(trust))
    command = ["topics", "--list", "--bootstrap-server", guarded.login, "--command-config", str(config)]
    assert main(command) == 0, capsys.readouterr().err


@pytest.mark.parametrize("kind", ["jks", "p12"])
def test_mirror_reads_java_stores(guarded: Guarded, kind: str) -> None:
    """K894-27: Key precedence: ``A->B.k`` over top-level ``k``; for clients ``A->B.source.consumer.k``,
    ``A.consumer.k``, ``A.k``, ``k``, ``A->B.consumer.k``, ``A->B.source.cluster.k``.
    """
    settings = ConnectionSettings.of((guarded.mutual,), guarded.java_mutual(kind), "test")
    cluster = Cluster(settings, BufferPool(max_free_bytes=0))
    cluster.refresh([])
    cluster.close()


def test_wrong_store_password_fails_broker_start_with_its_key(stores: Stores) -> None:
    settings = {
        "ssl.keystore.location": stores.path("broker.jks"),
        "ssl.keystore.password": "hunter2",
        "ssl.key.password": OF_KEY,
    }
    with pytest.raises(BrokerStartError, match=r"SSL: ssl\.keystore\.location=.*ssl\.keystore\.password") as no:
        klamm.Broker(listen="SSL://127.0.0.1:0", config=settings).start()
    assert "hunter2" not in str(no.value)
    settings |= {"ssl.keystore.password": OF_STORE, "ssl.key.password": "hunter2"}
    with pytest.raises(BrokerStartError, match=r"opened by ssl\.key\.password"):
        klamm.Broker(listen="SSL://127.0.0.1:0", config=settings).start()
