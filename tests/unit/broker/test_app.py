"""An assembled broker: events between its services."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import AsyncMock

import pytest

from klamm.broker.app import BrokerApp
from klamm.broker.cluster import AdvertisedBroker
from klamm.broker.context import RequestContext
from klamm.broker.requests.internal_topics import ensure_internal_topic
from klamm.broker.requests.partitions import leader_log
from klamm.broker.settings import parse_arguments
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.registrations import TOPIC, registration
from klamm.configs.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from klamm.properties import SettingsError
from klamm.protocol.errors import NotLeaderOrFollowerError, StorageError, UnknownTopicOrPartitionError
from klamm.protocol.records import Record, encode_batch
from klamm.protocol.types import ResourceType
from klamm.security.sasl import SaslRejectedError
from klamm.security.stores import pem
from klamm.server.session import Session
from klamm.storage.metadata.store import MetadataStore
from tests.support.broker_app import running
from tests.support.configs import ANNA, SET, alteration, operation
from tests.support.configs import topic as topic_change
from tests.support.failing_disk import Disk
from tests.support.java_stores import identity

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.broker.context import Services
    from klamm.configs.operations import AlterOperation

APP1 = ClientConfigEntity.of_client("alice", "app1")
APP2 = ClientConfigEntity.of_client("alice", "app2")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Of the broker's metadata."""
    disk = Disk()
    monkeypatch.setattr(MetadataStore, "open", partial(MetadataStore.open, connect=disk.connect))
    return disk


async def register(services: Services, *entities: ClientConfigEntity) -> None:
    for entity in entities:
        await services.client_configs.register(registration(entity, "a/1", ["acks"]))


async def delete_topic(services: Services, name: str) -> None:
    topic = services.topics.get(name)
    assert topic is not None
    await services.topics.begin_delete(topic)


async def test_deleting_the_registrations_topic_clears_registrations(tmp_path: Path) -> None:
    async with running(tmp_path) as services:
        await register(services, APP1, APP2)
        await services.topics.create("other", [[0]], configs={})
        await delete_topic(services, "other")
        assert set(services.client_configs.registered) == {APP1, APP2}
        # when
        await delete_topic(services, TOPIC)
        # then
        assert set(services.client_configs.registered) == set()
        await register(services, APP2)
        assert set(services.client_configs.registered) == {APP2}
    async with running(tmp_path) as services:
        assert set(services.client_configs.registered) == {APP2}


async def test_failed_topic_deletion_keeps_registrations(tmp_path: Path, disk: Disk) -> None:
    async with running(tmp_path) as services:
        await register(services, APP1, APP2)
        disk.failures = 1
        with pytest.raises(StorageError):
            await delete_topic(services, TOPIC)
        assert set(services.client_configs.registered) == {APP1, APP2}


async def test_rolled_back_config_of_a_topic_deleted_meanwhile_deletes_no_records(tmp_path: Path, disk: Disk) -> None:
    async with running(tmp_path) as services:
        # given
        topic = await services.topics.create("orders", [[1]], configs={})
        log = services.logs.get(topic.topic_id, 0)
        assert log is not None
        hour_ago = services.now_ms() - 3_600_000
        log.append(memoryview(encode_batch([Record(key=None, value=b"1", timestamp=hour_ago)])))
        disk.failures = 1
        alterations = [topic_change("orders", operation("retention.ms", SET, "1000"))]
        # when
        change = asyncio.create_task(services.configs.alter(alterations, node_id=1, author=ANNA, validate_only=False))
        while log.config.retention_ms != 1000:  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0)
        with pytest.raises(StorageError):
            await delete_topic(services, "orders")
        # then
        assert isinstance((await change)[0], StorageError)
        await services.logs.check_retention()
        assert (log.config.retention_ms, log.log_start_offset) == (604_800_000, 0)


async def test_configs_of_a_topic_are_unsettled_until_its_deletion_is_durable(tmp_path: Path, disk: Disk) -> None:
    """Its logs stay if the deletion is rolled back, so nothing in them may be deleted by the configs of no topic."""
    async with running(tmp_path) as services:
        # given
        topic = await services.topics.create("orders", [[1]], configs={"retention.ms": "-1"})
        disk.failures = 1
        # when
        deletion = services.topics.begin_delete(topic)
        # then
        assert not services.configs.is_settled("orders")
        with pytest.raises(StorageError):
            await deletion
        assert services.configs.is_settled("orders")
        assert services.configs.topic_config("orders")["retention.ms"] == -1


@pytest.fixture
def exit_codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes with which the broker ends its process at once. It goes on here."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


@pytest.mark.parametrize("unreadable", ["", "configs", "scram_credentials"])
async def test_broker_ends_if_it_cannot_read_its_metadata_after_a_failed_commit(
    tmp_path: Path, disk: Disk, exit_codes: list[int], caplog: pytest.LogCaptureFixture, unreadable: str
) -> None:
    async with running(tmp_path) as services:
        disk.failures, disk.unreadable = 1, unreadable
        with pytest.raises(StorageError):
            await services.topics.create("t", [[1]], configs={})
        disk.unreadable = ""
    assert exit_codes == ([1] if unreadable else [])
    assert ("The broker ends at once" in caplog.text) == bool(unreadable)


@pytest.mark.parametrize("unreadable", ["", "configs"])
async def test_broker_stops_in_order_if_its_last_commit_fails(
    tmp_path: Path,
    disk: Disk,
    *,
    exit_codes: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    unreadable: str,
) -> None:
    async with running(tmp_path) as services:
        await services.topics.create("stored", [[1]], configs={})
        close, lost = services.logs.close, []

        async def close_and_fail() -> None:
            await close()
            disk.failures, disk.unreadable = 1, unreadable
            lost.append(services.topics.begin_create("lost", [[1]], configs={})[1])

        monkeypatch.setattr(services.logs, "close", close_and_fail)
    with pytest.raises(StorageError):
        await lost[0]
    assert exit_codes == []
    assert "Metadata could not be written" in caplog.text
    disk.unreadable = ""
    async with running(tmp_path) as services:
        assert [topic.name for topic in services.topics.all()] == ["stored"]


async def test_internal_topic_is_created_once_with_configured_partitions(tmp_path: Path) -> None:
    configs = "offsets.topic.num.partitions=7", "offsets.topic.segment.bytes=2000000"
    async with running(tmp_path, *(part for config in configs for part in ("--set", config))) as services:
        created = await ensure_internal_topic(CONSUMER_OFFSETS, services)
        assert created is not None
        assert await ensure_internal_topic(CONSUMER_OFFSETS, services) is created
        assert (created.is_internal, created.partitions) == (True, ((1,),) * 7)
        assert services.logs.get(created.topic_id, 6) is not None
        in_force = services.configs.topic_config(CONSUMER_OFFSETS)
        assert (in_force["cleanup.policy"], in_force["segment.bytes"]) == (("compact",), 2_000_000)
        assert await ensure_internal_topic("__share_group_state", services) is None
    async with running(tmp_path) as services:
        assert services.topics.get(CONSUMER_OFFSETS) == created


async def test_internal_topic_that_failed_to_be_stored_is_created_again(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as services:
        disk.failures = 1
        assert await ensure_internal_topic(TRANSACTION_STATE, services) is None
        assert "could not be stored and will be created again later" in caplog.text
        assert services.topics.get(TRANSACTION_STATE) is None
        assert await ensure_internal_topic(TRANSACTION_STATE, services) is not None
    async with running(tmp_path) as services:
        assert services.topics.get(TRANSACTION_STATE) is not None


async def test_user_topic_with_internal_name_becomes_internal_after_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as services:
        await services.topics.create(CONSUMER_OFFSETS, [[1]], configs={})
    async with running(tmp_path) as services:
        topic = services.topics.get(CONSUMER_OFFSETS)
        assert topic is not None
        assert topic.is_internal


async def test_connections_have_the_configured_send_buffer(tmp_path: Path) -> None:
    async def buffer_bytes(*more: str) -> tuple[int, int]:
        settings = parse_arguments(["--listen", "127.0.0.1:0", "--data-dir", str(tmp_path), *more])
        node = AdvertisedBroker(node_id=settings.node_ids[0], host="127.0.0.1", port=9092)
        app = await BrokerApp.start(settings, {settings.listeners[0].name: (node,)})
        with socket.create_server(("127.0.0.1", 0)) as sock:
            before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            app.listen(settings.listeners[0].name, {node.node_id: sock})
            after = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            await app.stop()
        return before, after

    _, as_kafka = await buffer_bytes()
    assert as_kafka in {102_400, 2 * 102_400}, "Linux doubles it"
    before, left_alone = await buffer_bytes("--set", "socket.send.buffer.bytes=-1")
    assert left_alone == before


async def test_failed_broker_start_closes_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    closed: list[object] = []

    class Policy:
        def validate(self, topic: object) -> None:
            """Allow every topic."""

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setitem(sys.modules, "own_policies", SimpleNamespace(Policy=Policy, __name__="own_policies"))
    options = ["--set", "authorizer.class.name=Unknown", "--set", "create.topic.policy.class.name=own_policies:Policy"]
    settings = parse_arguments(["--listen", "127.0.0.1:0", "--data-dir", str(tmp_path), *options])
    node = AdvertisedBroker(node_id=1, host="127.0.0.1", port=9092)
    # when
    with pytest.raises(SettingsError, match="Unknown"):
        await BrokerApp.start(settings, {settings.listeners[0].name: (node,)})
    # then
    assert len(closed) == 1


async def test_rotated_keystore_is_served_after_a_restart_without_the_first_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first.pem", tmp_path / "second.pem"
    for path in (first, second):
        own = identity("broker")
        path.write_text(pem("PRIVATE KEY", own.key_der) + pem("CERTIFICATE", own.der))
    options = ["--set", "ssl.keystore.type=PEM", "--set", f"ssl.keystore.location={first}"]
    settings = parse_arguments(["--listen", "SSL://127.0.0.1:0", "--data-dir", str(tmp_path / "data"), *options])
    listener, node = settings.listeners[0].name, AdvertisedBroker(node_id=1, host="127.0.0.1", port=9092)
    keystore = operation(f"listener.name.{listener.lower()}.ssl.keystore.location", SET, str(second))

    async def run(app: BrokerApp, *operations: AlterOperation) -> str:
        """Alter the broker, stop it, and return the certificate that it served before it stopped."""
        with socket.create_server(("127.0.0.1", 0)) as sock:
            app.listen(listener, {1: sock})
            if operations:
                change = [alteration(ResourceType.BROKER, "1", *operations)]
                configs = app.services.configs
                assert await configs.alter(change, node_id=1, author=ANNA, validate_only=False) == [None]
            served = await asyncio.to_thread(ssl.get_server_certificate, sock.getsockname())
            await app.stop()
        return served.strip()

    # given
    assert await run(await BrokerApp.start(settings, {listener: (node,)})) in first.read_text()
    assert await run(await BrokerApp.start(settings, {listener: (node,)}), keystore) in second.read_text()
    first.unlink()
    # when
    served = await run(await BrokerApp.start(settings, {listener: (node,)}))
    # then
    assert served in second.read_text()


@pytest.mark.parametrize(
    ("dynamic", "password"),
    [
        ('PlainLoginModule required user_ops="new";', b"new"),
        ("no login module", b"old"),  # the broker must start, so that it can be altered again
    ],
)
async def test_dynamic_logins_of_a_listener_take_effect_at_the_next_start(
    dynamic: str, password: bytes, tmp_path: Path
) -> None:
    """Otherwise a leaked password that was replaced would stay valid."""
    module = "org.apache.kafka.common.security.plain."
    options = ["--set", "sasl.enabled.mechanisms=PLAIN"]
    options += ["--set", f'sasl.jaas.config={module}PlainLoginModule required user_ops="old";']
    settings = parse_arguments(
        ["--listen", "SASL_PLAINTEXT://127.0.0.1:0", "--data-dir", str(tmp_path / "data"), *options]
    )
    listener, node = settings.listeners[0].name, AdvertisedBroker(node_id=1, host="127.0.0.1", port=9092)
    name = f"listener.name.{listener.lower()}.plain.sasl.jaas.config"

    async def accepts(app: BrokerApp, secret: bytes) -> bool:
        login = app._endpoints[listener].login
        assert login is not None
        try:
            login.mechanisms["PLAIN"]().step(b"\0ops\0" + secret)
        except SaslRejectedError:
            return False
        return True

    # given
    app = await BrokerApp.start(settings, {listener: (node,)})
    change = [alteration(ResourceType.BROKER, "1", operation(name, SET, module + dynamic))]
    assert await app.services.configs.alter(change, node_id=1, author=ANNA, validate_only=False) == [None]
    await app.stop()
    # when
    app = await BrokerApp.start(settings, {listener: (node,)})
    # then
    assert [each for each in (b"old", b"new") if await accepts(app, each)] == [password]
    await app.stop()


async def test_part_that_fails_to_close_keeps_neither_logs_nor_directory_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start would have to recover all logs. Another broker of this process could not open the directory."""

    async def fail() -> None:
        raise OSError("no space left")

    # given
    settings = parse_arguments(["--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")])
    nodes = {settings.listeners[0].name: (AdvertisedBroker(node_id=1, host="127.0.0.1", port=9092),)}
    app = await BrokerApp.start(settings, nodes)
    monkeypatch.setattr(app.services.client_metrics, "close", fail)
    closed = AsyncMock(wraps=app.services.logs.close)
    monkeypatch.setattr(app.services.logs, "close", closed)
    # when
    with pytest.raises(OSError, match="no space left"):
        await app.stop()
    # then
    closed.assert_awaited_once()
    again = await BrokerApp.start(settings, nodes)
    await again.stop()


async def test_config_response_waits_for_the_creation_and_deletion_of_its_topic(tmp_path: Path) -> None:
    """A failed commit would undo what the response relies on."""
    async with running(tmp_path) as services:
        _, created = services.topics.begin_create("t", [[1]], configs={})
        await services.configs.alter([topic_change("t")], node_id=1, author=ANNA, validate_only=False)
        assert created.done()
        topic = services.topics.get("t")
        assert topic is not None
        deleted = services.topics.begin_delete(topic)
        assert await services.configs.settle()
        assert deleted.done()


async def test_new_partition_without_log_has_retriable_error(tmp_path: Path) -> None:
    """Kafka's ``ReplicaManager.getPartitionOrError``. Metadata names the topic already."""
    async with running(tmp_path) as services:
        session = Session(connection_id=1, node_id=1)
        context = RequestContext(services=services, session=session, api_version=1, client_id=None)
        topic, durable = services.topics.begin_create("t", [[1]], configs={})
        with pytest.raises(NotLeaderOrFollowerError, match="t-0 is being created"):
            leader_log(context, topic, 0)
        await durable
        assert leader_log(context, topic, 0).end_offset == 0
        await services.topics.begin_delete(topic)
        with pytest.raises(UnknownTopicOrPartitionError):
            leader_log(context, topic, 0)
