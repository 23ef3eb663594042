"""Central configs of the authenticated user, read from the Produce frames of each library."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import klamm
from klamm.admin import AdminClient, ClientConfigEntity, ClientConfigOp, NewTopic
from klamm.clients import KafkaProducer, aio, confluent
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from tests.support.dynamic_clients import SILENT
from tests.support.frame_proxy import FrameProxy
from tests.support.security import PASSWORDS, Certificates, log_in, sasl_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from klamm.clients import ConfigUpdate

TOPIC = "over-sasl"


def login(servers: str, user: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": PASSWORDS[user],
    }


@pytest.fixture(scope="module")
def broker() -> Iterator[klamm.Broker]:
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=sasl_settings()) as running:
        with AdminClient(**login(running.bootstrap_servers, "alice"), timeout_ms=60_000) as admin:
            admin.create_topics([NewTopic(name=TOPIC, num_partitions=1, replication_factor=1)]).all().result()
            changes = {
                ClientConfigEntity.of_user("alice"): [ClientConfigOp("acks", "all")],
                ClientConfigEntity.of_client("mallory", "app"): [ClientConfigOp("acks", "0")],
            }
            admin.alter_client_configs(changes).all().result()
        yield running


def by_kafka_python(servers: str, user: str) -> None:
    with KafkaProducer(**login(servers, user), client_id="app", acks=1, enable_idempotence=False) as client:
        client.send(TOPIC, b"x").get(60)


def by_confluent(servers: str, user: str) -> None:
    properties = {
        "bootstrap.servers": servers,
        "client.id": "app",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
        "acks": 1,
    }
    with confluent.Producer(properties, logger=SILENT) as client:
        client.produce(TOPIC, b"x")
        assert client.flush(60) == 0


def by_aiokafka(servers: str, user: str) -> None:
    async def send() -> None:
        client = aio.AIOKafkaProducer(**login(servers, user), client_id="app", acks=1)
        await client.start()
        try:
            await client.send_and_wait(TOPIC, b"x")
        finally:
            await client.stop()

    asyncio.run(send())


@pytest.mark.parametrize("produce", [by_kafka_python, by_confluent, by_aiokafka], ids=lambda client: client.__name__)
def test_authenticated_user_gets_its_own_configs(produce: Callable[[str, str], None], broker: klamm.Broker) -> None:
    """K649-30: The user is taken from the connection's authenticated principal (name without "User:".

    K649-32: Precedence per key: <user, client-id> over <user>.
    """
    for user, acks in (("alice", -1), ("mallory", 0)):
        with FrameProxy(broker.bootstrap_servers) as proxy:
            produce(proxy.bootstrap_servers, user)
            proxy.wait_for(lambda proxy=proxy: bool(proxy.produced_acks()))  # type: ignore[misc]
            assert (user, proxy.produced_acks()) == (user, [acks])


@pytest.mark.parametrize("trust", ["authority", "anybody"])
def test_client_without_certificate_verification_gets_configs_over_tls(tmp_path: Path, trust: str) -> None:
    """K649-69: Both new: feature used."""
    # given
    certificates = Certificates.create(tmp_path)
    certificates.issue("broker", "/O=klamm/CN=broker")
    tls = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificates.directory / "broker.pem")}
    trusts: dict[str, dict[str, Any]] = {
        "authority": {"ssl.ca.location": str(certificates.authority)},
        "anybody": {"enable.ssl.certificate.verification": False},
    }
    updates: list[ConfigUpdate] = []
    with klamm.Broker(listen="SSL://127.0.0.1:0", config=tls) as running:
        servers, authority = running.bootstrap_servers, str(certificates.authority)
        with AdminClient(servers, security_protocol="SSL", ssl_cafile=authority, timeout_ms=60_000) as admin:
            everybody = ClientConfigEntity.of_user(None)
            admin.alter_client_configs({everybody: [ClientConfigOp("acks", "0")]}).all().result()
        # when
        properties = {"bootstrap.servers": servers, "security.protocol": "ssl", "acks": 1, **trusts[trust]}
        confluent.Producer(properties, on_dynamic_config_change=updates.append, logger=SILENT).close()
    # then
    assert [change.new for update in updates for change in update.changes] == ["0"]


def test_client_configs_of_another_user_are_rejected(broker: klamm.Broker) -> None:
    """K649-35: A user component that is sent anyway must equal the principal."""
    # given
    with log_in(broker.bootstrap_servers, "mallory") as client:

        def ask(user: str) -> DescribeClientConfigsResponse:
            names = {"user": user, "client-id": "app"}
            components = [
                DescribeClientConfigsRequest.ComponentData(entity_type=kind, match_type=0, match=name)
                for kind, name in names.items()
            ]
            request = DescribeClientConfigsRequest(
                components=components, supported_configs=["acks"], resolve_entity=True
            )
            return client.ask(request, DescribeClientConfigsResponse, 0)

        # when
        rejected, own = ask("alice"), ask("mallory")
    # then
    assert (rejected.error_code, rejected.entries) == (ErrorCode.INVALID_REQUEST, None)
    assert [(value.key, value.value) for entry in own.entries or [] for value in entry.values] == [("acks", "0")]
