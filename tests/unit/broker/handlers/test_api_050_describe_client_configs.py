"""Key 50 from bytes to bytes: DescribeClientConfigs, and SCRAM beside it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.broker.client_configs import ClientConfigService
from klamm.broker.context import RequestContext
from klamm.broker.handlers.api_050_describe_client_configs import ROUTE, decode_raw, handle
from klamm.broker.security.authorizer import AllowAll
from klamm.broker.security.credentials import ScramCredentials
from klamm.client_config_runtime.registration_log import RegistrationLog
from klamm.client_configs.definitions import BrokerLimits
from klamm.client_configs.plan import AlterEntry, AlterOp
from klamm.history.change import BROKER_ITSELF
from klamm.protocol.codec import encode
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from klamm.server.session import Session
from klamm.server.time_slice import TimeSlice
from klamm.storage.metadata.store import MetadataStore
from tests.support.registrations import MemoryRecords

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALL_CLIENTS = (("user", 2, None), ("client-id", 2, None))
Component = DescribeClientConfigsRequest.ComponentData


class Broker:
    """A client config service with its store, and a method that sends requests to it."""

    def __init__(self, store: MetadataStore) -> None:
        self.records = MemoryRecords()
        self.registrations = RegistrationLog(self.records)
        self.runner = asyncio.Runner()
        self.store = store
        self.credentials = ScramCredentials(store, now_ms=lambda: 0)
        self.service = ClientConfigService(
            store=store, registrations=self.registrations, limits=BrokerLimits, now_ms=lambda: 0
        )

    def set(self, user: str, key: str, value: str, client_id: str | None = None) -> None:
        components = (("user", user),) if client_id is None else (("user", user), ("client-id", client_id))
        entry = AlterEntry(components=components, ops=(AlterOp(key=key, value=value, remove=False),))
        (plan,) = self.runner.run(
            self.service.alter([entry], validate_only=False, author=BROKER_ITSELF, slices=TimeSlice())
        )
        assert plan.error is None

    def ask(
        self,
        *components: tuple[str, int, str | None],
        supported: list[str] | None = None,
        resolve: bool = False,
        strict: bool = False,
        session: Session | None = None,
        client_id: str | None = "header-client",
    ) -> DescribeClientConfigsResponse:
        request = DescribeClientConfigsRequest(
            components=[Component(entity_type=kind, match_type=how, match=match) for kind, how, match in components],
            supported_configs=supported,
            resolve_entity=resolve,
            strict=strict,
        )
        read = decode_raw(0, memoryview(encode(request, 0)), 0)
        assert read == request
        response = self.runner.run(handle(read, self.context(session, client_id)))
        assert isinstance(response, DescribeClientConfigsResponse)
        assert encode(response, 0)
        return response

    def context(self, session: Session | None = None, client_id: str | None = None) -> RequestContext:
        services = cast(
            "Any",
            SimpleNamespace(client_configs=self.service, authorizer=AllowAll(), credentials=self.credentials),
        )
        return RequestContext(
            services=services,
            session=session or Session(connection_id=1, node_id=1),
            api_version=0,
            client_id=client_id,
        )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(MetadataStore.open(tmp_path / "metadata.sqlite"))
    yield broker
    broker.runner.run(broker.store.close())
    broker.runner.close()


def logged_in(user: str, software: tuple[str, str] = ("klamm", "1.0")) -> Session:
    return Session(
        connection_id=1,
        node_id=1,
        principal=f"User:{user}",
        software_name=software[0],
        software_version=software[1],
    )


def outcome(response: DescribeClientConfigsResponse) -> dict[tuple[str | None, ...], dict[str, str]]:
    """Own values by the names of the entity's components."""
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert response.entries is not None
    return {
        tuple(component.entity_name for component in entry.entity): {value.key: value.value for value in entry.values}
        for entry in response.entries
    }


def test_only_version_0_is_served() -> None:
    """K649-01: DescribeClientConfigs has api key 50, versions 0..0.

    K649-17: Unknown request versions (1+) are not advertised; sent anyway, the connection is closed, as Kafka does for
    all but ApiVersions.
    """
    assert (ROUTE.api.key, ROUTE.api.min_version, ROUTE.api.max_version) == (50, 0, 0)


def test_operator_sees_configs_of_each_entity(broker: Broker) -> None:
    """K649-16: On request-level failure: ErrorCode != 0, ErrorMessage set, Entries null; on success Entries is non-null
    (maybe empty), message null.

    K649-19: MatchType 0 returns entities whose name for that type equals Match.

    K649-24: Strict=true: only entities with exactly the listed types; false: also entities with further types.

    K649-26: Values hold only that entity's own keys (no merging) when ResolveEntity=false.
    """
    broker.set("alice", "acks", "0")
    broker.set("alice", "session.timeout.ms", "9000", client_id="app1")
    broker.set("bob", "acks", "1")
    assert outcome(broker.ask(("user", 0, "alice"), strict=True)) == {("alice",): {"acks": "0"}}
    assert outcome(broker.ask(("user", 0, "alice"))) == {
        ("alice",): {"acks": "0"},
        ("alice", "app1"): {"session.timeout.ms": "9000"},
    }


def test_unknown_user_has_no_entries_and_no_error(broker: Broker) -> None:
    """K649-16: On request-level failure: ErrorCode != 0, ErrorMessage set, Entries null; on success Entries is non-null
    (maybe empty), message null.

    K649-27: Entities with neither configs nor registrations are not returned.
    """
    assert outcome(broker.ask(("user", 0, "nobody"))) == {}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ((), ErrorCode.INVALID_REQUEST),
        ((("client-id", 0, "app1"),), ErrorCode.INVALID_REQUEST),
        ((("user", 0, "alice"), ("ip", 0, "x")), ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_rejected_filter_has_message_and_null_entries(
    broker: Broker, components: tuple[tuple[str, int, str | None], ...], code: ErrorCode
) -> None:
    """K649-16: On request-level failure: ErrorCode != 0, ErrorMessage set, Entries null; on success Entries is non-null
    (maybe empty), message null.

    K649-18: A request without a ``user`` component gets 42.

    K649-25: Unknown entity type in a filter -> 35; empty type "" -> 42.
    """
    response = broker.ask(*components)
    assert response.error_code == code
    assert response.error_message
    assert response.entries is None


def test_application_gets_one_merged_entry(broker: Broker) -> None:
    """K649-30: The user is taken from the connection's authenticated principal (name without "User:".

    K649-31: Exactly one entry comes back, entity {user, client-id}, with merged Values.

    K649-32: Precedence per key: <user, client-id> over <user>.

    K649-38: EntityCompatibility is [] in resolve answers.
    """
    broker.set("alice", "acks", "0")
    broker.set("alice", "session.timeout.ms", "20000")
    broker.set("alice", "acks", "all", client_id="app1")
    response = broker.ask(("client-id", 0, "app1"), resolve=True, session=logged_in("alice"))
    assert outcome(response) == {("alice", "app1"): {"acks": "all", "session.timeout.ms": "20000"}}
    assert all(not component.entity_compatibility for entry in response.entries or [] for component in entry.entity)


def test_application_without_configs_gets_an_empty_entry(broker: Broker) -> None:
    """K649-31: Exactly one entry comes back, entity {user, client-id}, with merged Values.

    K649-36: client-id component missing -> use the request header's client id; default/any match -> 42.
    """
    assert outcome(broker.ask(resolve=True)) == {("ANONYMOUS", "header-client"): {}}


def test_application_cannot_describe_another_user(broker: Broker) -> None:
    """K649-35: A user component that is sent anyway must equal the principal."""
    broker.set("bob", "acks", "0")
    response = broker.ask(("user", 0, "bob"), ("client-id", 0, "a"), resolve=True, session=logged_in("alice"))
    assert (response.error_code, response.entries) == (ErrorCode.INVALID_REQUEST, None)


def test_application_registers_supported_configs(broker: Broker) -> None:
    """K649-22: EntityCompatibility lists, per software name+version that registered under the entity, the configs it
    supports.

    K649-39: A client registers its supported keys at start-up through a DescribeClientConfigs request (SupportedConfigs
    non-null).

    K649-41: Record key = the <user, client-id> entity.

    K649-42: Record value = the supported keys appended to the ClientInformation (software name and version).

    K649-43: Software name/version come from the connection's ApiVersions v3+ request (KIP-511), else "unknown".
    """
    for version in ("1.0", "1.1"):
        session = logged_in("alice", ("klamm", version))
        broker.ask(("client-id", 0, "app1"), supported=["acks"], resolve=True, session=session)
        broker.ask(("client-id", 0, "app1"), supported=None, resolve=True, session=session)
    assert [key for key, _ in broker.records.records] == [b'{"client-id":"app1","user":"alice"}'] * 2
    response = broker.ask(("user", 0, "alice"), ("client-id", 0, "app1"), strict=True)
    assert outcome(response) == {("alice", "app1"): {}}
    (entry,) = response.entries or []
    user, client = entry.entity
    assert user.entity_compatibility == []
    assert [(item.client_information, item.supported_configs) for item in client.entity_compatibility] == [
        ("klamm/1.0", ["acks"]),
        ("klamm/1.1", ["acks"]),
    ]


def test_longest_software_can_be_described(broker: Broker) -> None:
    # given
    session = logged_in("alice", ("a" * 20_000, "1" * 20_000))
    # when
    broker.ask(("client-id", 0, "app1"), supported=["acks"], resolve=True, session=session)
    # then: encoded without an error
    response = broker.ask(("user", 0, "alice"), ("client-id", 0, "app1"))
    assert outcome(response) == {("alice", "app1"): {}}


def test_describe_by_operator_does_not_register(broker: Broker) -> None:
    """K649-29: SupportedConfigs non-null with ResolveEntity=false registers nothing."""
    broker.ask(("user", 0, "alice"), supported=["acks"])
    assert broker.records.records == []


def test_registering_changes_no_config(broker: Broker) -> None:
    """K649-37: Values are not filtered by SupportedConfigs; unknown keys are the client's to ignore.

    K649-46: Registering never changes the entity's configs; ``supported.configs``/``supported.config`` is not a config
    key.
    """
    broker.set("alice", "session.timeout.ms", "9000")
    response = broker.ask(("client-id", 0, "app1"), supported=["acks"], resolve=True, session=logged_in("alice"))
    assert outcome(response) == {("alice", "app1"): {"session.timeout.ms": "9000"}}


def test_too_many_supported_configs_are_rejected(broker: Broker) -> None:
    """K649-48: The registration topic is not mirrored and not writable by clients."""
    response = broker.ask(supported=["k"] * 101, resolve=True)
    assert (response.error_code, response.entries) == (ErrorCode.INVALID_REQUEST, None)


@pytest.mark.parametrize("resolve", [False, True])
def test_too_many_filter_components_are_rejected(broker: Broker, resolve: bool) -> None:
    response = broker.ask(*[("user", 2, None)] * 1_001, resolve=resolve)
    assert (response.error_code, response.entries) == (ErrorCode.INVALID_REQUEST, None)
    assert "1001 components of a filter" in (response.error_message or "")


def test_failed_registration_is_a_storage_error(broker: Broker) -> None:
    broker.records.fail_next_append = True
    response = broker.ask(supported=["acks"], resolve=True)
    assert (response.error_code, response.entries) == (ErrorCode.KAFKA_STORAGE_ERROR, None)
    assert outcome(broker.ask(supported=["acks"], resolve=True)) == {("ANONYMOUS", "header-client"): {}}
    assert len(broker.records.records) == 1


def test_scram_on_the_same_key_is_answered_as_scram(broker: Broker) -> None:
    """O649-A."""
    everybody = DescribeUserScramCredentialsRequest(users=None)
    some = DescribeUserScramCredentialsRequest(
        users=[DescribeUserScramCredentialsRequest.UserName(name=name) for name in ("alice", "bob", "bob")]
    )
    answers = []
    for request in (everybody, some):
        read = decode_raw(0, memoryview(b"\x00" + encode(request, 0)), 0)
        assert read == request
        response = broker.runner.run(handle(read, broker.context()))
        assert isinstance(response, DescribeUserScramCredentialsResponse)
        assert (response.error_code, response.error_message) == (ErrorCode.NONE, "")
        answers.append([(result.user, result.error_code) for result in response.results])
    assert answers == [[], [("alice", ErrorCode.RESOURCE_NOT_FOUND), ("bob", ErrorCode.DUPLICATE_RESOURCE)]]


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x00\x05", b"\xff" * 12, bytes(10) + b"x", b"\x01\x07\x50", b"\x00\x01\x00x"]
)
def test_malformed_request_closes_the_connection(data: bytes) -> None:
    """O649-A."""
    with pytest.raises(ProtocolError):
        decode_raw(0, memoryview(data), 0)


def test_deleted_topic_clears_registrations(broker: Broker) -> None:
    # given
    broker.ask(supported=["acks"], resolve=True)
    assert [entry.entity[1].entity_name for entry in broker.ask(*ALL_CLIENTS).entries or []] == ["header-client"]
    # when
    broker.records.records.clear()
    broker.registrations.replay()
    # then
    assert broker.ask(*ALL_CLIENTS).entries == []
    broker.ask(supported=["acks"], resolve=True)
    assert len(broker.records.records) == 1
